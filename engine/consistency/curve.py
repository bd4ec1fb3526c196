"""The live sampler: what was asked of this engine, as curves of hit rate against capacity, in total and by namespace.

One reference is one whole page of a prompt that is looked up. A page is the path that ends at it, told by a chained
hash of all tokens up to its end: the same page of the same prefix is the same reference however the tree is cut, held
or not. Pages of an answer are held too, so they take room, but nobody looked them up.

The curves are those of an engine that admits everything and evicts the least recently used. They know no caps, so they
stay true when caps change. Usable tokens are those of the longest common prefix, less what the request path measured to
be lost on the way (`usable_tokens` over `lcp_tokens`).

On the request path the tokens, warm in the processor's cache, are summed up page by page; every `_BATCH` requests one
caller makes hashes of the sums and counts them, outside the engine lock. Nothing is dropped: a request left out would
make all reuse look closer than it is. The hashes of long paths are remembered under the ids of the prefixes they end
at, so that a hit costs the pages that are new, and one comparison over the hashes of the others.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import xxhash

from engine.consistency.lease import Lease
from engine.consistency.paths import U64, PageSums, Path, PathMemory, Point, Told, tell
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


class _Asked(NamedTuple):
    """An acquire: the pages of its prompt, each told by a sum over its tokens, were looked up. Those of `known`, which
    ends at `hit`, were told before; without it `sums` begin at the start."""

    namespace: str
    lease_id: int
    sums: U64
    prompt_tokens: int
    lcp_tokens: int
    usable_tokens: int
    hit: Point | None
    known: Path | None

    @property
    def first(self) -> int:
        return 0 if self.known is None else len(self.known.hashes)


class _Kept(NamedTuple):
    """A commit: pages from `first` on, past the prompt of the lease it came from (none: from the start), are held, as
    far as `end`."""

    namespace: str
    lease_id: int | None
    sums: U64
    first: int
    end: Point | None


class CurveSampler:
    """Thread-safe. `namespaces` is how many have a curve of their own, first come; all others share one.

    Memory: at most `samples` pages watched in total and a quarter of that by namespace, about 200 bytes each; 8 bytes a
    page of at most `_LONGEST_QUEUE` requests; and what `PathMemory` holds.
    """

    def __init__(self, page_tokens: int, *, samples: int, namespaces: int, fits_pages: int) -> None:
        self._sums = PageSums(page_tokens)
        self._samples, self._most_namespaces = samples, namespaces
        self._horizon_pages = float(HORIZON_TIMES * max(1, fits_pages))
        self._total = self._curve(samples)
        self._others = self._curve(samples // _NAMESPACE_PART)
        self._by_namespace: dict[str, Shards] = {}
        self._chains: OrderedDict[int, int] = OrderedDict()  # lease -> chain at the end of its prompt's whole pages
        self._paths = PathMemory()
        self._queue: deque[_Asked | _Kept] = deque()
        self._lock = Lock()

    def _curve(self, samples: int) -> Shards:
        half_life = float(HALF_LIFE_SAMPLES * samples)
        return Shards(samples, half_life_samples=half_life, horizon_pages=self._horizon_pages)

    # -- the request path ---------------------------------------------------------------------------------------------

    def asked(self, tokens: bytes, lease: Lease) -> None:
        """A request looked up `tokens` and got `lease`."""
        node = lease.node
        hit = None if node is None else Point(node.record.prefix_id, lease.pages)
        known = self._paths.get(hit)
        sums = self._sums.of(tokens, 0 if known is None else len(known.hashes))
        got = (lease.prompt_tokens, lease.lcp_tokens, lease.usable_tokens)
        self._put(_Asked(lease.namespace, lease.lease_id, sums, *got, hit, known))

    def kept(self, namespace: str, tokens: bytes, lease: Lease | None, prefix_id: str = "") -> None:
        """A commit holds `tokens`; of a lease, the prompt was `asked` before. `prefix_id`, if all of their whole pages
        were admitted, is the prefix that ends there."""
        page_bytes = self._sums.page_bytes
        pages = len(tokens) // page_bytes
        end = Point(prefix_id, pages) if prefix_id else None
        if lease is None or lease.namespace != namespace:
            self._put(_Kept(namespace, None, self._sums.of(tokens, 0), 0, end))
        elif pages > (first := lease.prompt_tokens * 4 // page_bytes):
            self._put(_Kept(namespace, lease.lease_id, self._sums.of(tokens, first), first, end))

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
            told = _told(asked, [e.known.chain if e.known is not None else self._seed(e.namespace) for e in asked])
            whole = [_whole(entry.known, its) for entry, its in zip(asked, told, strict=True)]
            for asking, its, path in zip(asked, told, whole, strict=True):
                self._remember_prompt(asking, its, path)
            # A prompt's answer goes on from where the prompt's chain ended, perhaps in this very batch.
            kept = [entry for entry in batch if isinstance(entry, _Kept) and self._start(entry) is not None]
            told = _told(kept, [self._start(entry) or 0 for entry in kept])
            for keeping, its in zip(kept, told, strict=True):
                self._remember_answer(keeping, its)
            hashes = [*whole, *(its.hashes for its in told)]
            of = {id(entry): found for entry, found in zip((*asked, *kept), hashes, strict=True)}
            for entry in batch:
                self._count(entry, of.get(id(entry)))

    def _seed(self, namespace: str) -> int:
        return xxhash.xxh3_64_intdigest(namespace.encode())

    def _start(self, entry: _Kept) -> int | None:
        """The chain before its first page; None if it is long forgotten."""
        return self._seed(entry.namespace) if entry.lease_id is None else self._chains.get(entry.lease_id)

    def _remember_prompt(self, entry: _Asked, told: Told, hashes: U64) -> None:
        """For the answer to go on from, and where it was hit, for the next that is hit there."""
        self._chains[entry.lease_id] = told.end
        if len(self._chains) > _REMEMBERED_CHAINS:
            self._chains.popitem(last=False)
        self._paths.keep(entry.lease_id, Path(hashes, told.end))
        if entry.hit is not None and entry.hit.pages <= len(hashes):
            pages = entry.hit.pages
            self._paths.keep(entry.hit, entry.known or Path(hashes[:pages], told.chain_at(pages)))

    def _remember_answer(self, entry: _Kept, told: Told) -> None:
        prompt = self._paths.get(entry.lease_id)
        if entry.end is not None and entry.first == (0 if prompt is None else len(prompt.hashes)):
            self._paths.keep(entry.end, Path(_whole(prompt, told), told.end))

    def _count(self, entry: _Asked | _Kept, hashes: U64 | None) -> None:
        curves = (self._total, self._of(entry.namespace))
        watched: list[int] = []
        if hashes is not None:
            limit = max(curve.threshold for curve in curves)
            watched = (hashes if limit >= EVERYTHING else hashes[hashes < np.uint64(limit)]).tolist()
        for curve in curves:
            if isinstance(entry, _Asked):
                sums = (1.0, entry.prompt_tokens, entry.lcp_tokens, entry.usable_tokens, 0.0)
                curve.request(entry.first + len(entry.sums), watched, len(watched), sums)
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


def _whole(before: Path | None, told: Told) -> U64:
    return told.hashes if before is None else np.concatenate([before.hashes, told.hashes])


def _told(entries: Sequence[_Asked | _Kept], starts: list[int]) -> list[Told]:
    return tell([entry.sums for entry in entries], [entry.first for entry in entries], starts)


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
