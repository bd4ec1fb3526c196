"""Who leaves first. A rule proposes, the engine applies; the same rule runs live and in a simulation.

An order (orders.py) knows who is older; a rule chooses among the oldest that may leave. What a rule costs is bounded:
it sees `sample` candidates, whatever is held.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from engine.errors import ConfigError


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
