"""Compress and offload: what gives prefixes another form or place."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from engine.commands.reach import Reach, ids_of, moved_on, tier_below
from engine.commands.ticket import BadCommand, Ticket
from engine.errors import EngineError
from engine.memory.holding import Tier
from engine.schedule.queues import Form
from engine.schedule.reform import Reformed


def compress(reach: Reach, ticket: Ticket) -> dict[str, Any]:
    """Code prefixes' pages with `codec`, or the engine's own."""
    codec = str(ticket.arguments.get("codec") or reach.choices.codec())
    if codec not in reach.ledger.tiers.codecs:
        raise BadCommand(f"codec {codec!r} is unknown; known: {', '.join(reach.ledger.tiers.codecs)}")
    step = Form.COMPRESSED, lambda key: reach.reformer.compress(key, codec, ticket.cause, ticket.span)
    return each(reach, ticket, ids_of(ticket), "compressed", *step)


def offload(reach: Reach, ticket: Ticket) -> dict[str, Any]:
    """Move prefixes off the GPU, to `tier`: host or disk."""
    tier = tier_below(ticket)
    step = Form.RESIDENT, lambda key: offload_one(reach, key, tier, ticket)
    return each(reach, ticket, ids_of(ticket), "offloaded", *step)


def offload_one(reach: Reach, prefix_id: str, tier: Tier, ticket: Ticket) -> Reformed:
    """Move one prefix off the GPU."""
    with reach.ledger.lock:
        node = reach.ledger.nodes.get(prefix_id)
        if node is not None and node.record.approximate:
            return Reformed(refused="state_is_approximate")  # it has no place below the GPU
    return reach.reformer.offload(prefix_id, tier, ticket.cause, ticket.span)


def each(
    reach: Reach, ticket: Ticket, ids: list[str], verb: str, form: Form, step: Callable[[str], Reformed]
) -> dict[str, Any]:
    """Take a step for each prefix, in the queue of its form -> how many are done, bytes moved, what was refused why."""
    done = moved = 0
    refused: list[dict[str, str]] = []
    for i, prefix_id in enumerate(ids):
        if not ticket.goes_on():
            break
        with reach.ledger.lock:
            reason = moved_on(ticket, prefix_id, reach.ledger.nodes.get(prefix_id))
        try:
            found = Reformed(refused=reason) if reason else reach.run(form, partial(step, prefix_id))
        except EngineError as error:
            found = Reformed(refused=error.code)
        done, moved = done + (not found.refused), moved + found.moved_bytes
        if found.refused:
            refused.append({"prefix_id": prefix_id, "reason": found.refused})
        ticket.step(i + 1, len(ids), moved)
    return {verb: done, "bytes": moved, "refused": refused}
