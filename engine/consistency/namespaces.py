"""Shares of the GPU tier by namespace: what each may hold, what each holds, and who gives when another needs room.

The caps and the rule are frozen values over plain numbers, for the engine and a simulation alike; `NamespaceBooks` is
the engine's own count, moved by what changes and never by a scan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.consistency.admission import Shortfall
from engine.errors import ConfigError

MAX_NAMESPACE_CAPS = 256
"""An eviction looks at the oldest prefix of every capped namespace, so there is a bounded number of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceCap:
    """Bytes of the GPU tier and prefixes in all tiers that one namespace may hold; None is no limit.

    Up to `guaranteed_bytes` it is not evicted for others while anybody else is above their own guarantee. At a maximum
    it evicts its own oldest. Raises `ConfigError`.
    """

    guaranteed_bytes: int | None = None
    max_bytes: int | None = None
    max_prefixes: int | None = None

    def __post_init__(self) -> None:
        for name in CAP_FIELDS:
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ConfigError(f"{name} is {value!r}; it must be a whole number of at least 1, or null for none")
        if self.guaranteed_bytes and self.max_bytes and self.guaranteed_bytes > self.max_bytes:
            raise ConfigError(f"guaranteed_bytes {self.guaranteed_bytes:,} is more than max_bytes {self.max_bytes:,}")
        if self.guaranteed_bytes is None and self.max_bytes is None and self.max_prefixes is None:
            raise ConfigError(f"a namespace's cap sets nothing; give one of {', '.join(CAP_FIELDS)}, or leave it out")

    @property
    def document(self) -> dict[str, int]:
        """As JSON: what is set."""
        return {name: value for name in CAP_FIELDS if (value := getattr(self, name)) is not None}


CAP_FIELDS = ("guaranteed_bytes", "max_bytes", "max_prefixes")


def parse_namespace_caps(document: Mapping[str, Any], gpu_bytes: int) -> dict[str, NamespaceCap]:
    """Caps by namespace from JSON, or from caps. Raises `ConfigError` naming the namespace, the value and what is
    allowed; guaranteed shares must fit `gpu_bytes`, the GPU tier or its cap, together."""
    if not isinstance(document, Mapping):
        raise ConfigError(f"namespace_caps is {document!r}; it must map names to {', '.join(CAP_FIELDS)}")
    if len(document) > MAX_NAMESPACE_CAPS:
        raise ConfigError(f"namespace_caps names {len(document)} namespaces; at most {MAX_NAMESPACE_CAPS}")
    caps = {name: _parse_cap(name, value) for name, value in document.items()}
    promised = sum(cap.guaranteed_bytes or 0 for cap in caps.values())
    if promised > gpu_bytes:
        raise ConfigError(
            f"namespace_caps guarantee {promised:,} bytes in all, the GPU tier has {gpu_bytes:,}; guarantee less"
        )
    return caps


def _parse_cap(name: str, value: Any) -> NamespaceCap:
    if not isinstance(name, str) or not name:
        raise ConfigError(f"namespace_caps has the name {name!r}; it must be a namespace")
    if isinstance(value, NamespaceCap):
        return value
    if not isinstance(value, Mapping) or (unknown := set(value) - set(CAP_FIELDS)):
        what = f"unknown keys: {', '.join(sorted(map(str, unknown)))}" if isinstance(value, Mapping) else repr(value)
        raise ConfigError(f"namespace_caps of {name!r}: {what}; known: {', '.join(CAP_FIELDS)}")
    try:
        return NamespaceCap(**value)
    except ConfigError as error:
        raise ConfigError(f"namespace_caps of {name!r}: {error}") from error


@dataclass(frozen=True, slots=True)
class Shares:
    """Who may give room to whom. `caps` are of the namespaces that have any; all others share what is left."""

    caps: Mapping[str, NamespaceCap] = field(default_factory=dict)

    def guaranteed(self, namespace: str) -> int:
        cap = self.caps.get(namespace)
        return (cap.guaranteed_bytes or 0) if cap is not None else 0

    def above(self, held: Mapping[str, int], total_bytes: int) -> frozenset[str]:
        """Namespaces that hold more than their guarantee; those without a cap count as one, by the name "".

        `held` must have every namespace with a cap that holds anything; `total_bytes` is what all hold.
        """
        found = {name for name in self.caps if held.get(name, 0) > self.guaranteed(name)}
        if total_bytes > sum(held.get(name, 0) for name in self.caps):
            found.add("")
        return frozenset(found)

    def may_give(self, owner: str, n_bytes: int, wanting: str, held: Mapping[str, int], above: frozenset[str]) -> bool:
        """Whether `owner` may lose `n_bytes` for `wanting`: always its own, and what is over its guarantee; what is
        under it only when nobody else is `above` theirs."""
        guaranteed = self.guaranteed(owner)
        if not guaranteed or owner == wanting or held.get(owner, 0) - n_bytes >= guaranteed:
            return True
        return above <= {owner}

    def shortfall(
        self, namespace: str, held_prefixes: int, held_bytes: int, new_prefixes: int, new_bytes: int
    ) -> Shortfall:
        """What of the namespace's own has to leave so that what is new stays within its maximum."""
        cap = self.caps.get(namespace)
        if cap is None:
            return _NONE
        prefixes = 0 if cap.max_prefixes is None else max(0, held_prefixes + new_prefixes - cap.max_prefixes)
        gpu_bytes = 0 if cap.max_bytes is None else max(0, held_bytes + new_bytes - cap.max_bytes)
        return Shortfall(prefixes=prefixes, gpu_bytes=gpu_bytes)

    def refusal(self, namespace: str, new_prefixes: int, new_bytes: int) -> str:
        """Why something could never fit its namespace, however much is evicted; empty when it could."""
        cap = self.caps.get(namespace)
        if cap is not None and not self.shortfall(namespace, 0, 0, new_prefixes, new_bytes).none:
            return "over_namespace_cap"
        return ""


_NONE = Shortfall()


@dataclass(slots=True)
class NamespaceBooks:
    """What every namespace holds and has on the way, kept as it changes. Guarded by the engine lock."""

    shares: Shares = field(default_factory=Shares)
    gpu_bytes: dict[str, int] = field(default_factory=dict)
    prefixes: dict[str, int] = field(default_factory=dict)
    total_bytes: int = 0

    @property
    def capped(self) -> bool:
        return bool(self.shares.caps)

    def add_bytes(self, namespace: str, n_bytes: int) -> None:
        """`n_bytes` more (or, below 0, fewer) of the GPU tier."""
        held = self.gpu_bytes
        held[namespace] = held.get(namespace, 0) + n_bytes
        self.total_bytes += n_bytes

    def add_prefixes(self, namespace: str, n: int) -> None:
        self.prefixes[namespace] = self.prefixes.get(namespace, 0) + n

    def book(self, namespace: str, prefixes: int, n_bytes: int) -> None:
        """A commit on its way, counted as held until it is booked off again, below 0."""
        if prefixes:
            self.add_prefixes(namespace, prefixes)
        if n_bytes:
            self.add_bytes(namespace, n_bytes)

    def shortfall(self, namespace: str, new_prefixes: int, new_bytes: int) -> Shortfall:
        if namespace not in self.shares.caps:
            return _NONE
        held_prefixes, held_bytes = self.prefixes.get(namespace, 0), self.gpu_bytes.get(namespace, 0)
        return self.shares.shortfall(namespace, held_prefixes, held_bytes, new_prefixes, new_bytes)

    def above(self) -> frozenset[str]:
        return self.shares.above(self.gpu_bytes, self.total_bytes) if self.shares.caps else frozenset()

    def may_give(self, owner: str, n_bytes: int, wanting: str, above: frozenset[str]) -> bool:
        return not self.shares.caps or self.shares.may_give(owner, n_bytes, wanting, self.gpu_bytes, above)

    @property
    def figures(self) -> dict[str, dict[str, int]]:
        """Namespace -> bytes and prefixes, without those that hold nothing."""
        names = sorted({*self.gpu_bytes, *self.prefixes})
        rows = {n: {"gpu_bytes": self.gpu_bytes.get(n, 0), "prefixes": self.prefixes.get(n, 0)} for n in names}
        return {name: row for name, row in rows.items() if any(row.values())}
