"""Bringing objects back to the GPU: read whole, proven, mapped; or a defined state with a reason.

A restore pins its path, marks what it restores busy, and moves each prefix PARTIAL_OFFLOAD -> FULL_RESTORE -> FULL (or
COMPRESSED; or back, when it failed or only part was wanted; or QUARANTINED, when bytes were damaged).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.clock import NS_PER_S
from engine.consistency.lease import pin_path, unpin_path
from engine.consistency.prefix import CauseOf
from engine.consistency.state import Cause, State
from engine.errors import CorruptObject, EngineError, OutOfMemory
from engine.memory.holding import DiskCopy, Holding, SlotCopy, Tier
from engine.memory.landing import Landing
from engine.model.objects import BOUNDARY_KINDS, ObjectKind
from engine.schedule.damage import quarantine
from engine.schedule.ledger import Ledger, PrefixNode
from engine.schedule.queues import Form
from engine.schedule.room import Room
from engine.telemetry.ring import NO_SPAN, SpanContext, new_span

LONGEST_WAIT_S = 1e6  # "for ever" (inf) is a deadline too, and no integer


@dataclass(slots=True, eq=False)
class RestoreJob:
    """Prefixes from the top down, and of the last one which checkpoint's blocks. `late`: nobody waits any more."""

    steps: list[PrefixNode]
    target: PrefixNode
    checkpoint_id: str | None  # the checkpoint wanted at `target`; None: span objects only
    cause: CauseOf
    parent: SpanContext
    deadline_ns: int
    late: bool = False
    restored_bytes: int = 0
    failure: str = ""
    all_checkpoints: bool = False

    @property
    def form(self) -> Form:
        """The queue it belongs to, by what is missing: history pages outweigh indexer pages, those a window or tail.

        Short work (a window) then never waits behind long work (history from disk).
        """
        missing = {kind for node in self.steps for kind, h in node.record.spans.items() if h.gpu is None}
        if ObjectKind.COMPRESSED_KV in missing:
            return Form.OFFLOADED
        return Form.INDEXED if missing else Form.WINDOWED


@dataclass(slots=True)
class _Arrived:
    """One object's new GPU copy, not yet in the books."""

    holding: Holding
    copy: SlotCopy
    source: Tier


@dataclass(slots=True)
class _Outcome:
    arrived: list[_Arrived] = field(default_factory=list)
    moved_bytes: int = 0
    tier: Tier = Tier.HOST
    failure: str = ""
    broken: Holding | None = None
    broken_tier: Tier = Tier.DISK


class Recovery:
    """`prepare` under the engine lock, `run` on the queue's worker."""

    def __init__(self, ledger: Ledger, room: Room) -> None:
        self._ledger = ledger
        self._tiers = ledger.tiers
        self._room = room

    def prepare(self, job: RestoreJob) -> None:
        """Pin, mark and move. Under the lock; every step must be free (not busy)."""
        pin_path(job.target)
        for node in job.steps:
            node.record.busy = True
            if node.record.state is State.PARTIAL_OFFLOAD:
                self._ledger.move(node, State.FULL_RESTORE, job.cause, parent=job.parent)

    def run(self, job: RestoreJob) -> RestoreJob:
        """Restore the steps in order; the first failure stops the rest. Never raises for a bad object or tier; whatever
        else is raised, no mark and no pin of the job stays behind."""
        left = list(job.steps)
        try:
            while left:
                self._restore_node(left.pop(0), job)
        finally:
            for node in left:  # with the failure set this only undoes their marks
                self._restore_node(node, job)
            with self._ledger.lock:
                unpin_path(job.target)
                self._ledger.settled.notify_all()
        self._tiers.sweeper.sweep()
        return job

    def _restore_node(self, node: PrefixNode, job: RestoreJob) -> None:
        start_ns = self._ledger.clock.monotonic_ns()
        if job.failure:
            self._finish_node(node, job, _Outcome(failure="not_reached"), start_ns)
            return
        outcome = _Outcome(failure="tier_unavailable")  # stays when the fetch raises what nobody expects
        try:
            outcome.failure = self._fetch_node(node, job, outcome)
            job.restored_bytes += outcome.moved_bytes
        finally:
            job.failure = outcome.failure
            self._finish_node(node, job, outcome, start_ns)

    def prove_in_memory(self, node: PrefixNode | None) -> None:
        """A load met a page whose checksum does not match: find what is damaged on this path and quarantine it."""
        ledger = self._ledger
        with ledger.lock:
            found = []
            while node is not None and node.parent is not None:
                found += [(node, h, h.gpu) for h in node.record.holdings() if h.gpu is not None and h.n_pages]
                node = node.parent
        for owner, holding, copy in found:
            try:
                self._tiers.gpu_bytes_on_host(copy)
            except CorruptObject:
                with ledger.lock:
                    if holding.gpu is copy and owner.parent is not None and not owner.record.busy:
                        quarantine(ledger, owner, holding, Tier.GPU, CauseOf(Cause.CORRUPTION, "checksum_mismatch"))
            except EngineError:
                return  # the tier does not answer; the load has failed already

    # -- one prefix -------------------------------------------------------------------------------------------------

    def _wanted(self, node: PrefixNode, job: RestoreJob) -> list[Holding]:
        found = list(node.record.spans.values())
        if node is job.target:
            for checkpoint_id, checkpoint in node.record.checkpoints.items():
                if job.all_checkpoints or checkpoint_id == job.checkpoint_id:
                    found.extend(checkpoint.blocks.values())
        return [h for h in found if h.gpu is None and h.n_pages]

    def _fetch_node(self, node: PrefixNode, job: RestoreJob, outcome: _Outcome) -> str:
        """Fetch what is wanted of one prefix, object by object; why it ended early, or nothing."""
        with self._ledger.lock:
            wanted = self._wanted(node, job)
        for holding in wanted:
            tier = holding.below
            if tier is None:
                return "pages_missing"
            if tier is Tier.DISK:
                outcome.tier = Tier.DISK
            if self._ledger.clock.monotonic_ns() > job.deadline_ns:
                return "restore_late"
            if failure := self._fetch_object(node, holding, tier, job, outcome):
                return failure
        return ""

    def _fetch_object(self, node: PrefixNode, holding: Holding, tier: Tier, job: RestoreJob, outcome: _Outcome) -> str:
        source = holding.host if tier is Tier.HOST else holding.disk
        if source is None:
            return "pages_missing"
        try:
            cause = CauseOf(Cause.PRESSURE, "restore")
            slots = self._room.take_gpu(source.page_class, holding.n_pages, cause, into=node)
            copy = SlotCopy(source.page_class, source.page_bytes, slots, source.meta, None)
            self._fill(copy, source, job.deadline_ns)
        except CorruptObject:
            outcome.broken, outcome.broken_tier = holding, tier
            return "checksum_mismatch"
        except OutOfMemory:
            return "no_room"
        except EngineError:
            return "tier_unavailable"
        outcome.arrived.append(_Arrived(holding, copy, tier))
        outcome.moved_bytes += copy.total_bytes
        return ""

    def _fill(self, copy: SlotCopy, source: SlotCopy | DiskCopy, deadline_ns: int) -> None:
        """Fill the slots, or give them back and raise."""
        landing = Landing(copy, self._ledger.lock, self._ledger.underway.give_back)
        try:
            if isinstance(source, SlotCopy):
                self._tiers.restore_host(source, into=copy)
            else:
                self._tiers.restore_disk(source, into=landing, deadline_ns=deadline_ns)
        except BaseException:
            landing.give_up()
            raise

    def _finish_node(self, node: PrefixNode, job: RestoreJob, outcome: _Outcome, start_ns: int) -> None:
        ledger = self._ledger
        with ledger.lock:
            for arrived in outcome.arrived:
                self._attach(arrived)
            node.record.busy = False
            reason = outcome.failure or ("late" if job.late else "ok")
            if outcome.broken is not None:
                why = self._cause(job, Cause.CORRUPTION, reason)
                quarantine(ledger, node, outcome.broken, outcome.broken_tier, why)
            if node.record.state is State.FULL_RESTORE:
                cause = self._cause(job, job.cause.cause, reason)
                ledger.settle(node, cause, bytes_moved=outcome.moved_bytes, start_ns=start_ns, parent=job.parent)
            else:
                node.record.refresh()
            for checkpoint_id in node.record.checkpoints if node is job.target else ():
                ledger.checkpoints.touch(node, checkpoint_id)
            ledger.place(node)
            ledger.graph.changed()
            if outcome.failure != "not_reached":
                self._count(node, job, outcome, start_ns, reason)
            ledger.settled.notify_all()

    def _attach(self, arrived: _Arrived) -> None:
        holding = arrived.holding
        self._ledger.underway.landed(arrived.copy.slots)
        holding.gpu = arrived.copy
        if holding.kind in BOUNDARY_KINDS:
            self._ledger.checkpoints.arrived(arrived.copy)
        if arrived.source is Tier.HOST:
            self._tiers.drop_host(holding)  # the GPU copy replaces it; a disk copy stays as a clean one

    def _cause(self, job: RestoreJob, cause: Cause, reason: str) -> CauseOf:
        return job.cause._replace(cause=cause, reason=reason)

    def _count(self, node: PrefixNode, job: RestoreJob, outcome: _Outcome, start_ns: int, reason: str) -> None:
        ledger = self._ledger
        late = job.late or outcome.failure == "restore_late"
        result = "late" if late else ("failed" if outcome.failure else "ok")
        key = (str(outcome.tier), result)
        ledger.counters.recoveries[key] = ledger.counters.recoveries.get(key, 0) + 1
        if ledger.ring.enabled:
            now_ns = ledger.clock.monotonic_ns()
            name = "kvcache.warmup" if job.cause.command_id else "kvcache.restore"
            attributes: tuple[object, ...] = (
                "kvcache.prefix.id", node.record.prefix_id, "kvcache.tier", str(outcome.tier), "kvcache.bytes",
                outcome.moved_bytes, "kvcache.outcome", result, "kvcache.reason", reason,
            )  # fmt: skip
            if job.cause.command_id:
                attributes += ("kvcache.command.id", job.cause.command_id)
            failed = f"restore of {node.record.prefix_id}: {reason}" if outcome.failure else ""
            ledger.ring.request(name, new_span(job.parent), job.parent or NO_SPAN, start_ns, now_ns, attributes, failed)


def deadline_after(now_ns: int, seconds: float) -> int:
    return now_ns + int(min(seconds, LONGEST_WAIT_S) * NS_PER_S)
