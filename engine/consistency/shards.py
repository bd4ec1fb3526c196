"""Hit rate against capacity, estimated in constant memory: fixed-size SHARDS (Waldspurger et al., FAST 2015, sections
3.2 and 4), with the count correction of SHARDS_adj.

A page is watched if its hash lies under a threshold, so what is watched is a fair sample of all pages. How many other
watched pages were used since its last use, over the sampling rate, is the capacity in pages that would have kept it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2

HASH_BITS = 64
EVERYTHING = 1 << HASH_BITS
"""The threshold at which every page is watched."""
STEPS_AN_OCTAVE = 16
_BUCKETS = STEPS_AN_OCTAVE * 48
_BUCKET_WIDTH: float = 2.0 ** (1 / STEPS_AN_OCTAVE)
_KEPT_OF_FULL = 7 / 8
_HEAVY = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveFacts:
    """A curve in its compact form. `points` are (capacity in pages, share of the references that hit), rising.

    `samples` and `references` are weighted by age, so they say how much stands behind the curve now; `watched_pages`
    is what is watched, one of `1 / rate` pages. `beside` are the caller's own sums, weighted alike.
    """

    samples: float
    references: float
    watched_pages: int
    rate: float
    points: tuple[tuple[float, float], ...]
    beside: tuple[float, ...] = ()


class Shards:
    """One curve. Not thread-safe; the caller gives it hashes that are uniform over 64 bits.

    `half_life_samples`: what was counted so many watched references ago weighs half, and a page not used for twice that
    is forgotten; None for no ageing.
    `horizon_pages`: a page that would need more than so many pages of capacity is forgotten, and its next use counts as
    a first one. It keeps the rate from falling for ever on an endless stream of new pages; None for a finite trace.
    """

    def __init__(
        self, max_pages: int, *, half_life_samples: float | None = None, horizon_pages: float | None = None
    ) -> None:
        self._max_pages = max_pages
        self._growth = 1.0 if half_life_samples is None else 2.0 ** (1.0 / half_life_samples)
        self._longest_idle = None if half_life_samples is None else int(2 * half_life_samples)
        self._horizon_pages = horizon_pages
        self.threshold = EVERYTHING
        self._grown_from = (
            EVERYTHING  # from this hash on the first use of a page says nothing: it was not watched before
        )
        self._grown_until = 0
        self._clock = 0
        self._last: dict[int, int] = {}  # watched page -> clock of its last use
        self._order: list[int] = []  # those clocks, rising
        self._weight = 1.0  # of a count made now; it grows, so that older counts weigh less and none is touched again
        self._buckets = [0.0] * _BUCKETS
        self._counted = 0.0  # references that the watched ones stand for
        self._references = 0.0
        self._samples = 0.0
        self._beside: list[float] = []

    def request(self, pages: int, watched: Sequence[int], looked_up: int, beside: Sequence[float] = ()) -> None:
        """One request that looks up `pages` pages and then holds its path.

        `watched` are the hashes of the path's pages that may lie under the threshold, head first; the first `looked_up`
        of them are of the pages looked up, the others are only added. All are looked up before any is used: a request
        does not push out what it is about to read. The head is used last, so that tails leave before heads. `beside`
        are numbers to be summed up that age with the counts, as many in each request that has any.
        """
        if beside:
            weight, sums = self._weight, self._beside or [0.0] * len(beside)
            self._beside = [total + weight * more for total, more in zip(sums, beside, strict=True)]
        self._references += self._weight * pages
        limit = self.threshold
        mine = [h for h in watched[:looked_up] if h < limit]
        for page in mine:
            self._look_up(page)
        self._use(mine if looked_up == len(watched) else [h for h in watched if h < limit])
        if self._weight > _HEAVY:
            self._renormalise()

    def _look_up(self, page: int) -> None:
        last, rate = self._last.get(page), self.threshold / EVERYTHING
        if last is None and page >= self._grown_from:
            self._references -= self._weight / rate
            return
        stands_for = self._weight / rate
        self._counted += stands_for
        self._samples += self._weight
        self._weight *= self._growth
        if last is not None:
            later = len(self._order) - bisect_left(self._order, last) - 1
            self._buckets[_bucket(later / rate + 1.0)] += stands_for

    def _use(self, pages: Sequence[int]) -> None:
        last, order = self._last, self._order
        for page in reversed(pages):
            before = last.get(page)
            if before is not None:
                del order[bisect_left(order, before)]
            self._clock += 1
            last[page] = self._clock
            order.append(self._clock)
        if len(last) > self._max_pages:
            self._watch_fewer()
        if self._clock >= self._grown_until:
            self._grown_from = EVERYTHING

    def _watch_fewer(self) -> None:
        """Forget what is old; if that is not enough, lower the threshold. Costs a sort of what is watched,
        once in an eighth of it."""
        self.forget()
        room = int(self._max_pages * _KEPT_OF_FULL)
        if len(self._last) > room:
            self.threshold = sorted(self._last)[room]
            self._keep({page: at for page, at in self._last.items() if page < self.threshold})

    def forget(self) -> None:
        """Let go of pages past the horizon or idle for too long, and watch more when that leaves half of the room."""
        since = 0 if self._longest_idle is None else self._clock - self._longest_idle
        if self._horizon_pages is not None:
            within = int(self._horizon_pages * self.threshold / EVERYTHING) + 1
            since = max(since, self._order[-within] if len(self._order) > within else 0)
        if self._order and self._order[0] < since:
            self._keep({page: at for page, at in self._last.items() if at >= since})
        if self.threshold < EVERYTHING and len(self._last) < self._max_pages // 2:
            self._grown_from = min(self._grown_from, self.threshold)
            self._grown_until = self._clock + 2 * self._max_pages
            self.threshold = min(EVERYTHING, 2 * self.threshold)

    def _keep(self, kept: dict[int, int]) -> None:
        self._last, self._order = kept, sorted(kept.values())

    def _renormalise(self) -> None:
        by = 1.0 / self._weight
        self._buckets = [count * by for count in self._buckets]
        self._beside = [total * by for total in self._beside]
        self._counted *= by
        self._references *= by
        self._samples *= by
        self._weight = 1.0

    def facts(self) -> CurveFacts:
        """The curve now. References that the sample missed, or has too many of, are those of the pages used most: they
        are hits at any capacity (SHARDS_adj)."""
        points: list[tuple[float, float]] = []
        hits = self._references - self._counted
        for bucket, count in enumerate(self._buckets):
            hits += count
            if count and self._references > 0:
                share = min(1.0, max(0.0, hits / self._references))
                points.append((_capacity(bucket), max(share, points[-1][1] if points else 0.0)))
        return CurveFacts(
            samples=self._samples / self._weight,
            references=self._references / self._weight,
            watched_pages=len(self._last),
            rate=self.threshold / EVERYTHING,
            points=tuple(points),
            beside=tuple(total / self._weight for total in self._beside),
        )


def _bucket(pages: float) -> int:
    return min(_BUCKETS - 1, int(log2(pages) * STEPS_AN_OCTAVE))


def _capacity(bucket: int) -> float:
    """What a reference of this bucket needs: its one whole number of pages where it holds but one, else its middle."""
    low, high = 2.0 ** (bucket / STEPS_AN_OCTAVE), 2.0 ** ((bucket + 1) / STEPS_AN_OCTAVE)
    first = ceil(low - 1e-9)
    return float(first) if first + 1 >= high else (low * high) ** 0.5


def share_at(points: Sequence[tuple[float, float]], pages: float) -> float:
    """The share of the references that hit at a capacity of `pages`: flat up to the bucket of the next point, and a
    straight line through it."""
    share = 0.0
    start = 0.0
    for capacity, reached in points:
        if capacity >= pages:
            start = max(start, capacity / _BUCKET_WIDTH)
            return share if pages <= start else share + (reached - share) * (pages - start) / (capacity - start)
        start, share = capacity, reached
    return share
