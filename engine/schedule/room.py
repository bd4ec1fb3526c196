"""Making room: who leaves the GPU, the host and the disk when something new must fit.

Tail before head and leaves before parents (the orders see to it), never what is leased, pinned or being worked on.
A prefix leaves the GPU by the cheapest way that keeps it: it already has a copy below; the host takes it; the disk
takes it; else it is evicted. Checkpoints have a budget of their own and leave before span objects do.
"""

from __future__ import annotations

from contextlib import suppress

from engine.config import EngineConfig
from engine.consistency.admission import shortfall
from engine.consistency.prefix import CauseOf
from engine.consistency.state import Cause
from engine.errors import CorruptObject, EngineError, OutOfMemory
from engine.memory.arena import Slots
from engine.memory.holding import Holding, SlotCopy, Tier
from engine.model.objects import BOUNDARY_KINDS
from engine.schedule.damage import quarantine
from engine.schedule.diskroom import DiskRoom
from engine.schedule.leaving import FRUITLESS, For, Leaving, has_copies_below
from engine.schedule.ledger import Ledger, PrefixNode

_BOUNDARY_CLASSES = frozenset(str(kind) for kind in BOUNDARY_KINDS)
_TRIES = 100_000
"""A bound on one search for room; each try makes one prefix smaller, so it is never reached in practice."""


class Room:
    """Called without the engine lock; takes it step by step, so that a long search blocks nobody for long."""

    def __init__(self, ledger: Ledger, config: EngineConfig) -> None:
        self._ledger = ledger
        self._tiers = ledger.tiers
        self._leaving = Leaving(ledger)
        self.disk = DiskRoom(ledger)
        self.set_checkpoint_budget(config.checkpoint_budget_ratio)

    def set_checkpoint_budget(self, ratio: float) -> None:
        """The share of the GPU tier that checkpoints may fill, from now on."""
        self.checkpoint_budget_ratio = ratio
        self._budget_bytes = int(self._tiers.gpu.total_bytes * ratio)

    # -- GPU --------------------------------------------------------------------------------------------------------

    def take_gpu(
        self, page_class: str, n: int, cause: CauseOf, *, namespace: str = "", into: PrefixNode | None = None
    ) -> Slots:
        """`n` slots for a namespace, evicting as needed. Raises `OutOfMemory` when everything that could leave is
        leased, pinned or another's share.

        `into` is the busy prefix that a restore takes them for: they are booked on it, and its namespace keeps its
        maximum. A commit has booked them before (`keep_caps`).
        """
        ledger = self._ledger
        boundary_object = page_class in _BOUNDARY_CLASSES
        if into is not None:
            self._book_arrival(page_class, n, into, boundary_object)
            namespace = into.record.namespace
        tried: set[PrefixNode] = set()
        for _ in range(_TRIES):
            with ledger.lock:
                if self._within_cap(page_class, n) and (not boundary_object or self._within_budget(page_class, n)):
                    slots = ledger.underway.take(Tier.GPU, page_class, n)
                    if slots is not None:
                        return slots
                whom = For(namespace)
                if ledger.graph.in_window:
                    raise OutOfMemory("no room, and a CUDA graph window is open: nothing may move until its safe point")
                if boundary_object and self._shed_checkpoint(cause, whom):
                    continue
                if boundary_object and not self._within_budget(page_class, n):
                    raise OutOfMemory(f"the checkpoint budget of {self._budget_bytes:,} bytes is leased or pinned")
                node, copying = self._begin_shed(cause, whom, tried)
            if node is None:
                raise OutOfMemory(
                    f"{n} {page_class} slots do not fit the GPU tier: all is leased, pinned, another namespace's "
                    "guaranteed share or cannot go lower"
                )
            if copying:
                self._finish_shed(node, cause, whom)
                tried.add(node)
        raise OutOfMemory(f"no room for {n} {page_class} slots after {_TRIES:,} evictions")

    def keep_caps(self, namespace: str, new_prefixes: int, new_gpu_bytes: int) -> bool:
        """Evict until the new prefixes and bytes stay within the admission caps, in total and of the namespace, and
        book them on it: the caller books them off again once they are held or given up. False: they cannot be
        kept, and nothing is booked."""
        ledger = self._ledger
        if ledger.caps.prefixes is None and ledger.caps.gpu_bytes is None and not ledger.namespaces.capped:
            with ledger.lock:
                ledger.namespaces.book(namespace, new_prefixes, new_gpu_bytes)
            return True
        if not self._make_way(CauseOf(Cause.CAP), For(namespace), new_prefixes, new_gpu_bytes):
            return False
        return self.book(namespace, new_prefixes, new_gpu_bytes)

    def book(self, namespace: str, new_prefixes: int, new_gpu_bytes: int, *, checkpoint: bool = False) -> bool:
        """`keep_caps` for the namespace's own caps alone: its own oldest leave, of a `checkpoint` its checkpoints
        first."""
        whom = For(namespace, own_only=True)
        return self._make_way(CauseOf(Cause.CAP, "namespace"), whom, new_prefixes, new_gpu_bytes, checkpoint)

    def _make_way(self, cause: CauseOf, whom: For, prefixes: int, gpu_bytes: int, checkpoint: bool = False) -> bool:
        ledger = self._ledger
        tried: set[PrefixNode] = set()
        for _ in range(_TRIES):
            with ledger.lock:
                if whom.own_only:
                    short = ledger.namespaces.shortfall(whom.namespace, prefixes, gpu_bytes)
                else:
                    short = shortfall(ledger.caps, ledger.usage(), prefixes, gpu_bytes)
                if short.none:
                    if whom.own_only:
                        ledger.namespaces.book(whom.namespace, prefixes, gpu_bytes)
                    return True
                if short.prefixes > 0:
                    leaf = self._leaving.next_leaf(whom)
                    if leaf is None:
                        return False
                    ledger.remove(leaf, cause)
                    continue
                if checkpoint and self._shed_checkpoint(cause, whom):
                    continue
                node, copying = self._begin_shed(cause, whom, tried)
            if node is None:
                return False
            if copying:
                self._finish_shed(node, cause, whom)
                tried.add(node)
        return False

    def _book_arrival(self, page_class: str, n: int, node: PrefixNode, checkpoint: bool) -> None:
        """Book slots on the busy prefix they are taken for; `Ledger.place` corrects it once it is busy no more."""
        n_bytes = n * self._tiers.gpu.slot_bytes(page_class)
        namespace = node.record.namespace
        if not self.book(namespace, 0, n_bytes, checkpoint=checkpoint):
            raise OutOfMemory(f"namespace {namespace!r} is at its maximum, and all of it is leased or pinned")
        with self._ledger.lock:
            node.record.arriving_bytes += n_bytes
            node.record.gpu_bytes += n_bytes

    def keep_own_limits(self) -> None:
        """Let every namespace, and the checkpoints, leave what their caps and budget no longer allow."""
        ledger = self._ledger
        for namespace in list(ledger.namespaces.shares.caps):
            self.book(namespace, 0, 0)
        cause = CauseOf(Cause.CAP, "checkpoint_budget")
        for _ in range(_TRIES):
            with ledger.lock:
                if ledger.checkpoints.gpu_bytes <= self._budget_bytes or not self._shed_checkpoint(cause, For()):
                    return

    def trim_below(self) -> None:
        """Let host and disk leave what their caps, or a smaller quota than the last start's, no longer allow."""
        if self._tiers.host is not None:
            self._take_host(next(iter(self._tiers.host.page_classes)), 0, None)  # none of any class: caps alone count
        self.disk.reserve(0, None, may_evict=True)

    def _within_cap(self, page_class: str, n: int) -> bool:
        cap, gpu = self._ledger.caps.gpu_bytes, self._tiers.gpu
        return cap is None or gpu.live_bytes + n * gpu.slot_bytes(page_class) <= cap

    def _within_budget(self, page_class: str, n: int) -> bool:
        n_bytes = n * self._tiers.gpu.slot_bytes(page_class)
        held_bytes = self._ledger.checkpoints.gpu_bytes + self._ledger.underway.checkpoint_bytes
        return held_bytes + n_bytes <= self._budget_bytes

    def _shed_checkpoint(self, cause: CauseOf, whom: For) -> bool:
        """Drop the oldest checkpoint's GPU blocks; altogether when it has no copy below. Under the lock."""
        ledger = self._ledger
        oldest = self._leaving.next_checkpoint(whom)
        if oldest is None:
            return False
        node, checkpoint_id = oldest
        checkpoint = node.record.checkpoints[checkpoint_id]
        blocks = [b for b in checkpoint.blocks.values() if b.gpu is not None and len(b.gpu.slots)]
        if all(b.below for b in blocks):
            moved = ledger.checkpoints.leave_gpu(node, checkpoint_id)
            ledger.settle(node, cause, bytes_moved=moved, always=True)
        else:
            ledger.checkpoints.drop(node, checkpoint_id)
            ledger.settle(node, cause)
        for block in blocks:
            ledger.counters.count_eviction(cause, str(block.kind))
        ledger.place(node)
        return True

    def _begin_shed(self, cause: CauseOf, whom: For, tried: set[PrefixNode]) -> tuple[PrefixNode | None, bool]:
        """Let the next prefix leave the GPU. Done at once if no bytes move; else it is marked busy and returned with
        True. One that was `tried` and stayed (its children must go first) is not asked again. Under the lock."""
        ledger = self._ledger
        node = self._leaving.next_node(whom, tried)
        if node is None:
            return None, False
        if node.record.approximate:
            ledger.remove(node, cause)
        elif has_copies_below(node):
            self._leave_gpu(node, cause)
        elif self._tiers.materialise and (self._tiers.host is not None or self._tiers.disk is not None):
            node.record.busy = True
            return node, True
        else:
            ledger.remove(node, cause)
        return node, False

    def _leave_gpu(self, node: PrefixNode, cause: CauseOf, start_ns: int = 0) -> int:
        """Free the GPU copies of everything that has a copy below. Under the lock."""
        ledger = self._ledger
        moved = 0
        for holding in node.record.spans.values():
            if holding.below:
                moved += self._tiers.drop_gpu(holding)
        for checkpoint_id in node.record.checkpoints:
            moved += ledger.checkpoints.leave_gpu(node, checkpoint_id)
        ledger.place(node)
        ledger.settle(node, cause, bytes_moved=moved, start_ns=start_ns, always=True)
        return moved

    def offload_busy(self, node: PrefixNode, tier: Tier, cause: CauseOf) -> None:
        """An operator's or a policy's offload of a prefix the caller marked busy; it is kept where it is if `tier`
        does not take it."""
        start_ns = self._ledger.clock.monotonic_ns()
        if self._copied_down(node, (tier,)):
            with self._ledger.lock:
                if self._ledger.may_leave(node) and node.parent is not None:
                    self._leave_gpu(node, cause, start_ns)

    def _copied_down(self, node: PrefixNode, tiers: tuple[Tier, ...]) -> bool:
        """Copy a busy prefix to the first tier that takes it, and end its being busy."""
        ledger = self._ledger
        try:
            return any(self._copy_down(node, tier) for tier in tiers)
        except CorruptObject:  # quarantined where it was found
            return False
        finally:
            with ledger.lock:
                node.record.busy = False
                ledger.settled.notify_all()

    def _finish_shed(self, node: PrefixNode, cause: CauseOf, whom: For) -> None:
        """Copy a busy prefix below the GPU and free its GPU copies; evict it if nothing below takes it."""
        ledger = self._ledger
        start_ns = ledger.clock.monotonic_ns()
        kept = self._copied_down(node, (Tier.HOST, Tier.DISK))
        with ledger.lock:
            if not self._leaving.may_still_leave(node, whom):
                return
            if kept:
                self._leave_gpu(node, cause, start_ns)
            elif not node.children:
                ledger.remove(node, cause)
        self._tiers.sweeper.sweep()

    # -- downwards --------------------------------------------------------------------------------------------------

    def _copy_down(self, node: PrefixNode, tier: Tier) -> bool:
        """Give every GPU object of a busy prefix a copy in `tier`. False: no room there, or the tier failed."""
        if tier is Tier.HOST:
            if self._tiers.host is None:
                return False
            with self._ledger.lock:  # a commit may hang another checkpoint on it meanwhile
                todo = [h for h in node.record.holdings() if h.gpu is not None and not h.below and h.n_pages]
            return all(self._to_host(h, node) for h in todo)
        return self.disk.write(node)

    def _to_host(self, holding: Holding, node: PrefixNode) -> bool:
        source = holding.gpu
        if source is None:
            return True
        slots = self._take_host(source.page_class, len(source.slots), node)
        if slots is None:
            return False
        copy = SlotCopy(source.page_class, source.page_bytes, slots, source.meta, None)
        try:
            data, copy.sums = self._tiers.gpu_bytes_on_host(source)
            self._tiers.fill_host(copy, data)
        except BaseException as error:
            with self._ledger.lock:
                self._ledger.underway.give_back(copy.slots)
                if isinstance(error, CorruptObject):
                    quarantine(self._ledger, node, holding, Tier.GPU, CauseOf(Cause.CORRUPTION, "checksum_mismatch"))
            if isinstance(error, CorruptObject) or not isinstance(error, EngineError):
                raise
            return False
        with self._ledger.lock:
            self._ledger.underway.landed(copy.slots)
            holding.host = copy
            self._ledger.place(node)
        return True

    def _take_host(self, page_class: str, n: int, wanting: PrefixNode | None) -> Slots | None:
        ledger, host = self._ledger, self._tiers.host
        if host is None:
            return None
        need_bytes = n * host.slot_bytes(page_class)
        cause = CauseOf(Cause.PRESSURE, "host")
        tried: set[PrefixNode] = set()
        for _ in range(_TRIES):
            with ledger.lock:
                cap = ledger.caps.host_bytes
                if cap is None or host.live_bytes + need_bytes <= cap:
                    slots = ledger.underway.take(Tier.HOST, page_class, n)
                    if slots is not None:
                        return slots
                node = self._next_to_leave_host(wanting, cause, tried)
            if node is None:
                return None
            if node.record.busy:
                self._spill(node, cause, wanting)
                tried.add(node)
        return None

    def _next_to_leave_host(
        self, wanting: PrefixNode | None, cause: CauseOf, tried: set[PrefixNode]
    ) -> PrefixNode | None:
        """The next prefix off the host: at once if it has other copies, else marked busy to be written. Locked."""
        ledger = self._ledger
        for node in ledger.orders[Tier.HOST].oldest(lambda n: n is not wanting and ledger.may_leave(n)):
            if len(tried) > FRUITLESS:
                break
            if node in tried:
                continue
            only_here = [h for h in node.record.holdings() if h.host is not None and not h.gpu and not h.disk]
            if not only_here:
                self._leave_host(node, cause)
                return node
            if self._tiers.disk is not None:
                node.record.busy = True
                return node
            if not node.children and ledger.may_give(node, _namespace_of(wanting)):
                ledger.remove(node, cause)
                return node
        return None

    def _leave_host(self, node: PrefixNode, cause: CauseOf) -> None:
        moved = sum(self._tiers.drop_host(h) for h in node.record.holdings() if h.gpu or h.disk)
        self._ledger.place(node)
        self._ledger.settle(node, cause, bytes_moved=moved, always=True)

    def _spill(self, node: PrefixNode, cause: CauseOf, wanting: PrefixNode | None) -> None:
        """Write a busy prefix from the host to disk, then free its host copies; evict it if the disk refuses."""
        ledger = self._ledger
        written = False
        try:
            with suppress(CorruptObject):
                written = self.disk.write(node)
        finally:
            with ledger.lock:
                node.record.busy = False
                ledger.settled.notify_all()
        with ledger.lock:
            if node.parent is None or not ledger.may_leave(node):
                return
            if written:
                self._leave_host(node, cause)
            elif not node.children and ledger.may_give(node, _namespace_of(wanting)):
                ledger.remove(node, cause)


def _namespace_of(node: PrefixNode | None) -> str:
    return node.record.namespace if node is not None else ""
