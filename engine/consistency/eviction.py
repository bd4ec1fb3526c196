"""Who leaves first. A rule proposes, the engine applies; the same rule runs live and in a simulation.

An order knows who is older; a rule chooses among the oldest that may leave. What a rule costs is bounded: it sees
`sample` candidates, whatever is held.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Generic, NamedTuple, Protocol, TypeVar

from engine.errors import ConfigError

K = TypeVar("K")
_CHUNKS = ((0, 16), (16, 64), (64, 256), (256, 4096))
"""Almost always one of the first few may leave, so that many are copied before more are looked at."""
REST = ""
"""The lane of every key that has none of its own; no namespace has this name."""


# -- orders -----------------------------------------------------------------------------------------------------------


class LeastRecentlyUsed(Generic[K]):
    """Oldest first. Touch a path from its end to its start: a parent is then always younger than its children, so
    tails leave before heads and leaves before parents.

    `lane_of` names a key's lane (its namespace). Lanes are separate orders that can be asked alone or together; only
    those named by `separate` exist, all other keys share one. A touch is O(1) with any number of lanes.
    """

    def __init__(self, lane_of: Callable[[K], str] | None = None) -> None:
        self._lane_of = lane_of
        self._rest: OrderedDict[K, int] = OrderedDict()
        self._own: dict[str, OrderedDict[K, int]] = {}
        self._touches = 0

    def __len__(self) -> int:
        return len(self._rest) + sum(map(len, self._own.values()))

    def __contains__(self, key: K) -> bool:
        return key in (self._lane(key) if self._own else self._rest)

    @property
    def lanes(self) -> tuple[str, ...]:
        return (REST, *self._own)

    def touch(self, key: K) -> None:
        """Make `key` the youngest, adding it if it is new."""
        lane = self._lane(key) if self._own else self._rest
        self._touches += 1
        lane[key] = self._touches
        lane.move_to_end(key)

    def discard(self, key: K) -> None:
        (self._lane(key) if self._own else self._rest).pop(key, None)

    def touched(self, key: K) -> int:
        """The number of the key's last touch: larger is younger, across lanes."""
        return (self._lane(key) if self._own else self._rest)[key]

    def separate(self, names: Iterable[str]) -> None:
        """Give each name a lane of its own, and everything else the shared one; the order of keys stays. O(n)."""
        keys = self._by_touch()
        self._rest, self._own = OrderedDict(), {name: OrderedDict() for name in names}
        for touched, key in keys:
            self._lane(key)[key] = touched

    def oldest(self, may_leave: Callable[[K], bool], *, lane: str | None = None, look_at: int = 4096) -> Iterator[K]:
        """Keys that may leave, oldest first, of one lane or of all. Looks at no more than `look_at` keys of a lane, so
        that one call is bounded.

        Keys that may not leave now (leased, pinned) keep their place. The order may change between items.
        """
        if lane is None and self._own:
            lanes = (self._rest, *self._own.values())
            together = merge(*(self._numbered(each, look_at) for each in lanes))
            found: Iterator[K] = (key for _, key in together)
        else:
            found = self._walk(self._rest if lane is None else self._own.get(lane, self._rest), look_at)
        for key in found:
            if may_leave(key):
                yield key

    def _lane(self, key: K) -> OrderedDict[K, int]:
        return self._rest if self._lane_of is None else self._own.get(self._lane_of(key), self._rest)

    def _by_touch(self) -> list[tuple[int, K]]:
        found = [(touched, key) for lane in (self._rest, *self._own.values()) for key, touched in lane.items()]
        return sorted(found, key=lambda pair: pair[0])

    def _numbered(self, lane: OrderedDict[K, int], look_at: int) -> Iterator[tuple[int, K]]:
        return ((lane[key], key) for key in self._walk(lane, look_at))

    def _walk(self, lane: OrderedDict[K, int], look_at: int) -> Iterator[K]:
        for first, last in _CHUNKS:
            if first >= look_at:
                return
            for key in list(islice(lane, first, min(last, look_at))):
                if key in lane:
                    yield key


# -- rules ------------------------------------------------------------------------------------------------------------


class Candidate(NamedTuple):
    """A prefix that may leave: when it was touched (larger is younger), which tokens are its own, what it holds."""

    touched: int
    first_token: int
    last_token: int
    n_bytes: int


class EvictionRule(Protocol):
    """Chooses one of the oldest leaves. `sample` is how many it wants to see; it gets them oldest first."""

    @property
    def name(self) -> str: ...

    @property
    def sample(self) -> int: ...

    def choose(self, candidates: Sequence[Candidate]) -> int: ...


@dataclass(frozen=True, slots=True)
class OldestFirst:
    """Least recently used."""

    name: str = "lru"
    sample: int = 1

    def choose(self, candidates: Sequence[Candidate]) -> int:
        return min(range(len(candidates)), key=lambda i: candidates[i].touched)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillFlops:
    """What computing tokens costs: `a_token` in the weights, and `a_pair` for each token that a token looks back at."""

    a_token: float
    a_pair: float = 0.0

    def of(self, first_token: int, last_token: int) -> float:
        """FLOPs of tokens [first, last) when everything before them is there."""
        n = last_token - first_token
        return self.a_token * n + self.a_pair * (last_token**2 - first_token**2) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CostAware:
    """The least worth keeping leaves: old, and cheap to compute again for the bytes it holds.

    Each of the `sample` oldest leaves gets a score, how recently it was used plus `alpha` times the FLOPs that it saves
    a byte, both scaled to 0..1 over the sample; the lowest leaves, and of equal ones the oldest. Objects of fixed size
    (windows, tails, recurrent states) make short prefixes dear by the byte, and attention makes deep ones worth more;
    `alpha` 0 is least recently used. The score is Marconi's (Pan et al., arXiv 2411.19379, section on FLOP-aware
    eviction), which ranks every node; here only the oldest compete, which bounds a choice at O(sample).
    """

    flops: PrefillFlops
    alpha: float = 1.0
    sample: int = 16
    name: str = "cost_aware"

    def choose(self, candidates: Sequence[Candidate]) -> int:
        recency = _scaled([float(c.touched) for c in candidates])
        saved = _scaled([self.flops.of(c.first_token, c.last_token) / max(1, c.n_bytes) for c in candidates])
        scores = [r + self.alpha * s for r, s in zip(recency, saved, strict=True)]
        return min(range(len(candidates)), key=lambda i: (scores[i], candidates[i].touched))


EVICTIONS = ("lru", "cost_aware")


def eviction_rule(name: str, flops: PrefillFlops) -> EvictionRule:
    """Raises `ConfigError` for a rule that there is not."""
    if name == "lru":
        return OldestFirst()
    if name == "cost_aware":
        return CostAware(flops=flops)
    raise ConfigError(f"eviction is {name!r}; known: {', '.join(EVICTIONS)}")


def _scaled(values: list[float]) -> list[float]:
    low, high = min(values), max(values)
    return [(value - low) / (high - low) if high > low else 0.0 for value in values]
