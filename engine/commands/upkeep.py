"""Compact and scrub: what keeps memory dense and the disk proved."""

from __future__ import annotations

from typing import Any

from engine.commands.reach import Reach
from engine.commands.ticket import Ticket
from engine.errors import EngineClosed
from engine.schedule.queues import Form

MAX_PAGES = 1 << 20
SCRUB_BYTES = 1 << 30
SCRUB_STEP_BYTES = 8 << 20
SCRUB_STEP_S = 0.25


def compact(reach: Reach, ticket: Ticket) -> dict[str, Any]:
    """Move at most `max_pages` pages together, so that slabs become free."""
    limit = int(ticket.arguments.get("max_pages") or MAX_PAGES)
    done = reach.run(Form.RESIDENT, lambda: reach.reformer.compact(limit, ticket.span))
    return {
        "pages": done.pages, "bytes": done.moved_bytes, "slabs_freed": done.slabs_freed,
        "fragmentation_before": done.fragmentation_before, "fragmentation_after": done.fragmentation_after,
    }  # fmt: skip


def scrub(reach: Reach, ticket: Ticket) -> dict[str, Any]:
    """Prove what is on disk, `bytes_per_s` of it a second: step by step, so that restores go on in between. An
    object is read at once, whatever its size."""
    limit = int(ticket.arguments.get("max_bytes") or SCRUB_BYTES)
    rate = float(ticket.arguments.get("bytes_per_s") or reach.choices.scrub_bytes_per_s)
    step_bytes = max(1, min(SCRUB_STEP_BYTES, int(rate * SCRUB_STEP_S)))
    scrub = reach.reformer.begin_scrub(limit, ticket.span)
    try:
        while True:
            read = reach.run(Form.OFFLOADED, lambda: reach.reformer.scrub_step(scrub, step_bytes))
            ticket.tell(done=scrub.objects, of=scrub.objects + len(scrub.todo), bytes=scrub.n_bytes)
            if scrub.over:
                break
            ticket.wait(read / rate)
            if not ticket.goes_on():
                scrub.failure = EngineClosed.code if ticket.stopped == EngineClosed.code else ""
                break
    finally:
        reach.reformer.end_scrub(scrub)
    found: dict[str, Any] = {"objects": scrub.objects, "bytes": scrub.n_bytes, "damaged": scrub.damaged}
    return {**found, "failed": [{"reason": scrub.failure}]} if scrub.failure else found
