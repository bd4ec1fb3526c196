"""Warm and restore: what brings prefixes back to the GPU."""

from __future__ import annotations

from functools import partial
from typing import Any

from engine.clock import NS_PER_S
from engine.commands.reach import MOVED_ON, Reach, ids_of, moved_on, path_of
from engine.commands.ticket import Ticket
from engine.schedule.ledger import PrefixNode
from engine.schedule.queues import QueueFull
from engine.schedule.recovery import RestoreJob


def warm(reach: Reach, ticket: Ticket) -> dict[str, Any]:
    """Bring prefixes (with their ancestors and checkpoints) back to the GPU, until `max_bytes` are moved."""
    ids = ids_of(ticket)
    budget = int(ticket.arguments.get("max_bytes") or 1 << 62)
    warmed = moved = 0
    failed: list[dict[str, str]] = []
    refused: list[dict[str, str]] = []
    for done, prefix_id in enumerate(ids):
        if not ticket.goes_on():
            break
        if moved >= budget:
            failed.append({"prefix_id": prefix_id, "reason": "byte_budget_spent"})
            continue
        job, reason = _restore_job(reach, prefix_id, ticket)
        if job is not None and job.steps:
            try:
                found = reach.run(job.form, partial(reach.recovery.run, job))
            except QueueFull as error:
                job.failure = error.code
                found = reach.recovery.run(job)  # with a failure set it only undoes the marks
            reason, moved = found.failure, moved + found.restored_bytes
        warmed += not reason
        if reason:
            (refused if reason == MOVED_ON else failed).append({"prefix_id": prefix_id, "reason": reason})
        ticket.step(done + 1, len(ids), moved)
    return {"warmed": warmed, "bytes": moved, "failed": failed, "refused": refused}


def _restore_job(reach: Reach, prefix_id: str, ticket: Ticket) -> tuple[RestoreJob | None, str]:
    ledger = reach.ledger
    with ledger.lock:
        node = ledger.nodes.get(prefix_id)
        if node is None:
            return None, "unknown_prefix"
        if reason := moved_on(ticket, prefix_id, node):
            return None, reason
        steps = [n for n in reversed(path_of(node)) if not n.record.resident or (n is node and not _all_on_gpu(n))]
        if any(n.record.busy for n in steps):
            return None, "busy"
        if any(h.absent for n in steps for h in n.record.spans.values()):
            return None, "pages_missing"
        deadline_ns = ledger.clock.monotonic_ns() + int(reach.choices.timeout_s * NS_PER_S)
        job = RestoreJob(steps, node, None, ticket.cause, ticket.span, deadline_ns, all_checkpoints=True)
        if steps:
            reach.recovery.prepare(job)
        return job, ""


def _all_on_gpu(node: PrefixNode) -> bool:
    return all(c.on_gpu for c in node.record.checkpoints.values())
