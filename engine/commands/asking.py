"""Foresee and inspect: what only looks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.commands.reach import Reach
from engine.commands.ticket import BadCommand, Ticket
from engine.schedule.inspection import inspect_prefix


def foresee(reach: Reach, ticket: Ticket) -> dict[str, Any]:
    """What a desired state document would make leave, if it were applied now. Changes nothing."""
    document = ticket.arguments.get("document")
    if not isinstance(document, Mapping):
        raise BadCommand(f"foresee needs a document of desired state; got {document!r}")
    return {"foreseen": 1, **reach.choices.foresee(document)}


def inspect(reach: Reach, ticket: Ticket) -> dict[str, Any]:
    """Leases, slot generations and copies of one prefix, as they are now. Changes nothing."""
    prefix_id = ticket.arguments.get("prefix_id")
    if not isinstance(prefix_id, str):
        raise BadCommand(f"inspect needs prefix_id, the id of one prefix; got {prefix_id!r}")
    with reach.ledger.lock:
        found = inspect_prefix(reach.ledger, prefix_id)
    if found is None:
        return {"refused": [{"prefix_id": prefix_id, "reason": "unknown_prefix"}]}
    return {"inspected": 1, **found}
