"""One request, many engines: a command each, under one batch id, with an outcome an engine."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from controlplane.auth import Role
from controlplane.errors import BadRequest, Conflict, NotFound
from controlplane.steering import commands, desired
from controlplane.steering.command_states import LIVE
from controlplane.steering.commands import SILENT_AFTER, Draft
from controlplane.steering.deed import Deed
from controlplane.store.models import Command, Engine
from controlplane.store.queries_steering import CommandView
from controlplane.store.query_types import view

BATCHES = uuid.UUID("5b0d1c5e-6f0a-4f3e-9b39-6f1f6b1c9a51")  # the namespace of batch ids made from idempotency keys
MOST_ENGINES = 1000
LONGEST_KEY = 60  # with an engine's id behind it, it is the key of that engine's command


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Which engines: a group's, or (None) all of the fleet."""

    group: str | None = None

    @property
    def scope(self) -> desired.Scope:
        """As desired state names it."""
        return desired.Scope(group=self.group)


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """An engine that got no command, and why."""

    engine_id: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The commands of one request. `over` once each has ended; `by_status` counts them."""

    batch_id: str
    kind: str
    by_status: dict[str, int]
    over: bool
    commands: list[CommandView]
    skipped: list[Skipped]


def reached(session: Session, target: Target, deed_now: Any) -> tuple[list[Engine], list[Skipped]]:
    """The engines of a target that can be commanded now, and the others with the reason. Raises NotFound."""
    desired.check_scope(session, target.scope)
    here = [Engine.forgotten_at.is_(None)] + ([Engine.group_name == target.group] if target.group else [])
    engines = session.scalars(select(Engine).where(*here).order_by(Engine.id).limit(MOST_ENGINES)).all()
    ready, skipped = [], []
    for engine in engines:
        silent_s = (deed_now - engine.last_seen_at).total_seconds()
        if engine.left_at is not None:
            skipped.append(Skipped(engine_id=engine.id, why="left"))
        elif silent_s >= SILENT_AFTER.total_seconds():
            skipped.append(Skipped(engine_id=engine.id, why=f"silent for {silent_s:.0f} s"))
        else:
            ready.append(engine)
    return ready, skipped


def submit(
    session: Session,
    deed: Deed,
    target: Target,
    draft: Draft,
    selected: Mapping[str, Mapping[str, int]] | None = None,
) -> Batch:
    """Stores a command for each engine of the target; the same idempotency key again returns the first batch.

    `draft.engine_id` is not looked at. `selected` maps engines to the prefixes and versions of a preview, for who wants
    exactly what was shown. An engine on which nothing is selected, or that is silent, is skipped and said to be.
    Raises as `commands.submit` does, and Conflict when no engine gets a command.
    """
    deed.must_be(Role.OPERATOR)
    key = draft.idempotency_key or uuid.uuid4().hex
    if len(key) > LONGEST_KEY:
        raise BadRequest("key_long", f"The idempotency key has {len(key)} characters.", f"Use at most {LONGEST_KEY}.")
    batch_id = str(uuid.uuid5(BATCHES, key))
    if standing := _commands_of(session, batch_id):
        return _same(standing, batch_id, draft)
    if selected is not None and draft.selector is not None:
        raise BadRequest("selector_twice", "Selected prefixes and a selector were given.", "Give one of them.")
    ready, skipped = reached(session, target, deed.now)
    sent = []
    for engine in ready:
        mine = replace(draft, engine_id=engine.id, idempotency_key=f"{key}:{engine.id}", batch_id=batch_id)
        if selected is not None:
            versions = selected.get(engine.id)
            if not versions:
                skipped.append(Skipped(engine_id=engine.id, why="nothing selected"))
                continue
            seen = {"prefix_ids": list(versions), "expect_versions": dict(versions)}
            mine = replace(mine, arguments={**draft.arguments, **seen})
        try:
            sent.append(commands.submit(session, deed, mine))
        except Conflict as error:
            skipped.append(Skipped(engine_id=engine.id, why=error.message))
    if not sent:
        why = "; ".join(f"{each.engine_id}: {each.why}" for each in skipped[:5]) or "there are no engines"
        raise Conflict("batch_empty", f"No engine of {target.scope.name} got the command: {why}", "Nothing was sent.")
    return _batch(sent, batch_id, skipped)


def find(session: Session, batch_id: str) -> Batch:
    """A batch as it is now. Raises NotFound."""
    found = _commands_of(session, batch_id)
    if not found:
        raise NotFound("batch_unknown", f"There is no batch {batch_id!r}.", "`kvdeck commands` shows batch ids.")
    return _batch(found, batch_id, [])


def cancel(session: Session, deed: Deed, batch_id: str) -> Batch:
    """Cancels every command of a batch that is not over. Raises NotFound, and Conflict when all are."""
    find(session, batch_id)
    live = [command for command in _commands_of(session, batch_id) if command.status in LIVE]
    if not live:
        raise Conflict("batch_over", f"Every command of batch {batch_id} is over.", "There is nothing to cancel.")
    for command in live:
        commands.cancel(session, deed, command.id)
    return find(session, batch_id)


def _commands_of(session: Session, batch_id: str) -> Sequence[Command]:
    return session.scalars(select(Command).where(Command.batch_id == batch_id).order_by(Command.engine_id)).all()


def _same(standing: Sequence[Command], batch_id: str, draft: Draft) -> Batch:
    if standing[0].kind != draft.kind:
        raise Conflict(
            "idempotency_key_used",
            f"The idempotency key {draft.idempotency_key!r} belongs to another batch, {batch_id}.",
            "Use a new key for a new command.",
        )
    return _batch(standing, batch_id, [])


def _batch(rows: Sequence[Command], batch_id: str, skipped: Sequence[Skipped]) -> Batch:
    return Batch(
        batch_id=batch_id,
        kind=rows[0].kind,
        by_status=dict(Counter(row.status for row in rows)),
        over=all(row.status not in LIVE for row in rows),
        commands=[view(CommandView, row) for row in rows],
        skipped=list(skipped),
    )
