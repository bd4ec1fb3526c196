"""The state machine of a command, as data: docs/reference/command-states.md is drawn from it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from controlplane.errors import Conflict
from controlplane.store.models import Command

PENDING, DELIVERED, RUNNING = "pending", "delivered", "running"
SUCCEEDED, FAILED, REFUSED, EXPIRED, CANCELLED = "succeeded", "failed", "refused", "expired", "cancelled"

# An `expired` that the sweep wrote is a guess about a silent engine; the engine's own report is a fact, so it may still
# replace the guess (outcome then carries `late: true`). Everything else at the end is final.
TRANSITIONS: Mapping[str, Mapping[str, str]] = {
    PENDING: {
        DELIVERED: "its engine asked for work",
        CANCELLED: "somebody cancelled it",
        EXPIRED: "no engine took it in time",
    },
    DELIVERED: {
        RUNNING: "the engine has begun",
        SUCCEEDED: "the engine reported it done",
        FAILED: "the engine could not do it",
        REFUSED: "the engine would not do it: moved on, leased, pinned, fenced",
        EXPIRED: "the engine came to it too late, or fell silent past its time",
        CANCELLED: "somebody cancelled it, and the engine had not begun",
    },
    RUNNING: {
        RUNNING: "progress",
        SUCCEEDED: "the engine did it, wholly or in part",
        FAILED: "the engine could not do it",
        REFUSED: "the engine would not do any of it",
        EXPIRED: "the engine fell silent past its time",
        CANCELLED: "somebody cancelled it, and the engine stopped at its next step",
    },
    EXPIRED: {
        SUCCEEDED: "the engine's own word came late",
        FAILED: "the engine's own word came late",
        REFUSED: "the engine's own word came late",
        CANCELLED: "the engine's own word came late",
    },
    SUCCEEDED: {},
    FAILED: {},
    REFUSED: {},
    CANCELLED: {},
}
MEANINGS: Mapping[str, str] = {
    PENDING: "stored and audited; its engine has not asked yet",
    DELIVERED: "handed to the engine's agent; handed out again when unheard of for 15 seconds",
    RUNNING: "under way; `progress` says how far",
    SUCCEEDED: "something was done, or there was nothing to do; `outcome` lists what was refused",
    FAILED: "nothing was done, because something went wrong; `outcome.reason` says what",
    REFUSED: "nothing was done, because the engine would not; `outcome.reason` says why",
    EXPIRED: "its time passed; a late word of the engine may still replace this, marked `late`",
    CANCELLED: "stopped by somebody; `outcome` says what had been done by then",
}
LIVE = (PENDING, DELIVERED, RUNNING)
TERMINAL = frozenset(TRANSITIONS) - frozenset(LIVE)
REPORTABLE = frozenset({RUNNING, SUCCEEDED, FAILED, REFUSED, EXPIRED, CANCELLED})


def move(command: Command, status: str, now: dt.datetime) -> None:
    """Moves a command along an edge of the table. Raises Conflict, and changes nothing, where there is none."""
    if status not in TRANSITIONS[command.status]:
        raise Conflict(
            "command_state",
            f"Command {command.id} is {command.status} and cannot become {status}.",
            "Wait for its outcome." if command.status in LIVE else "It is over.",
        )
    command.status = status
    if status == DELIVERED:
        command.delivered_at = now
    if status in TERMINAL:
        command.finished_at = now
