"""The exact curve of a recorded workload, to judge the sampled one by: LRU stack distances (Mattson et al., IBM Systems
Journal 1970) in O(log n) a reference, by a Fenwick tree over the times of last use."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactCurve:
    """`needs` are the capacities at which references begin to hit, rising, `hits` how many do from there on."""

    references: int
    distinct: int
    needs: tuple[int, ...]
    hits: tuple[int, ...]

    def share_at(self, capacity: float) -> float:
        """The share of the references that hit with room for `capacity` pages."""
        place = bisect_right(self.needs, capacity)
        return self.hits[place - 1] / self.references if place else 0.0


def exact_curve(requests: Iterable[Sequence[Hashable]]) -> ExactCurve:
    """Each request is the pages of its prompt, head first. All are looked up, then used, the head last: as an engine
    does it, so that tails leave before heads."""
    paths = list(requests)
    times = _Fenwick(sum(map(len, paths)))
    last: dict[Hashable, int] = {}
    counts: dict[int, int] = {}
    clock = 0
    for path in paths:
        for page in path:
            if (before := last.get(page)) is not None:
                need = len(last) - times.before(before)
                counts[need] = counts.get(need, 0) + 1
        for page in reversed(path):
            if (before := last.get(page)) is not None:
                times.add(before, -1)
            times.add(clock, 1)
            last[page] = clock
            clock += 1
    needs = sorted(counts)
    hits = accumulate(counts[need] for need in needs)
    return ExactCurve(references=clock, distinct=len(last), needs=tuple(needs), hits=tuple(hits))


class _Fenwick:
    """Prefix sums of small numbers that change (Fenwick, Software: Practice and Experience 1994)."""

    def __init__(self, size: int) -> None:
        self._sums = [0] * (size + 1)

    def add(self, place: int, more: int) -> None:
        sums, place = self._sums, place + 1
        while place < len(sums):
            sums[place] += more
            place += place & -place

    def before(self, place: int) -> int:
        """The sum of all places before this one."""
        sums, total = self._sums, 0
        while place > 0:
            total += sums[place]
            place &= place - 1
        return total
