"""Changing the form of what is held: coding, offloading and moving pages, under live leases.

Each works on one prefix at a time: mark it busy, do the byte work without the lock, then publish under the lock, but
only if nobody leased it meanwhile. Each step is bounded.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass

import numpy as np

from engine.consistency.prefix import CauseOf
from engine.consistency.state import Cause, State
from engine.errors import CodecRefused, CorruptObject, EngineError, OutOfMemory
from engine.memory.arena import Arena, Slots
from engine.memory.holding import Holding, SlotCopy, Tier
from engine.model.objects import ObjectKind
from engine.schedule.damage import quarantine
from engine.schedule.ledger import Ledger, PrefixNode
from engine.schedule.quality import QualityGate, Trial
from engine.schedule.room import Room
from engine.telemetry.ring import NO_SPAN, SpanContext, new_span

SPARSE_RATIO = 0.5
"""Slabs filled less than this are emptied by compaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reformed:
    """What one step did; `refused` is why it did nothing."""

    moved_bytes: int = 0
    refused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What a compaction moved, and what it won: by page class, free bytes over bytes of the slabs it holds."""

    pages: int
    moved_bytes: int
    slabs_freed: int
    fragmentation_before: dict[str, float]
    fragmentation_after: dict[str, float]


@dataclass(slots=True)
class Scrub:
    """One scrub on its way through the disk copies there were when it began."""

    todo: deque[tuple[PrefixNode, Holding]]
    max_bytes: int
    parent: SpanContext
    start_ns: int
    objects: int = 0
    n_bytes: int = 0
    damaged: int = 0
    failure: str = ""

    @property
    def over(self) -> bool:
        return not self.todo or bool(self.failure) or self.n_bytes >= self.max_bytes


@dataclass(slots=True)
class _Recoding:
    """One prefix on its way to another form: `copy` belongs to it until it is published."""

    node: PrefixNode
    holding: Holding
    cause: CauseOf
    start_ns: int
    parent: SpanContext
    copy: SlotCopy | None = None
    trial: Trial | None = None
    refused: str = "unfinished"

    @property
    def result(self) -> Reformed:
        if self.refused or self.copy is None:
            return Reformed(refused=self.refused)
        return Reformed(moved_bytes=self.copy.total_bytes)


class Reformer:
    """Runs on the workers of the queues by form."""

    def __init__(self, ledger: Ledger, room: Room, quality: QualityGate) -> None:
        self._ledger = ledger
        self._tiers = ledger.tiers
        self._room = room
        self._quality = quality

    # -- coding -----------------------------------------------------------------------------------------------------

    def compress(self, prefix_id: str, codec: str, cause: CauseOf, parent: SpanContext = NO_SPAN) -> Reformed:
        """FULL -> COMPRESSED: the history pages in coded form, the native ones freed. What a lossy codec costs is
        measured first when there is a judge, and held to the bounds."""
        ledger = self._ledger
        start_ns = ledger.clock.monotonic_ns()
        with ledger.lock:
            node = ledger.nodes.get(prefix_id)
            refused = self._refuse_recode(node) or self._quality.refuse_unjudged(codec)
            if refused or node is None:
                return Reformed(refused=refused)
            holding = node.record.spans[ObjectKind.COMPRESSED_KV]
            node.record.busy = True
        work = _Recoding(node, holding, cause, start_ns, parent)
        try:
            work.copy = self._recoded(holding, codec)
            work.trial = self._quality.measure(node, work.copy)
            work.refused = ""
        except CorruptObject as error:
            work.refused = error.code
            with ledger.lock:
                quarantine(ledger, node, holding, Tier.GPU, CauseOf(Cause.CORRUPTION, "checksum_mismatch"))
        except (CodecRefused, OutOfMemory) as error:
            work.refused = error.code
        finally:
            with ledger.lock:
                node.record.busy = False
                self._end(work)
                ledger.settled.notify_all()
        return work.result

    def _refuse_recode(self, node: PrefixNode | None) -> str:
        if node is None:
            return "unknown_prefix"
        if node.record.state is not State.FULL:
            return f"state_is_{node.record.state.lower()}"
        holding = node.record.spans.get(ObjectKind.COMPRESSED_KV)
        if holding is None or holding.gpu is None or not self._tiers.materialise:
            return "nothing_to_code"
        if not self._ledger.may_leave(node):
            return "leased"
        return ""

    def _recoded(self, holding: Holding, codec: str) -> SlotCopy:
        """New slots with the pages of a busy prefix in another form."""
        source = holding.gpu
        if source is None:
            raise OutOfMemory("the pages left the GPU before they could be coded")
        data, _ = self._tiers.gpu_bytes_on_host(source)
        kind = ObjectKind.COMPRESSED_KV
        data, meta = self._tiers.codecs[codec].encode(data)
        wanted = self._tiers.page_class(kind, meta)
        slots = self._room.take_gpu(wanted, len(source.slots), CauseOf(Cause.PRESSURE, "recode"))
        copy = self._tiers.new_copy(kind, slots, meta)
        try:
            self._tiers.put(copy, data)
        except BaseException:
            with self._ledger.lock:
                self._ledger.underway.give_back(copy.slots)
            raise
        return copy

    def _end(self, work: _Recoding) -> None:
        """Publish the new form, or give its slots back. Under the lock. Copies below the GPU keep theirs: each copy
        names its own form."""
        ledger, node, copy = self._ledger, work.node, work.copy
        if copy is None:
            return
        if not work.refused:
            work.refused = self._quality.refuse_measured(node, copy, work.trial, work.parent)
        still = node.parent is not None and node.record.spans.get(work.holding.kind) is work.holding
        if not work.refused and (not still or node.record.leases or ledger.graph.in_window):
            work.refused = "leased"
        if work.refused:
            ledger.underway.give_back(copy.slots)
            return
        ledger.underway.landed(copy.slots)
        self._tiers.drop_gpu(work.holding)
        work.holding.gpu = copy
        ledger.graph.changed()
        ledger.place(node)
        ledger.settle(node, work.cause, bytes_moved=copy.total_bytes, start_ns=work.start_ns, parent=work.parent)

    # -- offloading -------------------------------------------------------------------------------------------------

    def offload(self, prefix_id: str, tier: Tier, cause: CauseOf, parent: SpanContext = NO_SPAN) -> Reformed:
        """Move a prefix's objects off the GPU to host or disk."""
        ledger = self._ledger
        with ledger.lock:
            node = ledger.nodes.get(prefix_id)
            if node is None:
                return Reformed(refused="unknown_prefix")
            if not ledger.may_leave(node):
                return Reformed(refused="leased")
            if not _on_gpu(node):
                return Reformed(refused="not_on_gpu")
            node.record.busy = True
            before = self._tiers.gpu.live_bytes
        self._room.offload_busy(node, tier, cause)
        with ledger.lock:
            freed = before - self._tiers.gpu.live_bytes
            kept = node.parent is not None and _on_gpu(node)
        return Reformed(refused="no_room_below") if kept else Reformed(moved_bytes=max(0, freed))

    # -- compaction -------------------------------------------------------------------------------------------------

    def compact(self, max_pages: int, parent: SpanContext = NO_SPAN) -> Compacted:
        """Empty sparse slabs into the holes of fuller ones.

        Leased prefixes stay; at most `max_pages` pages are moved.
        """
        ledger, gpu = self._ledger, self._tiers.gpu
        start_ns = ledger.clock.monotonic_ns()
        pages = moved = 0
        with ledger.lock:
            nodes = list(ledger.nodes.values())
            before = _fragmentation(gpu)
        for node in nodes:
            if pages >= max_pages:
                break
            n, n_bytes = self._compact_node(node, max_pages - pages)
            pages, moved = pages + n, moved + n_bytes
        with ledger.lock:
            slabs = gpu.release_empty_slabs()
            ledger.graph.changed()
            after = _fragmentation(gpu)
        if ledger.ring.enabled:
            attributes = (
                "kvcache.pages", pages, "kvcache.bytes", moved, "kvcache.slabs_freed", slabs,
                "kvcache.fragmentation_before", json.dumps(before), "kvcache.fragmentation_after", json.dumps(after),
            )  # fmt: skip
            now_ns = ledger.clock.monotonic_ns()
            ledger.ring.request("kvcache.compact", new_span(parent), parent, start_ns, now_ns, attributes)
        return Compacted(
            pages=pages, moved_bytes=moved, slabs_freed=slabs, fragmentation_before=before, fragmentation_after=after
        )

    def _compact_node(self, node: PrefixNode, max_pages: int) -> tuple[int, int]:
        """Move a free prefix's pages out of sparse slabs: take holes, copy, swap if still nobody leased it."""
        ledger, gpu = self._ledger, self._tiers.gpu
        with ledger.lock:
            if node.parent is None or not ledger.may_leave(node) or ledger.graph.in_window:
                return 0, 0
            moves = []
            for holding in node.record.holdings():
                if (move := self._choose_moves(holding, max_pages)) is not None:
                    moves.append(move)
                    max_pages -= len(move[1])
            node.record.busy = bool(moves)
        if not moves:
            return 0, 0
        copied = swapped = False
        try:
            if self._tiers.materialise:
                for copy, chosen, fresh in moves:
                    self._tiers.move_pages(copy.page_class, copy.slots[chosen], fresh)
            copied = True
        except OutOfMemory:
            return 0, 0
        finally:
            with ledger.lock:
                node.record.busy = False
                ledger.settled.notify_all()
                swapped = copied and ledger.may_leave(node)
                for copy, chosen, fresh in moves:
                    old = copy.slots[chosen]
                    if not swapped:
                        ledger.underway.give_back(fresh)
                        continue
                    ledger.underway.landed(fresh)
                    slots = copy.slots.copy()
                    slots[chosen] = fresh
                    copy.slots = slots
                    gpu.give(copy.page_class, old)
                if swapped:
                    ledger.place(node)
        if not swapped:
            return 0, 0
        return sum(len(m[1]) for m in moves), sum(len(m[1]) * m[0].page_bytes for m in moves)

    def _choose_moves(self, holding: Holding, max_pages: int) -> tuple[SlotCopy, Slots, Slots] | None:
        """A holding's pages in sparse slabs (as positions), and as many holes elsewhere. Under the lock."""
        copy, gpu = holding.gpu, self._tiers.gpu
        if copy is None or not len(copy.slots):
            return None
        sparse = gpu.sparse_slabs(copy.page_class, SPARSE_RATIO)
        chosen = np.flatnonzero(np.isin(gpu.slab_of(copy.page_class, copy.slots), sparse)).astype(np.int32)[:max_pages]
        fresh = gpu.take_outside(copy.page_class, len(chosen), sparse) if len(chosen) else None
        if fresh is None:
            return None
        self._ledger.underway.book(Tier.GPU, copy.page_class, fresh)
        return copy, chosen, fresh

    # -- scrub ------------------------------------------------------------------------------------------------------

    def begin_scrub(self, max_bytes: int, parent: SpanContext = NO_SPAN) -> Scrub:
        """What a scrub is to read: the disk copies there are now."""
        ledger = self._ledger
        with ledger.lock:
            todo = [(n, h) for n in ledger.nodes.values() for h in n.record.holdings() if h.disk is not None]
            return Scrub(deque(todo), max_bytes, parent, ledger.clock.monotonic_ns())

    def scrub_step(self, scrub: Scrub, step_bytes: int) -> int:
        """Read back and prove the next objects, at least one and until `step_bytes` are read; bytes read.

        Damaged ones are quarantined. A device that fails ends the scrub.
        """
        ledger, read = self._ledger, 0
        while scrub.todo and read < step_bytes and scrub.n_bytes < scrub.max_bytes:
            node, holding = scrub.todo.popleft()
            copy = holding.disk
            if copy is None:
                continue
            try:
                self._tiers.disk_bytes(copy)
            except CorruptObject:
                scrub.damaged += 1
                why = CauseOf(Cause.SCRUB, "checksum_mismatch", scrub.parent.hex_trace, scrub.parent.hex_span)
                with ledger.lock:
                    if holding.disk is copy and node.parent is not None and not node.record.busy:
                        quarantine(ledger, node, holding, Tier.DISK, why)
            except EngineError as error:
                scrub.failure = error.code
                break
            scrub.objects += 1
            scrub.n_bytes += copy.file.file_bytes
            read += copy.file.file_bytes
        self._tiers.sweeper.sweep()
        return read

    def end_scrub(self, scrub: Scrub) -> None:
        """One span for all its steps."""
        ledger, damaged = self._ledger, scrub.damaged
        if ledger.ring.enabled:
            attributes = (
                "kvcache.objects_read", scrub.objects, "kvcache.bytes", scrub.n_bytes, "kvcache.damaged", damaged,
            )  # fmt: skip
            now_ns = ledger.clock.monotonic_ns()
            failed = f"{damaged} damaged objects" if damaged else ""
            ledger.ring.request(
                "kvcache.scrub", new_span(scrub.parent), scrub.parent, scrub.start_ns, now_ns, attributes, failed
            )


def _fragmentation(arena: Arena) -> dict[str, float]:
    return {name: round(u.fragmentation_ratio, 6) for name, u in arena.usage().items() if u.slabs}


def _on_gpu(node: PrefixNode) -> bool:
    """Some object with bytes is there; what is empty by layout is nowhere."""
    return any(h.gpu is not None and h.n_pages for h in node.record.holdings())
