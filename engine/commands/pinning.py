"""Pin and unpin: what keeps prefixes, for a time and within a budget."""

from __future__ import annotations

from typing import Any

from engine.clock import NS_PER_S
from engine.commands.reach import Reach, ids_of, moved_on, path_of
from engine.commands.ticket import BadCommand, Ticket

LONGEST_PIN_S = 1e9


def pin(reach: Reach, ticket: Ticket) -> dict[str, Any]:
    """Keep prefixes (and so their ancestors) from being evicted for `ttl_s` seconds, within the pins' budget."""
    ttl_s = float(ticket.arguments.get("ttl_s") or 3600.0)
    if not 0 < ttl_s < LONGEST_PIN_S:
        raise BadCommand(f"ttl_s is {ttl_s!r}; it must be above 0 and below {LONGEST_PIN_S:,.0f}")
    return _mark(reach, ticket, reach.ledger.clock.wall_ns() + int(ttl_s * NS_PER_S))


def unpin(reach: Reach, ticket: Ticket) -> dict[str, Any]:
    """Let prefixes be evicted again."""
    return _mark(reach, ticket, 0)


def _mark(reach: Reach, ticket: Ticket, until_ns: int) -> dict[str, Any]:
    """A pin holds the whole path: a prefix is of no use without its ancestors. An unpin lets go of what no other
    pinned prefix needs. A pin past the budget of all pins is refused: pins must not starve the cache."""
    done, refused, pins = 0, [], reach.ledger.pins
    with reach.ledger.lock:
        reach.ledger.unpin_run_out()
    for prefix_id in ids_of(ticket):
        if not ticket.goes_on():
            break
        with reach.ledger.lock:
            node = reach.ledger.nodes.get(prefix_id)
            path = path_of(node)
            reason = moved_on(ticket, prefix_id, node)
            if not reason and until_ns and pins.refuses(step.record for step in path):
                reason = "pin_budget"
            if reason:
                refused.append({"prefix_id": prefix_id, "reason": reason})
                continue
            for step in path:
                below = max((c.record.pinned_until_ns for c in step.children.values()), default=0)
                own = step.record.pinned_until_ns if until_ns and step is not node else 0
                pins.mark(step.record, max(until_ns, below, own))
            done += 1
    return {"pinned" if until_ns else "unpinned": done, "refused": refused}
