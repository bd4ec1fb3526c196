"""The books: which prefixes exist, in which state, who is older, what everything counts up to.

Owns the engine lock, the index, the orders of leaving, and every transition. Does no byte work.

Lock order: `Ledger.lock` first, then nothing. It is never held during a copy, a checksum, I/O, a callback or an export.
Publishing: bytes, then checksums, then the index entry. Unpublishing: the entry first, then leases drain, then bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import partial
from threading import Condition, RLock

from engine.clock import Clock
from engine.consistency.admission import Caps, Usage
from engine.consistency.eviction import EvictionRule, OldestFirst
from engine.consistency.graph import GraphGuard
from engine.consistency.lease import LeaseTable
from engine.consistency.lost import LostMemory
from engine.consistency.namespaces import NamespaceBooks, Shares
from engine.consistency.orders import TailsFirst
from engine.consistency.pins import PinBooks
from engine.consistency.prefix import CauseOf, PrefixRecord
from engine.consistency.state import Cause, State
from engine.consistency.stretch import dissolve, joined
from engine.index.node import Node
from engine.index.radix import RadixIndex
from engine.index.space import is_approximate, namespace_of, space_of
from engine.memory.holding import Tier
from engine.memory.tiers import Tiers
from engine.model.objects import PrefixLayouts
from engine.model.spec import ModelSpec
from engine.schedule.checkpoints import CheckpointBooks
from engine.schedule.counters import DAMAGE_KEPT, Counters, Damage
from engine.schedule.losses import Losses
from engine.schedule.underway import Underway
from engine.telemetry.ring import NO_SPAN, Ring, SpanContext, new_span

PrefixNode = Node[PrefixRecord]


class Ledger:
    """Guarded by `lock`; every method but `__init__` is called with it held unless it says otherwise."""

    def __init__(
        self,
        spec: ModelSpec,
        layouts: PrefixLayouts,
        tiers: Tiers,
        ring: Ring,
        clock: Clock,
        caps: Caps,
        lease_s: float,
        pin_budget_ratio: float,
        lost_memory_bytes: int,
    ) -> None:
        self.lock = RLock()
        self.settled = Condition(self.lock)  # notified when a busy prefix is free again
        self.spec = spec
        self.layouts = layouts
        self.tiers = tiers
        self.ring = ring
        self.clock = clock
        self.caps = caps
        self.graph = GraphGuard(
            self.lock, freed_slots=lambda: tiers.gpu.freed_slots, reads_given=lambda: tiers.stream.follow()
        )
        self.leases = LeaseTable(clock, lease_s)
        self.underway = Underway(tiers)
        self.index: RadixIndex[PrefixRecord] = RadixIndex(spec.page_tokens, spec.fingerprint, self._root_record)
        self.losses = Losses(LostMemory(spec.page_tokens, lost_memory_bytes), self.index)
        self.nodes: dict[str, PrefixNode] = {}
        self.orders: dict[Tier, TailsFirst[PrefixNode]] = {
            tier: TailsFirst(_parent_of, _children_of, _namespace_of_node) for tier in Tier
        }
        self.eviction: EvictionRule = OldestFirst()
        self.namespaces = NamespaceBooks()
        self.pins = PinBooks(tiers.gpu.total_bytes, pin_budget_ratio)
        self.checkpoints = CheckpointBooks(tiers, self.pins)
        self.counters = Counters()
        self.damages: deque[Damage] = deque(maxlen=DAMAGE_KEPT)  # the newest last
        self.states: dict[State, int] = dict.fromkeys(State, 0)
        self._last_life = 0
        self._content = clock.wall_ns()

    # -- identity ---------------------------------------------------------------------------------------------------

    def _root_record(self, space: str) -> PrefixRecord:
        return PrefixRecord("", "", namespace_of(space), 0, 0, 0, self.spec.page_tokens, {})

    def next_life(self) -> int:
        """The wall-clock nanosecond of a birth, made unique and increasing within this engine."""
        self._last_life = max(self._last_life + 1, self.clock.wall_ns())
        return self._last_life

    def next_content(self) -> int:
        self._content += 1
        return self._content

    def content_seen(self, version: int) -> None:
        """An adopted object has this content version: no new content may be given it again."""
        self._content = max(self._content, version)

    # -- transitions ------------------------------------------------------------------------------------------------

    def move(
        self,
        node: PrefixNode,
        after: State,
        cause: CauseOf,
        *,
        bytes_moved: int = 0,
        start_ns: int = 0,
        parent: SpanContext = NO_SPAN,
    ) -> None:
        """One edge of one prefix's state machine: version + 1, one span. `IllegalTransition` changes nothing."""
        record = node.record
        now_ns = self.clock.monotonic_ns()
        before = record.state
        step = record.move(after, cause, bytes_moved=bytes_moved, wall_ns=self.clock.wall_ns(), monotonic_ns=now_ns)
        self.states[after] += 1
        self.states[before] -= 1
        if before is State.NEW:
            self.namespaces.add_prefixes(record.namespace, 1)
        elif after is State.EVICTED:
            self.namespaces.add_prefixes(record.namespace, -1)
        self.counters.transitions += 1
        if self.ring.enabled:
            self.ring.transition(new_span(parent), parent, start_ns or now_ns, step)

    def settle(
        self,
        node: PrefixNode,
        cause: CauseOf,
        *,
        bytes_moved: int = 0,
        start_ns: int = 0,
        parent: SpanContext = NO_SPAN,
        always: bool = False,
    ) -> None:
        """Bring the state in line with where the objects are. `always` records the step even if the state stays."""
        record = node.record
        record.refresh()
        natural = record.natural_state
        if record.state is State.QUARANTINED and cause.cause is not Cause.COMMIT:
            return  # only fresh bytes lift a quarantine; its other objects may leave meanwhile
        if natural is not record.state or (always and natural is State.PARTIAL_OFFLOAD):
            self.move(node, natural, cause, bytes_moved=bytes_moved, start_ns=start_ns, parent=parent)

    # -- growth -----------------------------------------------------------------------------------------------------

    def append(self, space: str, parent: PrefixNode | None, edge: bytes) -> PrefixNode:
        """A new prefix in state NEW; the caller hangs its holdings on it and moves it on, in the same locked step."""
        namespace, approximate = namespace_of(space), is_approximate(space)

        def make(prefix_id: str, parent_id: str, first_page: int) -> PrefixRecord:
            n_pages = len(edge) // self.index.page_bytes
            return PrefixRecord(
                prefix_id, parent_id, namespace, self.next_life(), first_page, n_pages, self.spec.page_tokens, {},
                approximate=approximate,
            )  # fmt: skip

        node = self.index.append(space, parent, edge, make)
        joined(node)
        self.nodes[node.record.prefix_id] = node
        self.states[State.NEW] += 1
        return node

    def split(self, node: PrefixNode, pages: int, parent: SpanContext = NO_SPAN) -> PrefixNode:
        """Cut a prefix that is not busy in two by page range; nothing is copied. The lower half stays the prefix it
        was."""
        lower = node.record
        upper = self.index.split(node, pages, partial(lower.cut, pages, self.next_life()))
        joined(upper)
        record = upper.record
        self.nodes[record.prefix_id] = upper
        self.states[State.NEW] += 1
        record.refresh()
        lower.refresh()
        for order in self.orders.values():
            order.insert_above(upper, node)
        self.place(upper)
        self.place(node)
        after = record.natural_state
        if lower.state is State.QUARANTINED and any(h.absent for h in record.spans.values()):
            after = State.QUARANTINED
        self.move(upper, after, CauseOf(Cause.SPLIT), parent=parent)
        return upper

    # -- orders -----------------------------------------------------------------------------------------------------

    def touch(self, node: PrefixNode | None, now_ns: int) -> None:
        """A path was used: to touch its end is to touch all of it."""
        if node is not None:
            node.record.served_ns = now_ns
            for order in self.orders.values():
                order.touch_path(node)

    def place(self, node: PrefixNode) -> None:
        """Put a prefix into exactly the orders of the tiers it has bytes in, and its bytes into the books. To be called
        in the same locked step as whatever changes its holdings."""
        record = node.record
        if record.stretch is not None:
            record.stretch.proof = None
        gpu_bytes, host, disk = 0, False, False
        for holding in record.holdings():
            if not holding.n_pages:  # empty by layout: no bytes that could leave
                continue
            if (copy := holding.gpu) is not None:
                gpu_bytes += copy.page_bytes * len(copy.slots)
            host = host or holding.host is not None
            disk = disk or holding.disk is not None
        gpu = gpu_bytes > 0
        if record.busy:
            gpu_bytes += record.arriving_bytes
        else:
            record.arriving_bytes = 0
        if gpu_bytes != record.gpu_bytes:
            self.namespaces.add_bytes(record.namespace, gpu_bytes - record.gpu_bytes)
            record.gpu_bytes = gpu_bytes
        if record.pinned_until_ns:
            self.pins.recount(record)
        for tier, there in ((Tier.GPU, gpu), (Tier.HOST, host), (Tier.DISK, disk)):
            order = self.orders[tier]
            if not there:
                order.discard(node)
            elif node not in order:
                order.touch(node)

    # -- pins and shares ---------------------------------------------------------------------------------------------

    def unpin_run_out(self) -> None:
        """Pins past their time are no more: each is told by a transition, so that whoever watches sees it at once."""
        for record in self.pins.run_out(self.clock.wall_ns()) if len(self.pins) else ():
            if record.state is not State.FULL_RESTORE:  # a restore's end will say it
                self.move(self.nodes[record.prefix_id], record.state, CauseOf(Cause.UNPIN, "pin_ran_out"))

    def set_shares(self, shares: Shares) -> None:
        """Other caps by namespace from now on: each gets its own order of leaving."""
        if shares != self.namespaces.shares:
            self.namespaces.shares = shares
            self.checkpoints.order.separate(shares.caps)
            for order in self.orders.values():
                order.separate(shares.caps)

    # -- leaving ----------------------------------------------------------------------------------------------------

    def may_leave(self, node: PrefixNode) -> bool:
        """Not leased, not being worked on, not pinned by an operator, and no graph window is open."""
        record = node.record
        if record.leases or record.busy or self.graph.in_window:
            return False
        return record.pinned_until_ns <= self.clock.wall_ns()

    def may_give(self, node: PrefixNode, namespace: str, above: frozenset[str] | None = None) -> bool:
        """Whether what the prefix has on the GPU may be lost for a namespace (empty: nobody's)."""
        books, record = self.namespaces, node.record
        above = books.above() if above is None else above
        return books.may_give(record.namespace, record.gpu_bytes, namespace, above)

    def remove(self, node: PrefixNode, cause: CauseOf, *, parent: SpanContext = NO_SPAN) -> int:
        """Evict a leaf altogether: the entry first, then its bytes. Returns bytes freed in all tiers."""
        record = node.record
        start_ns = self.clock.monotonic_ns()
        for order in self.orders.values():
            order.discard(node)
        self.unhang(node)
        space = space_of(record.namespace, approximate=record.approximate)
        self.losses.left(space, record.parent_id, node.edge, cause, record.prefix_id)
        freed = 0
        for checkpoint_id in list(record.checkpoints):
            freed += self.checkpoints.drop(node, checkpoint_id)
        for holding in record.spans.values():
            freed += self.tiers.drop_all(holding)
        record.spans = {}
        self.namespaces.add_bytes(record.namespace, -record.gpu_bytes)
        record.gpu_bytes = 0
        self.pins.leave(record)
        self.move(node, State.EVICTED, cause, bytes_moved=freed, start_ns=start_ns, parent=parent)
        self.counters.count_eviction(cause, "prefix")
        if self.ring.enabled:
            self.ring.request(
                "kvcache.evict", new_span(parent), parent, start_ns, self.clock.monotonic_ns(),
                ("kvcache.prefix.id", record.prefix_id, "kvcache.namespace", record.namespace, "kvcache.cause",
                 str(cause.cause), "kvcache.tokens", record.tokens, "kvcache.bytes", freed),
            )  # fmt: skip
        return freed

    def unhang(self, node: PrefixNode) -> None:
        """Take a leaf out of the tree; what it holds is the caller's."""
        dissolve(node)
        self.index.remove(node)
        del self.nodes[node.record.prefix_id]

    def count_dropped(self, reason: str, n: int) -> None:
        """Count checkpoints that a commit had and that were not kept. Takes the lock itself."""
        if n:
            with self.lock:
                self.counters.checkpoints_dropped[reason] = self.counters.checkpoints_dropped.get(reason, 0) + n

    def usage(self) -> Usage:
        tiers = self.tiers
        return Usage(
            prefixes=len(self.nodes),
            gpu_bytes=tiers.gpu.live_bytes,
            host_bytes=tiers.host.live_bytes if tiers.host else 0,
            disk_bytes=tiers.disk.used_bytes if tiers.disk else 0,
        )


def _parent_of(node: PrefixNode) -> PrefixNode | None:
    return node.parent


def _children_of(node: PrefixNode) -> Iterable[PrefixNode]:
    return node.children.values()


def _namespace_of_node(node: PrefixNode) -> str:
    return node.record.namespace
