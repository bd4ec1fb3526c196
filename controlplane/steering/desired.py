"""Desired state: append-only revisions of one whole document, for the fleet, a group of engines, or one engine.

What an engine should run with is the fleet's newest document, overlaid by its group's, overlaid by its own. Revisions
come from one counter, so the largest of the three is the engine's revision.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from controlplane.auth import Role
from controlplane.errors import BadRequest, Conflict, NotFound
from controlplane.steering.deed import Deed
from controlplane.steering.limits import check_changes
from controlplane.store.models import DesiredState, Engine

# Mode and the end of a person's hold on it are one fact: they are overlaid and removed together.
MODE_KEYS = ("mode", "mode_expires_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """What one engine should run with now, and the revision that says so (0: nothing was ever asked for)."""

    revision: int
    document: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Whose document: one engine's, one group's, or (neither) the fleet's."""

    engine_id: str | None = None
    group: str | None = None

    @property
    def name(self) -> str:
        """As people read it, and as the audit names the target."""
        return self.engine_id or (f"group {self.group}" if self.group else "fleet")


FLEET = Scope()


@dataclass(frozen=True, slots=True, kw_only=True)
class Revised:
    """The standing revision after a write, and what the write changed: key -> [before, after]."""

    revision: int
    document: dict[str, Any]
    diff: dict[str, list[Any]]


def diff(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The keys whose value differs, each with [before, after]; None stands for "not set"."""
    keys = sorted({*before, *after})
    return {key: [before.get(key), after.get(key)] for key in keys if before.get(key) != after.get(key)}


def mode_is_held(document: Mapping[str, Any], now: dt.datetime) -> bool:
    """Whether a person holds the mode: only a person's mode has an expiry, and it has not passed."""
    expires = document.get("mode_expires_at")
    return document.get("mode") is not None and expires is not None and dt.datetime.fromisoformat(expires) > now


def without_expired_mode(document: Mapping[str, Any], now: dt.datetime) -> dict[str, Any]:
    """The document as it counts now: a mode whose hold has passed is as good as not set."""
    expires = document.get("mode_expires_at")
    if expires is None or dt.datetime.fromisoformat(expires) > now:
        return dict(document)
    return {key: value for key, value in document.items() if key not in MODE_KEYS}


def overlay(fleet: Mapping[str, Any], own: Mapping[str, Any], now: dt.datetime) -> dict[str, Any]:
    """One document with a narrower one on top. A person's hold on the mode outranks a mode without one."""
    fleet_now, own_now = without_expired_mode(fleet, now), without_expired_mode(own, now)
    fleet_wins = mode_is_held(fleet_now, now) and not mode_is_held(own_now, now)
    mode_from = fleet_now if fleet_wins or "mode" not in own_now else own_now
    merged = {key: value for key, value in {**fleet_now, **own_now}.items() if key not in MODE_KEYS}
    return merged | {key: mode_from[key] for key in MODE_KEYS if key in mode_from}


def layered(documents: Sequence[Mapping[str, Any]], now: dt.datetime) -> dict[str, Any]:
    """The documents on top of each other, the widest first."""
    merged: dict[str, Any] = {}
    for document in documents:
        merged = overlay(merged, document, now)
    return merged


def newest(session: Session, scope: Scope = FLEET) -> DesiredState | None:
    """The newest revision of exactly this document."""
    mine = select(DesiredState).where(*_of(scope)).order_by(DesiredState.revision.desc())
    return session.scalars(mine.limit(1)).first()


def scopes_of(engine: Engine) -> list[Scope]:
    """The documents that reach an engine, the widest first."""
    own = Scope(engine_id=engine.id)
    return [FLEET, Scope(group=engine.group_name), own] if engine.group_name else [FLEET, own]


def effective(session: Session, engine_id: str, now: dt.datetime) -> Effective:
    """What this engine should run with at `now`."""
    engine = session.get(Engine, engine_id)
    scopes = scopes_of(engine) if engine is not None else [FLEET, Scope(engine_id=engine_id)]
    rows = [row for scope in scopes if (row := newest(session, scope)) is not None]
    return Effective(
        revision=max((row.revision for row in rows), default=0), document=layered([row.document for row in rows], now)
    )


def revise(
    session: Session,
    deed: Deed,
    *,
    engine_id: str | None = None,
    group: str | None = None,
    changes: Mapping[str, Any],
    expect_revision: int | None = None,
    hold_mode: bool = True,
) -> Revised:
    """Appends a revision with `changes` applied (None removes a key) and audits it.

    `hold_mode`: a degraded mode without an expiry gets one, as a person's must; a policy's mode has none. Raises
    BadRequest for a value outside its limits, NotFound for an unknown engine or group and Conflict if the document
    moved on since `expect_revision`. A change that changes nothing appends nothing.
    """
    deed.must_be(Role.OPERATOR)
    scope = Scope(engine_id=engine_id, group=group)
    check_scope(session, scope)
    _check_standing(session, scope, expect_revision)
    document = changed(session, scope, changes, deed.now, hold_mode=hold_mode)
    return _append(session, deed, scope, document, action="set_desired")


def rollback(
    session: Session, deed: Deed, *, revision: int, scope: Scope | None = None, expect_revision: int | None = None
) -> Revised:
    """Appends the document of an earlier revision as a new one; revision 0 is the empty one from before the first.

    `scope` is needed for revision 0 alone (None: the fleet's); another revision has its own. A hold on the mode that
    has passed meanwhile is not brought back. Raises NotFound for a revision that never was, BadRequest for one of
    another scope, or that today's limits refuse, and Conflict as `revise` does.
    """
    deed.must_be(Role.OPERATOR)
    whose, document = earlier(session, revision, scope, deed.now)
    _check_standing(session, whose, expect_revision)
    return _append(session, deed, whose, document, action="rollback_desired")


def earlier(session: Session, revision: int, scope: Scope | None, now: dt.datetime) -> tuple[Scope, dict[str, Any]]:
    """What a rollback to this revision would write, and where. Raises as `rollback` does."""
    if revision == 0:
        whose = scope or FLEET
        check_scope(session, whose)
        return whose, {}
    target = session.get(DesiredState, revision)
    if target is None:
        raise NotFound(
            "revision_unknown",
            f"There is no revision {revision} of desired state.",
            "`kvdeck desired history` lists them; 0 is before the first.",
        )
    whose = Scope(engine_id=target.engine_id, group=target.group_name)
    if scope not in (None, FLEET, whose):
        raise BadRequest(
            "revision_scope",
            f"Revision {revision} is of {whose.name}, not of {scope.name}.",
            f"`kvdeck desired history` lists those of {scope.name}.",
        )
    document = without_expired_mode(target.document, now)
    kept = {key: value for key, value in document.items() if key not in MODE_KEYS}
    if kept:
        check_changes(kept, page_tokens=_page_tokens(session, whose), now=now)
    return whose, document


def changed(
    session: Session, scope: Scope, changes: Mapping[str, Any], now: dt.datetime, *, hold_mode: bool = True
) -> dict[str, Any]:
    """This scope's newest document with the changes applied. Raises BadRequest."""
    current = newest(session, scope)
    checked = check_changes(changes, page_tokens=_page_tokens(session, scope), now=now, hold_mode=hold_mode)
    merged = {**(current.document if current else {}), **checked}
    return {key: value for key, value in merged.items() if value is not None}


def restate(session: Session, deed: Deed, engine_id: str) -> int:
    """Appends an engine's own document as it is, so that the engine looks again: its group has changed."""
    scope = Scope(engine_id=engine_id)
    current = newest(session, scope)
    return _add(session, deed, scope, dict(current.document) if current else {}).revision


def expire_modes(session: Session, deed: Deed) -> list[Scope]:
    """Appends a revision without the mode wherever a person's hold has passed; returns the scopes it touched."""
    pairs = session.execute(select(DesiredState.engine_id, DesiredState.group_name).distinct()).all()
    expired: list[Scope] = []
    for engine_id, group in pairs:
        scope = Scope(engine_id=engine_id, group=group)
        current = newest(session, scope)
        if current is None:
            continue
        document = without_expired_mode(current.document, deed.now)
        if document != current.document:
            _append(session, deed, scope, document, action="expire_mode")
            expired.append(scope)
    return expired


def check_scope(session: Session, scope: Scope) -> None:
    """Raises BadRequest for two scopes at once, NotFound for an engine or a group that there is not."""
    if scope.engine_id is not None and scope.group is not None:
        raise BadRequest("scope_invalid", "An engine and a group were given.", "Name one of them, or neither.")
    if scope.engine_id is not None:
        require_engine(session, scope.engine_id)
    elif scope.group is not None:
        require_group(session, scope.group)


def require_engine(session: Session, engine_id: str, *, or_forgotten: bool = False) -> Engine:
    """The engine. Raises NotFound, naming those there are."""
    engine = session.get(Engine, engine_id)
    if engine is None or (engine.forgotten_at is not None and not or_forgotten):
        known = session.scalars(select(Engine.id).where(Engine.forgotten_at.is_(None)).order_by(Engine.id)).all()
        raise NotFound("engine_unknown", f"There is no engine {engine_id!r}.", f"There {_listed(known)}.")
    return engine


def require_group(session: Session, group: str) -> list[Engine]:
    """The engines of a group. Raises NotFound for one that has none, and for which nothing was ever asked."""
    engines = list(session.scalars(select(Engine).where(*reached_by(Scope(group=group))).order_by(Engine.id)))
    if not engines and newest(session, Scope(group=group)) is None:
        named = select(Engine.group_name).where(Engine.group_name != "", Engine.forgotten_at.is_(None)).distinct()
        known = session.scalars(named.order_by(Engine.group_name)).all()
        raise NotFound("group_unknown", f"No engine is in group {group!r}.", f"There {_listed(known)}.")
    return engines


def reached_by(scope: Scope) -> list[ColumnElement[bool]]:
    """The condition that an engine is one this document reaches."""
    known: list[ColumnElement[bool]] = [Engine.forgotten_at.is_(None)]
    if scope.engine_id is not None:
        return [*known, Engine.id == scope.engine_id]
    return known if scope.group is None else [*known, Engine.group_name == scope.group]


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    return {0: "are none yet", 1: f"is {shown}"}.get(len(names), f"are {shown}")


def _of(scope: Scope) -> tuple[ColumnElement[bool], ...]:
    if scope.engine_id is not None:
        return (DesiredState.engine_id == scope.engine_id,)
    group = DesiredState.group_name
    return (DesiredState.engine_id.is_(None), group.is_(None) if scope.group is None else group == scope.group)


def _check_standing(session: Session, scope: Scope, expect_revision: int | None) -> None:
    current = newest(session, scope)
    standing = current.revision if current else 0
    if expect_revision is not None and standing != expect_revision:
        raise Conflict(
            "revision_moved",
            f"Desired state of {scope.name} is at revision {standing}, not {expect_revision} as you saw it.",
            "Look at the newest revision and apply your change to that.",
        )


def _append(session: Session, deed: Deed, scope: Scope, document: dict[str, Any], *, action: str) -> Revised:
    current = newest(session, scope)
    before = dict(current.document) if current else {}
    found = diff(before, document)
    if not found:
        return Revised(revision=current.revision if current else 0, document=document, diff={})
    row = _add(session, deed, scope, document)
    deed.record(session, action, scope.name, before=before, after=document)
    return Revised(revision=row.revision, document=document, diff=found)


def _add(session: Session, deed: Deed, scope: Scope, document: dict[str, Any]) -> DesiredState:
    row = DesiredState(
        engine_id=scope.engine_id,
        group_name=scope.group,
        document=document,
        actor=deed.principal.name,
        reason=deed.reason,
        at=deed.now,
        trace_id=deed.trace_id,
    )
    session.add(row)
    session.flush()
    return row


def _page_tokens(session: Session, scope: Scope) -> int | None:
    """The page of the engine; of many, their common multiple, as a checkpoint must end a page of each."""
    pages = session.scalars(select(Engine.page_tokens).where(*reached_by(scope)).distinct()).all()
    return math.lcm(*pages) if pages else None
