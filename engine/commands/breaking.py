"""Fault: what a game day breaks on purpose, for a time."""

from __future__ import annotations

from typing import Any

from engine.commands.reach import Reach
from engine.commands.ticket import BadCommand, Ticket
from engine.errors import ConfigError
from engine.memory.drill import read_plan

FAULT_LASTS_S = 30.0
NO_FAULTS = "engine takes no faults: it was not started with --allow-faults (`kvdeck up --game-days`)"


def fault(reach: Reach, ticket: Ticket) -> dict[str, Any]:
    """Begin what a game day wants to go wrong, for `lasts_s` seconds; an empty plan ends what goes wrong now."""
    drill = reach.choices.drill
    if drill is None:
        return {"refused": [{"reason": NO_FAULTS}]}
    try:
        plan = read_plan(ticket.arguments.get("plan"))
        drill.end()
        if plan:
            drill.begin(plan, float(ticket.arguments.get("lasts_s") or FAULT_LASTS_S))
    except ConfigError as error:
        raise BadCommand(str(error)) from None
    return {"faults": len(plan), **drill.summary()}
