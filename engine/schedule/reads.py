"""What a lease reads, and how it ends: pointers are compared before a copy and after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.consistency.graph import PageTable
from engine.consistency.lease import Lease
from engine.errors import ConfigError, CorruptObject, StalePointer
from engine.memory.loader import Loader
from engine.memory.paged import page_offsets
from engine.model.objects import ObjectKind
from engine.schedule.ledger import Ledger
from engine.schedule.recovery import Recovery

if TYPE_CHECKING:
    import torch

    from engine.memory.state import LoadedState


class LeaseReads:
    """The `LeaseSource` (consistency/lease.py) of every lease of an engine."""

    def __init__(self, ledger: Ledger, recovery: Recovery) -> None:
        self._ledger = ledger
        self._tiers = ledger.tiers
        self._loader = Loader(ledger.tiers)
        self._recovery = recovery

    def load(self, lease: Lease) -> LoadedState:
        """Called by `Lease.load`. Pointers are compared before the copy and after it: what was read was never freed."""
        with self._ledger.lock:
            self._ledger.leases.check(lease)
            self._check_pointers(lease)
            lease.reading += 1
        try:
            page_tokens, spans, blocks = self._ledger.spec.page_tokens, dict(lease.spans), dict(lease.blocks)
            loaded = self._loader.load(lease.usable_tokens, lease.replay_tokens, page_tokens, spans, blocks)
        except CorruptObject:
            with self._ledger.lock:
                self._check_pointers(lease)  # freed under the copy: stale, not corrupt
            self._recovery.prove_in_memory(lease.node)
            raise
        finally:
            with self._ledger.lock:
                lease.reading -= 1
        with self._ledger.lock:
            self._check_pointers(lease)
        return loaded

    def page_table(self, lease: Lease, kind: ObjectKind) -> torch.Tensor:
        """Called by `Lease.page_table`: byte offsets in the GPU buffer, int64 [pages]."""
        with self._ledger.lock:
            offsets = self._page_offsets(lease, kind)
        return offsets.to(self._tiers.gpu.buffer.device)

    def fill_page_table(self, lease: Lease, kind: ObjectKind, table: PageTable) -> int:
        """Called by `Lease.fill_page_table`. As in `load`, pointers are compared before the copy and after it."""
        with self._ledger.lock:
            offsets = self._page_offsets(lease, kind)
            lease.reading += 1
        try:
            table.fill(offsets)
        finally:
            with self._ledger.lock:
                lease.reading -= 1
        try:
            with self._ledger.lock:
                self._check_pointers(lease)
        except StalePointer:  # a page was found damaged meanwhile
            table.fill(offsets[:0])
            raise
        return len(offsets)

    def _page_offsets(self, lease: Lease, kind: ObjectKind) -> torch.Tensor:
        """Under the lock."""
        self._ledger.leases.check(lease)
        self._check_pointers(lease)
        known = self._ledger.layouts.span_kinds
        if kind not in known:
            raise ConfigError(f"{kind!s} has no pages in this model; kinds with pages: {', '.join(known) or 'none'}")
        return page_offsets(self._tiers.gpu, lease.spans.get(kind, []))

    def release(self, lease: Lease) -> None:
        self._tiers.stream.follow()  # kernels over a page table may still be at it
        with self._ledger.lock:
            self._ledger.leases.release(lease)

    def _check_pointers(self, lease: Lease) -> None:
        gpu = self._tiers.gpu
        for bounds in lease.spans.values():
            for bound in bounds:
                gpu.check_current(bound.pointer)
        for bound in lease.blocks.values():
            gpu.check_current(bound.pointer)
