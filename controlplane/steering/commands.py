"""The one write door for commands: submit, deliver, progress, outcome, cancel, expire.

A command for many engines is one command an engine (`batches.py`), each of which comes through here.

Delivery is at least once, and execution at most once an agent's life: a command that was handed out and not heard of
is handed out again, and the agent knows what it has run. Every kind is idempotent, so a crash in between is harmless.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, bindparam, or_, select, update
from sqlalchemy.orm import Session

from controlplane.auth import Role
from controlplane.errors import BadRequest, Conflict, NotFound
from controlplane.steering import desired, selectors
from controlplane.steering.command_kinds import KINDS, check_arguments
from controlplane.steering.command_states import (
    CANCELLED,
    DELIVERED,
    EXPIRED,
    LIVE,
    PENDING,
    REPORTABLE,
    RUNNING,
    SUCCEEDED,
    TERMINAL,
    move,
)
from controlplane.steering.deed import Deed
from controlplane.steering.leader import newest_epoch
from controlplane.store.columns import UtcMicros
from controlplane.store.models import Command, Engine, Prefix

__all__ = [
    "ASK_SECONDS",
    "DEFAULT_EXPIRY_SECONDS",
    "DUE",
    "LIVE",
    "PENDING",
    "SILENT_AFTER",
    "SUCCEEDED",
    "TERMINAL",
    "Asked",
    "Draft",
    "Report",
    "ask_to_foresee",
    "cancel",
    "due",
    "expire_overdue",
    "get",
    "report",
    "submit",
    "take_waiting",
]

DEFAULT_EXPIRY_SECONDS = 300
LONGEST_EXPIRY_SECONDS = 86_400
REDELIVER_AFTER = dt.timedelta(seconds=15)
SILENT_AFTER = dt.timedelta(seconds=60)  # an engine not heard of for this long cannot be waited for
MOST_DELIVERED_AT_ONCE = 32
ASK_SECONDS = 30  # what is asked of an engine is asked now; a later answer would be about another moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A command as its issuer asks for it. `epoch` None: the newest leadership's (people are not fenced out).

    `selector` says in words which prefixes are meant, instead of `prefix_ids`; it is resolved as the command is stored.
    """

    engine_id: str
    kind: str
    arguments: Mapping[str, Any]
    idempotency_key: str | None = None
    expires_seconds: int = DEFAULT_EXPIRY_SECONDS
    epoch: int | None = None
    selector: Mapping[str, Any] | None = None
    batch_id: str | None = None


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
    kind = KINDS.get(draft.kind)
    deed.must_be(Role.OPERATOR if kind is None else kind.role)
    if not 1 <= draft.expires_seconds <= LONGEST_EXPIRY_SECONDS:
        raise BadRequest(
            "expiry_invalid",
            f"expires_s must be 1 to {LONGEST_EXPIRY_SECONDS} seconds, got {draft.expires_seconds}.",
            f"Leave it out for {DEFAULT_EXPIRY_SECONDS} seconds.",
        )
    if draft.idempotency_key and (standing := _same_key(session, draft)):
        return standing
    engine = desired.require_engine(session, draft.engine_id)
    if engine.left_at is not None:
        raise Conflict(
            "engine_left",
            f"Engine {engine.id} said goodbye at {engine.left_at:%Y-%m-%d %H:%M:%S} UTC; nobody would run this.",
            "Send it when the engine is back.",
        )
    arguments, selection = selectors.complete(
        session, draft.engine_id, draft.kind, draft.arguments, draft.selector, deed.now
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
        batch_id=draft.batch_id,
        selection=selection,
    )
    session.add(command)
    session.flush()
    if draft.kind == "drain":
        _hold_drain(session, deed, draft.engine_id, arguments)
    after = {"command": command.id, "arguments": arguments} | ({"selection": selection} if selection else {})
    deed.record(session, draft.kind, draft.engine_id, after=after)
    return command


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Whether an engine was asked something: by which command, or why not."""

    command_id: str | None = None
    why_not: str | None = None


def ask_to_foresee(session: Session, deed: Deed, documents: Mapping[str, Mapping[str, Any]]) -> dict[str, Asked]:
    """Asks each engine what its document would evict; one that is silent or left is not asked."""
    asked = {}
    for engine_id, document in documents.items():
        engine = desired.require_engine(session, engine_id)
        draft = Draft(
            engine_id=engine_id,
            kind="foresee",
            arguments={"document": dict(document)},
            expires_seconds=ASK_SECONDS,
        )
        if engine.left_at is not None:
            asked[engine_id] = Asked(why_not="left")
        elif engine.last_seen_at <= deed.now - SILENT_AFTER:
            asked[engine_id] = Asked(why_not=f"silent for {(deed.now - engine.last_seen_at).total_seconds():.0f} s")
        else:
            asked[engine_id] = Asked(command_id=submit(session, deed, draft).id)
    return asked


def _hold_drain(session: Session, deed: Deed, engine_id: str, arguments: Mapping[str, Any]) -> None:
    """The mode comes first: the agent applies desired state before it runs what came with it."""
    until = deed.now + dt.timedelta(seconds=arguments["hold_s"])
    changes = {"mode": "drain", "mode_expires_at": until.isoformat()}
    desired.revise(session, deed, engine_id=engine_id, changes=changes)


def _same_key(session: Session, draft: Draft) -> Command | None:
    standing = session.scalars(select(Command).where(Command.idempotency_key == draft.idempotency_key)).first()
    if standing is None:
        return None
    asked = standing.selection["selector"] if standing.selection else None
    same = (standing.engine_id, standing.kind, asked) == (draft.engine_id, draft.kind, draft.selector)
    if same and draft.selector is None:  # what a selector found may differ by now; what was asked for is the same
        same = standing.arguments == check_arguments(draft.kind, draft.arguments)
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


def _is_due() -> ColumnElement[bool]:
    taken = Command.status != PENDING
    unheard = taken & (Command.delivered_at <= bindparam("unheard_since", type_=UtcMicros))
    unwanted = taken & (Command.delivered_at <= Command.cancel_requested_at)  # since it was handed out
    in_time = Command.expires_at > bindparam("now", type_=UtcMicros)
    live = or_(*(Command.status == status for status in (PENDING, DELIVERED, RUNNING)))
    mine = Command.engine_id == bindparam("engine_id")
    return and_(mine, live, or_(in_time & (Command.status == PENDING), in_time & unheard, unwanted))


DUE = _is_due()
"""Whether `take_waiting` would hand a command out. Its parameters are `due(engine_id, now)`."""


def due(engine_id: str, now: dt.datetime) -> dict[str, Any]:
    """The parameters of DUE."""
    return {"engine_id": engine_id, "now": now, "unheard_since": now - REDELIVER_AFTER}


_TAKE = select(Command).where(DUE).order_by(Command.created_at, Command.id).limit(MOST_DELIVERED_AT_ONCE)


def take_waiting(session: Session, engine_id: str, now: dt.datetime) -> Sequence[Command]:
    """The commands this engine should have, oldest first; pending ones become delivered.

    A delivered or running one that is unheard of for 15 seconds is handed out again: its answer, or the agent, was
    lost. One that somebody wants cancelled is handed out again to say so. `delivered_at` is the newest delivery.
    """
    commands: Sequence[Command] = session.scalars(_TAKE, due(engine_id, now)).all()
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
    if command.kind not in ("pin", "unpin") or command.status != SUCCEEDED:
        return  # of a cancelled one, some are and it is not said which: the next transition or snapshot says it
    refused = {item["prefix_id"] for item in command.outcome.get("refused", ())}
    ids = [prefix_id for prefix_id in command.arguments.get("prefix_ids", ()) if prefix_id not in refused]
    session.execute(
        update(Prefix)
        .where(Prefix.engine_id == command.engine_id, Prefix.prefix_id.in_(ids))
        .values(pinned=command.kind == "pin")
    )


def cancel(session: Session, deed: Deed, command_id: str) -> Command:
    """Cancels a command: at once while no engine has taken it, else the engine is told and stops at its next step.

    Raises Conflict for one that is over. Asking twice is asking once.
    """
    deed.must_be(Role.OPERATOR)
    command = get(session, command_id)
    before = {"status": command.status}
    if command.status in (DELIVERED, RUNNING):
        if command.cancel_requested_at is None:
            command.cancel_requested_at = deed.now
            deed.record(session, "cancel", command.id, before=before, after={"cancel_requested": True})
        return command
    move(command, CANCELLED, deed.now)
    command.cancel_requested_at = deed.now
    command.outcome = {"reason": "cancelled", "by": deed.principal.name}
    deed.record(session, "cancel", command.id, before=before, after={"status": CANCELLED})
    return command


def expire_overdue(session: Session, now: dt.datetime) -> list[Command]:
    """Expires what no engine will run: pending past its time, and taken past its time by an engine gone silent."""
    overdue = session.scalars(
        select(Command).where(Command.status.in_(LIVE), Command.expires_at <= now).limit(1000)
    ).all()
    expired = []
    for command in overdue:
        engine = session.get(Engine, command.engine_id)
        left = engine is not None and engine.left_at is not None
        silent = engine is None or left or engine.last_seen_at <= now - SILENT_AFTER
        if command.status == PENDING or silent:
            reason = "engine_left" if left else "engine_silent" if silent else "not_taken_in_time"
            move(command, EXPIRED, now)
            command.outcome = {"reason": reason}
            expired.append(command)
    return expired
