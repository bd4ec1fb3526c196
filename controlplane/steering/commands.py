"""The one write door for commands: submit, deliver, progress, outcome, cancel, expire.

Delivery is at least once, and execution at most once an agent's life: a command that was handed out and not heard of
is handed out again, and the agent knows what it has run. Every kind is idempotent, so a crash in between is harmless.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from controlplane.auth import Role
from controlplane.errors import BadRequest, Conflict, NotFound
from controlplane.steering.command_kinds import check_arguments
from controlplane.steering.deed import Deed
from controlplane.steering.leader import newest_epoch
from controlplane.store.models import Command, Engine, Prefix

PENDING, DELIVERED, RUNNING = "pending", "delivered", "running"
SUCCEEDED, FAILED, REFUSED, EXPIRED, CANCELLED = "succeeded", "failed", "refused", "expired", "cancelled"

# The state table. An `expired` that the sweep wrote is a guess about a silent engine; the engine's own report is a
# fact, so it may still replace the guess (outcome then carries `late: true`). Everything else at the end is final.
TRANSITIONS: Mapping[str, frozenset[str]] = {
    PENDING: frozenset({DELIVERED, CANCELLED, EXPIRED}),
    DELIVERED: frozenset({RUNNING, SUCCEEDED, FAILED, REFUSED, EXPIRED}),
    RUNNING: frozenset({RUNNING, SUCCEEDED, FAILED, REFUSED, EXPIRED}),
    EXPIRED: frozenset({SUCCEEDED, FAILED, REFUSED}),
    SUCCEEDED: frozenset(),
    FAILED: frozenset(),
    REFUSED: frozenset(),
    CANCELLED: frozenset(),
}
LIVE = (PENDING, DELIVERED, RUNNING)
TERMINAL = frozenset(TRANSITIONS) - frozenset(LIVE)
REPORTABLE = frozenset({RUNNING, SUCCEEDED, FAILED, REFUSED, EXPIRED})

DEFAULT_EXPIRY_SECONDS = 300
LONGEST_EXPIRY_SECONDS = 86_400
REDELIVER_AFTER = dt.timedelta(seconds=15)
SILENT_AFTER = dt.timedelta(seconds=60)  # an engine not heard of for this long cannot be waited for
MOST_DELIVERED_AT_ONCE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A command as its issuer asks for it. `epoch` None: the newest leadership's (people are not fenced out)."""

    engine_id: str
    kind: str
    arguments: Mapping[str, Any]
    idempotency_key: str | None = None
    expires_seconds: int = DEFAULT_EXPIRY_SECONDS
    epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What an engine says about a command: a status with its progress so far, or its terminal outcome."""

    status: str
    progress: Mapping[str, Any]
    outcome: Mapping[str, Any]


def submit(session: Session, deed: Deed, draft: Draft) -> Command:
    """Stores a command for its engine and audits it; the same idempotency key again returns the first command.

    Raises Forbidden, BadRequest (kind, arguments, expiry, reason), NotFound (engine) and Conflict (the key belongs to
    another command, or a prefix has moved past the version the operator saw).
    """
    deed.must_be(Role.OPERATOR)
    arguments = check_arguments(draft.kind, draft.arguments)
    if not 1 <= draft.expires_seconds <= LONGEST_EXPIRY_SECONDS:
        raise BadRequest(
            "expiry_invalid",
            f"expires_s must be 1 to {LONGEST_EXPIRY_SECONDS} seconds, got {draft.expires_seconds}.",
            f"Leave it out for {DEFAULT_EXPIRY_SECONDS} seconds.",
        )
    if draft.idempotency_key and (standing := _same_key(session, draft, arguments)):
        return standing
    if session.get(Engine, draft.engine_id) is None:
        raise NotFound(
            "engine_unknown", f"No engine {draft.engine_id!r} has ever registered.", "`kvdeck status` lists them."
        )
    _check_versions(session, draft.engine_id, arguments.get("expect_versions", {}))
    command = Command(
        id=str(uuid.uuid4()),
        engine_id=draft.engine_id,
        kind=draft.kind,
        arguments=arguments,
        idempotency_key=draft.idempotency_key or str(uuid.uuid4()),
        epoch=newest_epoch(session) if draft.epoch is None else draft.epoch,
        status=PENDING,
        progress={},
        outcome={},
        actor=deed.principal.name,
        reason=deed.reason,
        created_at=deed.now,
        expires_at=deed.now + dt.timedelta(seconds=draft.expires_seconds),
        traceparent=deed.traceparent if deed.trace_id else None,
    )
    session.add(command)
    session.flush()
    deed.record(session, draft.kind, draft.engine_id, after={"command": command.id, "arguments": arguments})
    return command


def _same_key(session: Session, draft: Draft, arguments: Mapping[str, Any]) -> Command | None:
    standing = session.scalars(select(Command).where(Command.idempotency_key == draft.idempotency_key)).first()
    if standing is None:
        return None
    same = (standing.engine_id, standing.kind, standing.arguments) == (draft.engine_id, draft.kind, dict(arguments))
    if not same:
        raise Conflict(
            "idempotency_key_used",
            f"The idempotency key {draft.idempotency_key!r} belongs to another command, {standing.id}.",
            "Use a new key for a new command.",
        )
    return standing


def _check_versions(session: Session, engine_id: str, expected: Mapping[str, int]) -> None:
    if not expected:
        return
    rows = session.execute(
        select(Prefix.prefix_id, Prefix.version).where(
            Prefix.engine_id == engine_id, Prefix.prefix_id.in_(list(expected))
        )
    )
    # Only a newer version is a conflict: the store may lag behind the engine, which compares exactly.
    moved = [f"{prefix_id[:12]} is at {version}" for prefix_id, version in rows if version > expected[prefix_id]]
    if moved:
        raise Conflict(
            "version_moved",
            f"Since you looked, {len(moved)} prefixes moved on: {', '.join(moved[:3])}.",
            "Look again and decide on what is there now.",
        )


def get(session: Session, command_id: str) -> Command:
    """The command. Raises NotFound."""
    command = session.get(Command, command_id)
    if command is None:
        raise NotFound("command_unknown", f"There is no command {command_id!r}.", "GET /v1/commands lists them.")
    return command


def move(command: Command, status: str, now: dt.datetime) -> None:
    """Moves a command along an edge of the table. Raises Conflict, and changes nothing, where there is none."""
    if status not in TRANSITIONS[command.status]:
        raise Conflict(
            "command_state",
            f"Command {command.id} is {command.status} and cannot become {status}.",
            "It can no longer be stopped: wait for its outcome." if command.status in LIVE else "It is over.",
        )
    command.status = status
    if status == DELIVERED:
        command.delivered_at = now
    if status in TERMINAL:
        command.finished_at = now


def _due(engine_id: str, now: dt.datetime) -> Any:
    unheard = Command.status.in_((DELIVERED, RUNNING)) & (Command.delivered_at <= now - REDELIVER_AFTER)
    return (
        select(Command)
        .where(Command.engine_id == engine_id, Command.expires_at > now, or_(Command.status == PENDING, unheard))
        .order_by(Command.created_at, Command.id)
        .limit(MOST_DELIVERED_AT_ONCE)
    )


def count_waiting(session: Session, engine_id: str, now: dt.datetime) -> int:
    """How many commands `take_waiting` would hand out, at most its bound. Needs a read session only."""
    return len(session.scalars(_due(engine_id, now)).all())


def take_waiting(session: Session, engine_id: str, now: dt.datetime) -> Sequence[Command]:
    """The commands this engine should have, oldest first; pending ones become delivered.

    A delivered or running one that is unheard of for 15 seconds is handed out again: its answer, or the agent, was
    lost. `delivered_at` is the newest delivery.
    """
    commands: Sequence[Command] = session.scalars(_due(engine_id, now)).all()
    for command in commands:
        if command.status == PENDING:
            move(command, DELIVERED, now)
        else:
            command.delivered_at = now
    return commands


def report(session: Session, engine_id: str, command_id: str, said: Report, now: dt.datetime) -> Command:
    """Stores an engine's word about its command. The same terminal word twice is one; another one is a Conflict."""
    command = get(session, command_id)
    if command.engine_id != engine_id:
        raise NotFound("command_unknown", f"Engine {engine_id} has no command {command_id!r}.")
    if said.status not in REPORTABLE:
        raise BadRequest(
            "status_unknown", f"{said.status!r} is no status to report.", f"There are {', '.join(sorted(REPORTABLE))}."
        )
    if command.status == said.status and said.status in TERMINAL:
        return command
    late = command.status == EXPIRED
    move(command, said.status, now)
    if said.progress:
        command.progress = dict(said.progress)
    if said.status in TERMINAL:
        command.outcome = {**said.outcome, "late": True} if late else dict(said.outcome)
        _note_pins(session, command)
    return command


def _note_pins(session: Session, command: Command) -> None:
    """A pin is no transition, so no span will say it: the outcome does. The next transition says it again."""
    if command.kind not in ("pin", "unpin") or command.status != "succeeded":
        return
    refused = {item["prefix_id"] for item in command.outcome.get("refused", ())}
    ids = [prefix_id for prefix_id in command.arguments.get("prefix_ids", ()) if prefix_id not in refused]
    session.execute(
        update(Prefix)
        .where(Prefix.engine_id == command.engine_id, Prefix.prefix_id.in_(ids))
        .values(pinned=command.kind == "pin")
    )


def cancel(session: Session, deed: Deed, command_id: str) -> Command:
    """Cancels a command that no engine has taken yet. Raises Conflict when it is too late."""
    deed.must_be(Role.OPERATOR)
    command = get(session, command_id)
    move(command, CANCELLED, deed.now)
    command.outcome = {"reason": "cancelled", "by": deed.principal.name}
    deed.record(session, "cancel", command.id, before={"status": PENDING}, after={"status": CANCELLED})
    return command


def expire_overdue(session: Session, now: dt.datetime) -> list[Command]:
    """Expires what no engine will run: pending past its time, and taken past its time by an engine gone silent."""
    overdue = session.scalars(
        select(Command).where(Command.status.in_(LIVE), Command.expires_at <= now).limit(1000)
    ).all()
    expired = []
    for command in overdue:
        engine = session.get(Engine, command.engine_id)
        silent = engine is None or engine.last_seen_at <= now - SILENT_AFTER
        if command.status == PENDING or silent:
            reason = "engine_silent" if silent else "not_taken_in_time"
            move(command, EXPIRED, now)
            command.outcome = {"reason": reason}
            expired.append(command)
    return expired
