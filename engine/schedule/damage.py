"""A copy that is not what it was: let go of it, say so, and quarantine the prefix if no other copy is left."""

from __future__ import annotations

from engine.consistency.prefix import CauseOf, PrefixRecord
from engine.consistency.state import SERVED, Cause, State
from engine.memory.holding import Holding, Tier
from engine.schedule.counters import Damage
from engine.schedule.ledger import Ledger, PrefixNode
from engine.schedule.validation import VALIDATION_OF, Check, Validation, Verdict
from engine.telemetry.ring import SpanContext


def quarantine(ledger: Ledger, node: PrefixNode, holding: Holding, tier: Tier, cause: CauseOf) -> None:
    """Let go of a damaged copy. If no other copy of the object is left, the prefix is quarantined. Under the lock.

    The failed validation is a span. A lease that still points at a damaged GPU copy raises `StalePointer` from now on:
    better than a wrong byte.
    """
    record, tiers = node.record, ledger.tiers
    of = next((k for k, c in record.checkpoints.items() if any(b is holding for b in c.blocks.values())), None)
    if of is None and not any(held is holding for held in record.spans.values()):
        return  # split or replaced while its bytes were proven: its pages have other owners, who will find it
    ledger.damages.append(
        Damage(prefix_id=record.prefix_id, kind=str(holding.kind), reason=cause.reason, at_ns=ledger.clock.wall_ns())
    )
    _report(ledger, record, holding, tier, cause)
    if tier is Tier.DISK:
        tiers.drop_disk(holding, damaged=True)
    elif tier is Tier.HOST:
        tiers.drop_host(holding)
    elif of is not None:
        ledger.checkpoints.block_leaves_gpu(node, of, holding)
    else:
        tiers.drop_gpu(holding)
    lost = holding.absent and holding.n_pages > 0
    if lost and of is not None:
        ledger.checkpoints.drop(node, of)
    record.refresh()
    ledger.place(node)
    if lost and record.state is not State.QUARANTINED:
        ledger.move(node, State.QUARANTINED, cause)
    elif record.state in SERVED and record.natural_state is State.PARTIAL_OFFLOAD:
        ledger.move(node, State.PARTIAL_OFFLOAD, cause)  # the copy below is whole: a restore makes it good


def _report(ledger: Ledger, record: PrefixRecord, holding: Holding, tier: Tier, cause: CauseOf) -> None:
    validation = Validation.DISK_RELOADED if tier is not Tier.GPU else VALIDATION_OF[holding.kind]
    check = Check(validation, holding.kind, Verdict.FAIL, cause.reason)
    own = [c.boundary for c in record.checkpoints.values() if any(b is holding for b in c.blocks.values())]
    phase = "scrub" if cause.cause is Cause.SCRUB else "final"
    now_ns = ledger.clock.monotonic_ns()
    parent = SpanContext(int(cause.trace_id or "0", 16), int(cause.span_id or "0", 16))
    ledger.counters.count_checks((check,))
    ledger.ring.check_batch(
        parent, record.prefix_id, own[0] if own else record.tokens, phase, (check,), (now_ns, now_ns)
    )
