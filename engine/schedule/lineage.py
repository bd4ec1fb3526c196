"""Lineage: a path of the tree is of one run of the model.

The last bits of a model's KV depend on how its prompt was cut into chunks. Pages of one run with pages or a window of
another are equal to no run at all. So what a commit computed again is compared with what is there, and where they
differ one of the two goes: the path below the first page that differs, or, while somebody reads it, the commit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from engine.consistency.lease import Lease, pin_path, unpin_path
from engine.consistency.prefix import CauseOf, PrefixRecord
from engine.errors import EngineError
from engine.index.node import node_with
from engine.index.radix import Match
from engine.memory.arena import Pointer
from engine.memory.checksum import PageSums, page_sums
from engine.memory.holding import Holding, SlotCopy
from engine.memory.layout import check_range, pack_pages
from engine.model.objects import ObjectKind
from engine.schedule.ledger import Ledger, PrefixNode
from engine.telemetry.ring import SpanContext

if TYPE_CHECKING:
    import torch

    from engine.memory.state import NewState

OTHER_LINEAGE = "other_lineage"


@dataclass(slots=True, eq=False)
class Hold:
    """The path that a commit hangs on: pinned from its look at the tree to its end, so that nobody evicts it."""

    node: PrefixNode | None

    def pin(self) -> None:
        pin_path(self.node)

    def let_go(self) -> None:
        unpin_path(self.node)


@dataclass(frozen=True, slots=True)
class _Stored:
    """One object kind of some pages as they were under the lock: checksums of their native bytes, else the copies."""

    sums: PageSums | None
    copies: Holding
    pointer: Pointer | None  # to the GPU copy, when there are no checksums


@dataclass(frozen=True, slots=True)
class Covered:
    """Pages [first_page, last_page) of one prefix that a commit's state has computed again."""

    first_page: int
    last_page: int
    resident: bool
    kinds: dict[ObjectKind, _Stored]


class Lineage:
    """Compares what a commit computed with what the tree has."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._tiers = ledger.tiers
        self._page_tokens = ledger.spec.page_tokens

    # -- under the lock ---------------------------------------------------------------------------------------------

    def stands_on(self, lease: Lease | None, match: Match[PrefixRecord], start_page: int) -> bool:
        """What a commit from `start_page` was computed from is still what the tree has before it.

        A prefix that has not left the tree still has its ancestors, and their bytes: so the path that the lease read,
        or that an earlier commit with it made, is there if its last prefix is. Without a lease the caller vouches.
        """
        if not start_page or lease is None:
            return True
        kept = lease.kept
        return (start_page <= lease.pages and _runs_through(lease.node, start_page, match)) or (
            kept is not None and start_page <= kept.last_page and _runs_through(kept, start_page, match)
        )

    def covered(self, match: Match[PrefixRecord], start_page: int) -> list[Covered]:
        """What the tree has of the pages from `start_page` on, to be compared without the lock; the path is pinned."""
        found = []
        for node in match.nodes:
            first, last = max(node.first_page, start_page), min(node.last_page, match.pages)
            if first < last:
                low, high = first - node.first_page, last - node.first_page
                kinds = {kind: self._stored(node.record, kind, low, high) for kind in node.record.spans}
                found.append(Covered(first, last, node.record.resident, kinds))
        return found

    def _stored(self, record: PrefixRecord, kind: ObjectKind, low: int, high: int) -> _Stored:
        sums, copies, pointer = native_sums(record, kind), record.spans[kind].cut(low, high), None
        if sums is None and copies.gpu is not None:
            pointer = self._tiers.gpu.point(copies.gpu.page_class, copies.gpu.slots)
        return _Stored(None if sums is None else sums[low:high], copies, pointer)

    def agrees(self, match: Match[PrefixRecord], first_page: int, spans: dict[ObjectKind, SlotCopy]) -> bool:
        """Whether pages from `first_page` on that another commit published meanwhile are those of `spans`.

        Checksums only, as it is asked under the lock; without them (on a GPU) nobody knows, which is no.
        """
        for node in match.nodes:
            first, last = max(node.first_page, first_page), min(node.last_page, match.pages)
            if first >= last:
                continue
            for kind, copy in spans.items():
                mine, theirs = copy.sums, native_sums(node.record, kind)
                if mine is None or theirs is None:
                    return False
                n = min(last - first, len(mine) - (first - first_page))
                low, high = first - first_page, first - node.first_page
                if n > 0 and not np.array_equal(mine[low : low + n], theirs[high : high + n]):
                    return False
        return True

    def make_way(self, match: Match[PrefixRecord], page: int, hold: Hold, cause: CauseOf, span: SpanContext) -> str:
        """Evict the path from `page` on with everything below it: it is another run's. `hold` shrinks to what stays.

        A reason when something of it is leased, pinned or being copied; nothing is changed then.
        """
        ledger = self._ledger
        node = node_with(match.path, page)
        if node is None:
            raise ValueError(f"page {page} is not on a path of {match.pages} pages")
        hold.let_go()
        try:
            below = _subtree(node)
            if not all(ledger.may_leave(n) for n in below):
                return OTHER_LINEAGE
            hold.node = node.parent if node.parent is not None and node.parent.parent is not None else None
            if page > node.first_page:
                hold.node = ledger.split(node, page - node.first_page, span)
            why = cause._replace(reason=OTHER_LINEAGE)
            for n in reversed(below):
                ledger.remove(n, why, parent=span)
            return ""
        finally:
            hold.pin()

    # -- without the lock -------------------------------------------------------------------------------------------

    def first_other_page(self, covered: list[Covered], state: NewState) -> int | None:
        """The first page whose bytes are not those that the state has for it; None when all are the same.

        Raises `StateMismatch` when the tensors do not fit the model.
        """
        layouts = self._ledger.layouts
        check_range(layouts, state, self._page_tokens)
        for run in covered:
            others = []
            for kind, stored in run.kinds.items():
                pages = range(run.first_page, run.last_page)
                fresh = pack_pages(layouts.of(kind), state.entries, state.start_tokens, pages, self._page_tokens)
                if (other := self._first_other(stored, fresh, run.resident)) is not None:
                    others.append(run.first_page + other)
            if others:
                return min(others)
        return None

    def _first_other(self, stored: _Stored, fresh: torch.Tensor, resident: bool) -> int | None:
        if stored.sums is not None:
            other = np.flatnonzero(page_sums(fresh) != stored.sums)
            return int(other[0]) if len(other) else None
        copies = [c for c in (stored.copies.gpu, stored.copies.host, stored.copies.disk) if c is not None]
        if resident and all(c.meta.error_bound > 0 for c in copies):
            return None  # coded with loss: nothing to compare, and a hit on it says that it is not exact
        native = self._native(stored)
        if native is None:
            return 0  # nobody can tell any more what was there
        differs = (native != fresh.to(native.device)).any(dim=1).nonzero()
        if stored.pointer is not None:
            with self._ledger.lock:
                if not self._tiers.gpu.is_current(stored.pointer):
                    return 0  # found damaged or replaced while it was read
        return int(differs[0]) if len(differs) else None

    def _native(self, stored: _Stored) -> torch.Tensor | None:
        """The native bytes of the fastest exact copy, on its device; None when no tier can give them."""
        copies, tiers = stored.copies, self._tiers
        try:
            if copies.gpu is not None and not copies.gpu.meta.error_bound:
                data, meta = tiers.gpu.read(copies.gpu.page_class, copies.gpu.slots), copies.gpu.meta
            elif copies.host is not None and not copies.host.meta.error_bound:
                data, meta = tiers.host_bytes(copies.host)[0], copies.host.meta
            elif copies.disk is not None and not copies.disk.meta.error_bound:
                data, meta = tiers.disk_bytes(copies.disk)[0], copies.disk.meta
            else:
                return None
            return tiers.codecs[meta.codec].decode(data, meta) if meta.codec in tiers.codecs else data
        except EngineError:  # damaged, or the tier does not answer
            return None


def _runs_through(node: PrefixNode | None, page: int, match: Match[PrefixRecord]) -> bool:
    """Whether the matched path has the page before `page` from the path that ends at `node`."""
    while node is not None and node.first_page >= page:
        node = node.parent
    return node is not None and node_with(match.path, node.first_page) is node


def native_sums(record: PrefixRecord, kind: ObjectKind) -> PageSums | None:
    """Checksums of a prefix's pages in native form, if any are known: as committed, or of a native copy."""
    known = record.native_sums.get(kind)
    holding = record.spans.get(kind)
    if known is not None or holding is None:
        return known
    for copy in (holding.gpu, holding.host):
        if copy is not None and not copy.coded and copy.sums is not None:
            return copy.sums
    return None


def content_of(record: PrefixRecord) -> int:
    """The content version of a prefix's history: what its children and checkpoints were built from. 0 at the root."""
    history = record.spans.get(ObjectKind.COMPRESSED_KV)
    return history.content_version if history is not None else 0


def _subtree(node: PrefixNode) -> list[PrefixNode]:
    """`node` and everything below it, parents before children."""
    found = [node]
    for parent in found:
        found.extend(parent.children.values())
    return found
