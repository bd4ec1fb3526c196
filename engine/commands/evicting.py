"""Evict, and drain: what lets prefixes go."""

from __future__ import annotations

from typing import Any

from engine.commands.reach import Reach, ids_of, moved_on, roots, subtree_of, tier_below
from engine.commands.reforming import each, offload_one
from engine.commands.ticket import BadCommand, Ticket
from engine.config import Mode
from engine.memory.holding import Tier
from engine.schedule.ledger import PrefixNode
from engine.schedule.queues import Form

DRAIN_WAIT_S = 60.0
LEASES_ASKED_S = 0.1
ENDS_OF_A_DRAIN = ("keep", "offload", "evict")


def evict(reach: Reach, ticket: Ticket) -> dict[str, Any]:
    """Evict prefixes, with `descendants` their subtrees, tails first; not one whose version has moved on."""
    with reach.ledger.lock:
        depth = {key: node.last_page for key in ids_of(ticket) if (node := reach.ledger.nodes.get(key)) is not None}
    ids = sorted(ids_of(ticket), key=lambda key: -depth.get(key, 0))
    descendants = bool(ticket.arguments.get("descendants", False))
    evicted = freed = 0
    refused: list[dict[str, str]] = []
    for prefix_id in ids:
        if not ticket.goes_on():
            break
        with reach.ledger.lock:
            node = reach.ledger.nodes.get(prefix_id)
            reason = moved_on(ticket, prefix_id, node)
            if node is not None and node.children and not descendants:
                reason = reason or "has_descendants"
            subtree = subtree_of(node) if node is not None and not reason else []
        if subtree:
            n, n_bytes, reason = evict_all(reach, ticket, subtree, evicted, freed, len(ids))
            evicted, freed = evicted + n, freed + n_bytes
        if reason:
            refused.append({"prefix_id": prefix_id, "reason": reason})
        ticket.tell(done=evicted, of=max(len(ids), evicted), bytes=freed)
    reach.ledger.tiers.sweeper.sweep()
    return {"evicted": evicted, "bytes": freed, "refused": refused}


def evict_all(
    reach: Reach, ticket: Ticket, leaves_first: list[PrefixNode], done: int, done_bytes: int, of: int
) -> tuple[int, int, str]:
    """One by one, so that requests go on in between; what is leased, busy or pinned stays, and its ancestors."""
    ledger = reach.ledger
    n = freed = 0
    kept = ""
    for node in leaves_first:
        if not ticket.goes_on():
            break
        with ledger.lock:
            if node.parent is None or node.children:
                continue
            record = node.record
            # A person may overrule a person's pin, a policy may not.
            pinned = record.pinned_until_ns > ledger.clock.wall_ns()
            reasons = {
                "leased": record.leases, "busy": record.busy, "pinned": pinned,
                "graph_window": ledger.graph.in_window,
            }  # fmt: skip
            if stays := next((reason for reason, holds in reasons.items() if holds), ""):
                kept = stays
                continue
            freed += ledger.remove(node, ticket.cause, parent=ticket.span)
            n += 1
        ticket.step(done + n, max(of, done + len(leaves_first)), done_bytes + freed)
    return n, freed, kept


def drain(reach: Reach, ticket: Ticket) -> dict[str, Any]:
    """Wait until the last lease has ended, then keep, offload or evict what is held. The mode `drain`, which keeps
    new reuse and commits out, is desired state: it is there before this runs, and stays after it."""
    then = str(ticket.arguments.get("then") or "keep")
    if then not in ENDS_OF_A_DRAIN:
        raise BadCommand(f"then is {then!r}; known: {', '.join(ENDS_OF_A_DRAIN)}")
    tier = tier_below(ticket) if then == "offload" else Tier.HOST
    if reach.choices.mode() is not Mode.DRAIN:
        reason = f"mode_is_{reach.choices.mode()}"  # what is drained would fill up again
        return {"drained": 0, "refused": [{"reason": reason}]}
    left = _leases_left(reach, ticket, float(ticket.arguments.get("wait_s") or DRAIN_WAIT_S))
    with reach.ledger.lock:
        leaves_first = [n for root in roots(reach.ledger) for n in subtree_of(root)]
    ids = [node.record.prefix_id for node in leaves_first if then == "evict" or node.record.held_bytes(Tier.GPU)]
    found: dict[str, Any] = {"drained": 1, "leases_left": left, "prefixes": len(leaves_first)}
    if then == "evict":
        n, freed, kept = evict_all(reach, ticket, leaves_first, 0, 0, len(leaves_first))
        reach.ledger.tiers.sweeper.sweep()
        refused = [{"reason": kept}] if kept else []
        return {**found, "evicted": n, "bytes": freed, "refused": refused}
    if then == "offload":
        step = Form.RESIDENT, lambda key: offload_one(reach, key, tier, ticket)
        return {**found, **each(reach, ticket, ids, "offloaded", *step)}
    return found


def _leases_left(reach: Reach, ticket: Ticket, wait_s: float) -> int:
    """How many leases are alive after `wait_s`, or as soon as there are none."""
    ledger = reach.ledger
    asked = 0.0
    while True:
        with ledger.lock:
            ledger.leases.expire()
            left = sum(lease.usable_tokens > 0 for lease in ledger.leases.live())  # a miss reads nothing
        ticket.tell(leases_left=left)
        if not left or asked >= wait_s or not ticket.goes_on():
            return left
        ticket.wait(LEASES_ASKED_S)
        asked += LEASES_ASKED_S
