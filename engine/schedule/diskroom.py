"""Room on disk, and what goes there. The disk is closed under ancestors: what is on it can be used after a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.consistency.prefix import CauseOf, PrefixRecord
from engine.consistency.state import Cause
from engine.errors import CorruptObject, EngineError
from engine.memory.checksum import PageSums
from engine.memory.diskfile import ObjectHeader
from engine.memory.holding import DiskCopy, Holding, SlotCopy, Tier
from engine.schedule.damage import quarantine
from engine.schedule.ledger import Ledger, PrefixNode

if TYPE_CHECKING:
    import torch

_TRIES = 100_000


class DiskRoom:
    """Called without the engine lock; the prefixes it writes are marked busy, by the caller or by itself."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._tiers = ledger.tiers

    def write(self, node: PrefixNode, *, may_evict: bool = True) -> bool:
        """Give a prefix, and every ancestor that has none yet, a disk copy: what is on disk is always reachable from
        disk alone, so a restart can use it. False: no room or the disk failed. Raises `CorruptObject`."""
        disk = self._tiers.disk
        if disk is None:
            return False
        with self._ledger.lock:
            path: list[PrefixNode] = []
            walk: PrefixNode | None = node
            while walk is not None and walk.parent is not None:
                path.append(walk)
                walk = walk.parent
        # The names are made lasting before the caller frees anything that these files replace.
        return all(self._write_objects(step, node, may_evict) for step in reversed(path)) and self._tiers.sync_disk()

    def _write_objects(self, node: PrefixNode, wanting: PrefixNode, may_evict: bool) -> bool:
        ledger = self._ledger
        with ledger.lock:
            if node is not wanting:
                if node.record.busy:
                    return False
                node.record.busy = True
            tokens = ledger.index.tokens_of(node)
            record = node.record
            todo = [(h, record.prefix_id, record.tokens, tokens) for h in record.spans.values()]
            for c in record.checkpoints.values():
                todo += [
                    (b, c.checkpoint_id, c.boundary, tokens + c.tail_tokens) for b in c.blocks.values() if b.n_pages
                ]
        try:
            return all(
                self._write_object(node, *item, may_evict)
                for item in todo
                if item[0].disk is None and not item[0].absent
            )
        finally:
            if node is not wanting:
                with ledger.lock:
                    node.record.busy = False
                    ledger.settled.notify_all()

    def _write_object(
        self, node: PrefixNode, holding: Holding, prefix_id: str, boundary: int, tokens: bytes, may_evict: bool
    ) -> bool:
        ledger, disk = self._ledger, self._tiers.disk
        copy = holding.gpu or holding.host
        if disk is None or copy is None:
            return False
        try:
            data, sums = self._bytes_of(node, holding, copy)
        except CorruptObject:
            raise
        except EngineError:  # the tier it lies in does not answer, or there is no memory to pass through
            return False
        guess_bytes = data.numel() + len(tokens) + 8 * len(sums) + 4096
        if not self.reserve(guess_bytes, node, may_evict):
            return False
        header = ObjectHeader(
            fingerprint=ledger.spec.fingerprint, namespace=node.record.namespace, kind=str(holding.kind),
            prefix_id=prefix_id, boundary=boundary, first_page=node.record.first_page, n_pages=holding.n_pages,
            page_class=copy.page_class, content_version=holding.content_version, built_from=holding.built_from,
            codec=copy.meta, written_ns=ledger.clock.wall_ns(), odd_pages=_odd_pages(node.record),
        )  # fmt: skip
        try:
            with ledger.lock:
                name = disk.next_name(header)
            file = self._tiers.write_file(name, header, data, sums, tokens)
        except EngineError:
            with ledger.lock:
                ledger.underway.unreserve_disk(guess_bytes)
            return False
        with ledger.lock:
            ledger.underway.unreserve_disk(guess_bytes, file.file_bytes)
            disk.record(file)
            holding.disk = DiskCopy(file, copy.page_class, 0, holding.n_pages, copy.meta, copy.page_bytes)
            ledger.place(node)
        return True

    def _bytes_of(self, node: PrefixNode, holding: Holding, copy: SlotCopy) -> tuple[torch.Tensor, PageSums]:
        tier = Tier.GPU if copy is holding.gpu else Tier.HOST
        try:
            return self._tiers.gpu_bytes_on_host(copy) if tier is Tier.GPU else self._tiers.host_bytes(copy)
        except CorruptObject:
            with self._ledger.lock:
                quarantine(self._ledger, node, holding, tier, CauseOf(Cause.CORRUPTION, "checksum_mismatch"))
            raise

    def reserve(self, n_bytes: int, wanting: PrefixNode | None, may_evict: bool) -> bool:
        ledger, disk = self._ledger, self._tiers.disk
        if disk is None:
            return False
        cause = CauseOf(Cause.PRESSURE, "disk")
        for _ in range(_TRIES):
            with ledger.lock:
                cap = ledger.caps.disk_bytes
                if (cap is None or disk.used_bytes + n_bytes <= cap) and ledger.underway.reserve_disk(n_bytes):
                    return True
                leaving = disk.leaving_bytes > 0
                if not leaving and not (may_evict and self.shed(wanting, cause)):
                    return False
            self._tiers.sweeper.sweep(wait=True)
            if leaving and self._tiers.sweeper.failed:
                return False  # what was evicted does not leave the device: evicting more would make no room
        return False

    def shed(self, wanting: PrefixNode | None, cause: CauseOf) -> bool:
        """Drop the oldest prefix's disk copies, leaves first so that the disk stays closed under ancestors."""
        ledger = self._ledger

        def may_go(node: PrefixNode) -> bool:
            below = any(child in ledger.orders[Tier.DISK] for child in node.children.values())
            return not below and ledger.may_leave(node) and not _is_ancestor(node, wanting)

        for node in ledger.orders[Tier.DISK].oldest(may_go):
            only_here = [h for h in node.record.holdings() if h.disk is not None and not h.gpu and not h.host]
            if only_here and node.children:
                continue
            if only_here:
                if not ledger.may_give(node, wanting.record.namespace if wanting is not None else ""):
                    continue  # what it has on the GPU is its namespace's guaranteed share
                ledger.remove(node, cause)
            else:
                for holding in node.record.holdings():
                    self._tiers.drop_disk(holding)
                ledger.place(node)
            return True
        return False


def _is_ancestor(node: PrefixNode, of: PrefixNode | None) -> bool:
    walk = of
    while walk is not None:
        if walk is node:
            return True
        walk = walk.parent
    return False


def _odd_pages(record: PrefixRecord) -> tuple[int, ...]:
    return tuple(sorted(page for page in record.odd_pages if record.first_page <= page < record.last_page))
