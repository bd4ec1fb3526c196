"""The live sampler: what was asked of this engine, as curves of hit rate against capacity, in total and by namespace.

One reference is one whole page of a prompt that is looked up. A page is the path that ends at it, told by a chained
hash of all tokens up to its end: the same page of the same prefix is the same reference however the tree is cut, held
or not. Pages of an answer are held too, so they take room, but nobody looked them up.

The curves are those of an engine that admits everything and evicts the least recently used. They know no caps, so they
stay true when caps change. Usable tokens are those of the longest common prefix, less what the request path measured to
be lost on the way (`usable_tokens` over `lcp_tokens`).

On the request path the tokens, warm in the processor's cache, are summed up page by page; every `_BATCH` requests one
caller makes hashes of the sums and counts them, outside the engine lock. Nothing is dropped: a request left out would
make all reuse look closer than it is.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from itertools import pairwise
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from engine.consistency.lease import Lease
from engine.consistency.shards import EVERYTHING, Shards

_BATCH = 16
_LONGEST_QUEUE = 64 * _BATCH
_REMEMBERED_CHAINS = 4096
_NAMESPACE_PART = 4
"""A namespace's own curve has a quarter of the sample: there may be many of them."""
HALF_LIFE_SAMPLES = 8
"""What was counted so many times the sample ago weighs half."""
HORIZON_TIMES = 16
"""A curve reaches to so many times what fits the tiers now."""

_U64 = npt.NDArray[np.uint64]
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_POSITION = np.uint64(0x9E3779B97F4A7C15)


class _Asked(NamedTuple):
    """An acquire: the pages of its prompt, each told by a sum over its tokens, were looked up."""

    namespace: str
    lease_id: int
    sums: _U64
    prompt_tokens: int
    lcp_tokens: int
    usable_tokens: int


class _Kept(NamedTuple):
    """A commit: pages from `first` on, past the prompt of the lease it came from (none: from the start), are held."""

    namespace: str
    lease_id: int | None
    sums: _U64
    first: int


class _Hashed(NamedTuple):
    """Hashes of the paths that end at the pages of some requests, end to end; request i's end before `ends[i]`."""

    hashes: _U64
    ends: npt.NDArray[np.int64]
    chains: list[int]


class CurveSampler:
    """Thread-safe. `namespaces` is how many have a curve of their own, first come; all others share one.

    Memory: at most `samples` pages watched in total and a quarter of that by namespace, about 200 bytes each, and 8
    bytes a page of at most `_LONGEST_QUEUE` requests.
    """

    def __init__(self, page_tokens: int, *, samples: int, namespaces: int, fits_pages: int) -> None:
        self._page_bytes = 4 * page_tokens
        # Two token ids at a time where a page has an even number of them; any fixed odd factors make the sum a hash.
        self._word = np.dtype("<u8" if page_tokens % 2 == 0 else "<u4")
        words = self._page_bytes // self._word.itemsize
        factors = np.random.default_rng(0x5AAD5).integers(0, 1 << 63, words, dtype=np.uint64)
        self._factors: _U64 = factors * np.uint64(2) + np.uint64(1)
        self._samples, self._most_namespaces = samples, namespaces
        self._horizon_pages = float(HORIZON_TIMES * max(1, fits_pages))
        self._total = self._curve(samples)
        self._others = self._curve(samples // _NAMESPACE_PART)
        self._by_namespace: dict[str, Shards] = {}
        self._chains: OrderedDict[int, int] = OrderedDict()  # lease -> chain at the end of its prompt's whole pages
        self._queue: deque[_Asked | _Kept] = deque()
        self._lock = Lock()

    def _curve(self, samples: int) -> Shards:
        half_life = float(HALF_LIFE_SAMPLES * samples)
        return Shards(samples, half_life_samples=half_life, horizon_pages=self._horizon_pages)

    # -- the request path ---------------------------------------------------------------------------------------------

    def asked(self, tokens: bytes, lease: Lease) -> None:
        """A request looked up `tokens` and got `lease`."""
        sums = self._sums_of(tokens, 0)
        got = (lease.prompt_tokens, lease.lcp_tokens, lease.usable_tokens)
        self._put(_Asked(lease.namespace, lease.lease_id, sums, *got))

    def kept(self, namespace: str, tokens: bytes, lease: Lease | None) -> None:
        """A commit holds `tokens`; of a lease, the prompt was `asked` before."""
        page = self._page_bytes
        if lease is None or lease.namespace != namespace:
            self._put(_Kept(namespace, None, self._sums_of(tokens, 0), 0))
        elif len(tokens) // page > (first := lease.prompt_tokens * 4 // page):
            self._put(_Kept(namespace, lease.lease_id, self._sums_of(tokens, first), first))

    def _sums_of(self, tokens: bytes, first: int) -> _U64:
        """One sum a page from page `first` on: every token counts."""
        step, size, pages = self._page_bytes, self._word.itemsize, len(tokens) // self._page_bytes - first
        words = np.frombuffer(tokens, self._word, pages * step // size, first * step)
        found: _U64 = words.reshape(pages, len(self._factors)) @ self._factors
        return found

    def _put(self, entry: _Asked | _Kept) -> None:
        self._queue.append(entry)
        waiting = len(self._queue)
        if waiting >= _BATCH and self._lock.acquire(blocking=waiting >= _LONGEST_QUEUE):
            try:
                self._count_queue()
            finally:
                self._lock.release()

    # -- counting, under the sampler's own lock -----------------------------------------------------------------------

    def _count_queue(self) -> None:
        while self._queue:
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), 4 * _BATCH))]
            asked = [entry for entry in batch if isinstance(entry, _Asked)]
            watched = self._watched(asked, [self._seed(entry.namespace) for entry in asked], remember=True)
            # A prompt's answer goes on from where the prompt's chain ended, perhaps in this very batch.
            kept = [entry for entry in batch if isinstance(entry, _Kept) and self._start(entry) is not None]
            watched += self._watched(kept, [self._start(entry) or 0 for entry in kept])
            of = {id(entry): found for entry, found in zip((*asked, *kept), watched, strict=True)}
            for entry in batch:
                self._count(entry, of.get(id(entry), []))

    def _seed(self, namespace: str) -> int:
        return xxhash.xxh3_64_intdigest(namespace.encode())

    def _start(self, entry: _Kept) -> int | None:
        """The chain before its first page; None if it is long forgotten."""
        return self._seed(entry.namespace) if entry.lease_id is None else self._chains.get(entry.lease_id)

    def _watched(
        self, entries: Sequence[_Asked | _Kept], starts: list[int], *, remember: bool = False
    ) -> list[list[int]]:
        """Of each entry the hashes that some curve may watch, head first."""
        if not entries:
            return []
        found = _chained([e.sums for e in entries], [e.first if isinstance(e, _Kept) else 0 for e in entries], starts)
        if remember:
            for entry, chain in zip(entries, found.chains, strict=True):
                self._remember(entry, chain)
        limit = max(curve.threshold for e in entries for curve in (self._total, self._of(e.namespace)))
        hashes = found.hashes
        places = np.flatnonzero(hashes < np.uint64(limit)) if limit < EVERYTHING else np.arange(len(hashes))
        values = hashes[places].tolist()
        cuts = [0, *np.searchsorted(places, found.ends).tolist()]
        return [values[first:last] for first, last in pairwise(cuts)]

    def _remember(self, entry: _Asked | _Kept, chain: int) -> None:
        if entry.lease_id is not None:
            self._chains[entry.lease_id] = chain
            if len(self._chains) > _REMEMBERED_CHAINS:
                self._chains.popitem(last=False)

    def _count(self, entry: _Asked | _Kept, watched: list[int]) -> None:
        for curve in (self._total, self._of(entry.namespace)):
            if isinstance(entry, _Asked):
                sums = (1.0, entry.prompt_tokens, entry.lcp_tokens, entry.usable_tokens, 0.0)
                curve.request(len(entry.sums), watched, len(watched), sums)
            else:
                curve.request(0, watched, 0, (0.0, 0.0, 0.0, 0.0, len(entry.sums)))

    def _of(self, namespace: str) -> Shards:
        curve = self._by_namespace.get(namespace)
        if curve is not None:
            return curve
        if len(self._by_namespace) >= self._most_namespaces:
            return self._others
        return self._by_namespace.setdefault(namespace, self._curve(self._samples // _NAMESPACE_PART))

    # -- reading ------------------------------------------------------------------------------------------------------

    def document(self) -> dict[str, Any]:
        """All curves in their compact form (wire.md, section 3): `total`, `others` and `namespaces` by name."""
        with self._lock:
            self._count_queue()
            for curve in (self._total, self._others, *self._by_namespace.values()):
                curve.forget()
            return {
                "total": _document(self._total),
                "namespaces": {name: _document(curve) for name, curve in self._by_namespace.items()},
                "others": _document(self._others),
            }


def _chained(sums: list[_U64], firsts: list[int], starts: list[int]) -> _Hashed:
    """The chain is a running sum of mixed page sums, the position mixed in so that order counts. All requests are done
    in one pass: numpy costs by the call here, not by the page."""
    lengths = np.array([len(each) for each in sums], dtype=np.int64)
    ends = np.cumsum(lengths)
    begins = ends - lengths
    places = np.arange(ends[-1], dtype=np.int64) + np.repeat(np.array(firsts, dtype=np.int64) - begins, lengths)
    running = np.cumsum(_mix(np.concatenate(sums) ^ (places.astype(np.uint64) * _POSITION)), dtype=np.uint64)
    padded = np.concatenate([np.zeros(1, np.uint64), running])
    shift = np.array(starts, dtype=np.uint64) - padded[begins]
    return _Hashed(_mix(running + np.repeat(shift, lengths)), ends, (padded[ends] + shift).tolist())


def _mix(x: _U64) -> _U64:
    """The finaliser of splitmix64 (Steele et al., OOPSLA 2014): every bit in moves every bit out."""
    x = (x ^ (x >> np.uint64(30))) * _MIX[0]
    x = (x ^ (x >> np.uint64(27))) * _MIX[1]
    return x ^ (x >> np.uint64(31))


def _document(curve: Shards) -> dict[str, Any]:
    facts = curve.facts()
    requests, prompt, lcp, usable, answers = facts.beside or (0.0,) * 5
    return {
        "samples": round(facts.samples, 1),
        "watched_pages": facts.watched_pages,
        "rate": facts.rate,
        "references": round(facts.references, 1),
        "requests": round(requests, 1),
        "prompt_tokens": round(prompt, 1),
        "lcp_tokens": round(lcp, 1),
        "usable_tokens": round(usable, 1),
        "answer_pages": round(answers, 1),
        "points": [[round(pages, 1), round(share, 5)] for pages, share in facts.points],
    }
