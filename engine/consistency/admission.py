"""Admission: how many prefixes and bytes may be held, and which pages of a prompt are kept at all.

A rule sees frozen facts and proposes; the engine applies. The same rule runs live and in a simulation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from engine.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """Upper limits; None means the tier's own size, or no limit on prefixes."""

    prefixes: int | None = None
    gpu_bytes: int | None = None
    host_bytes: int | None = None
    disk_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("prefixes", "gpu_bytes", "host_bytes", "disk_bytes"):
            value = getattr(self, name)
            least = 0 if name in ("host_bytes", "disk_bytes") else 1  # a tier below can be closed
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise ConfigError(
                    f"cap_{name} is {value!r}; it must be a whole number of at least {least}, or null for no cap"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What is held now. `pinned_bytes` cannot be evicted at all."""

    prefixes: int
    gpu_bytes: int
    host_bytes: int
    disk_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """How much must leave before something new fits; all zero when it fits already."""

    prefixes: int = 0
    gpu_bytes: int = 0

    @property
    def none(self) -> bool:
        return self.prefixes <= 0 and self.gpu_bytes <= 0


def shortfall(caps: Caps, usage: Usage, new_prefixes: int, new_gpu_bytes: int) -> Shortfall:
    """What has to leave so that the new prefixes and bytes stay within the caps."""
    prefixes = 0 if caps.prefixes is None else max(0, usage.prefixes + new_prefixes - caps.prefixes)
    gpu_bytes = 0 if caps.gpu_bytes is None else max(0, usage.gpu_bytes + new_gpu_bytes - caps.gpu_bytes)
    return Shortfall(prefixes=prefixes, gpu_bytes=gpu_bytes)


def refusal(caps: Caps, new_prefixes: int, new_gpu_bytes: int) -> str:
    """Why something could never fit, however much is evicted; empty when it could."""
    if caps.prefixes is not None and new_prefixes > caps.prefixes:
        return "over_prefix_cap"
    if caps.gpu_bytes is not None and new_gpu_bytes > caps.gpu_bytes:
        return "over_gpu_cap"
    return ""


# -- rules: which pages of a prompt are kept ---------------------------------------------------------------------------

GHOST_MULTIPLE = 2
"""The ghost list of second_touch remembers so many times the pages that fit the GPU tier (or its cap)."""


class Offer(NamedTuple):
    """Pages [held_pages, pages) that a commit would add to what is held of its path.

    `request` is the same for every commit of one request. `keys` names the path that ends at each of these pages; only
    a rule that remembers asks for it, as it costs a digest a page.
    """

    pages: int
    held_pages: int
    request: int
    keys: Callable[[], Sequence[int]]


class Admitted(NamedTuple):
    """Pages [0, pages) of the path may be held; `reason` says why not all, and is empty when all may."""

    pages: int
    reason: str = ""


class AdmissionRule(Protocol):
    """`offer` decides and remembers; `foresee` says what an offer would be told now, and remembers nothing."""

    @property
    def name(self) -> str: ...

    def offer(self, offer: Offer) -> Admitted: ...

    def foresee(self, offer: Offer) -> Admitted: ...


@dataclass(frozen=True, slots=True)
class AdmitAll:
    """Everything is kept."""

    name: str = "all"

    def offer(self, offer: Offer) -> Admitted:
        return Admitted(offer.pages)

    foresee = offer


class FirstPages:
    """The first N pages of a prompt: system prompts and tools are kept, what each user adds is not."""

    def __init__(self, n: int) -> None:
        self.name = f"first_pages:{n}"
        self._n = n

    def offer(self, offer: Offer) -> Admitted:
        pages = min(offer.pages, max(self._n, offer.held_pages))
        return Admitted(pages, "past_first_pages" if pages < offer.pages else "")

    foresee = offer


class SecondTouch:
    """A run of pages is kept when a second request brings it: what is used once never takes the place of what is not.

    A ghost list remembers which paths were offered, and by which request, so that a prompt and its own answer are one
    touch. It holds `ghost_pages` paths and forgets the oldest first, tails before heads. What was admitted stays in it:
    evicted and brought again, it is kept again. (The rule is 2Q's admission, Johnson and Shasha, VLDB 1994.)
    """

    name = "second_touch"

    def __init__(self, ghost_pages: int) -> None:
        self._ghost_pages = max(1, ghost_pages)
        self._ghost: OrderedDict[int, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ghost)

    def resize(self, ghost_pages: int) -> None:
        self._ghost_pages = max(1, ghost_pages)
        self._forget()

    def offer(self, offer: Offer) -> Admitted:
        keys = offer.keys()
        seen = self._seen(keys, offer.request)
        for key in reversed(keys[seen:]):
            self._ghost[key] = offer.request
            self._ghost.move_to_end(key)
        self._forget()
        return self._admitted(offer, seen)

    def foresee(self, offer: Offer) -> Admitted:
        return self._admitted(offer, self._seen(offer.keys(), offer.request))

    def _seen(self, keys: Sequence[int], request: int) -> int:
        """How many of the pages, from the first on, another request has brought before."""
        for n in range(len(keys), 0, -1):
            if self._ghost.get(keys[n - 1], request) != request:
                return n
        return 0

    def _admitted(self, offer: Offer, seen: int) -> Admitted:
        pages = offer.held_pages + seen
        return Admitted(pages, "second_touch" if pages < offer.pages else "")

    def _forget(self) -> None:
        while len(self._ghost) > self._ghost_pages:
            self._ghost.popitem(last=False)


ADMISSION_RULES = ("all", "second_touch", "first_pages:N")


def admission_rule(text: str, ghost_pages: int) -> AdmissionRule:
    """The rule by its name. Raises `ConfigError` for one that there is not."""
    if text == "all":
        return AdmitAll()
    if text == "second_touch":
        return SecondTouch(ghost_pages)
    name, _, n = str(text).partition(":")
    if name == "first_pages" and n.isascii() and n.isdigit() and 1 <= int(n) < 1 << 31:
        return FirstPages(int(n))
    raise ConfigError(
        f"admission_rule is {text!r}; known: {', '.join(ADMISSION_RULES)}, where N is at least 1 and a number of pages"
    )
