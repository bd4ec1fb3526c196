"""What is in force on every engine, and what a change would make of it: two statements, however many engines."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from controlplane.errors import BadRequest
from controlplane.steering.desired import (
    Effective,
    Scope,
    changed,
    check_scope,
    diff,
    earlier,
    layered,
    reached_by,
    scopes_of,
)
from controlplane.store.models import DesiredState, Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed:
    """What a change would make of one document, and of what is in force on each engine it reaches."""

    scope: Scope
    revision: int  # that stands now
    before: dict[str, Any]
    after: dict[str, Any]
    diff: dict[str, list[Any]]
    engines: dict[str, tuple[Effective, dict[str, Any]]]  # engine -> in force now, in force then


def newest_of_all(session: Session) -> dict[Scope, DesiredState]:
    """The newest revision of every document there is."""
    newest = select(func.max(DesiredState.revision)).group_by(DesiredState.engine_id, DesiredState.group_name)
    rows = session.scalars(select(DesiredState).where(DesiredState.revision.in_(newest.scalar_subquery())))
    return {Scope(engine_id=row.engine_id, group=row.group_name): row for row in rows}


def effective_of_all(session: Session, now: dt.datetime) -> dict[str, Effective]:
    """Engine -> what it should run with at `now`."""
    standing = newest_of_all(session)
    return {engine.id: _in_force(scopes_of(engine), standing, now) for engine in _engines(session, Scope())}


def propose(
    session: Session,
    scope: Scope,
    now: dt.datetime,
    *,
    changes: Mapping[str, Any] | None = None,
    revision: int | None = None,
) -> Proposed:
    """What `desired.revise` with these changes, or `desired.rollback` to this revision, would do. Reads only; raises
    as they do."""
    if (changes is None) == (revision is None):
        raise BadRequest("desired_invalid", "Nothing to try.", "Give either changes or a revision to go back to.")
    check_scope(session, scope)
    if changes is not None:
        whose, after = scope, changed(session, scope, changes, now)
    else:
        whose, after = earlier(session, revision or 0, scope, now)
    standing = newest_of_all(session)
    current = standing.get(whose)
    before = dict(current.document) if current else {}
    documents = {each: row.document for each, row in standing.items()} | {whose: after}
    engines = {}
    for engine in _engines(session, whose):
        scopes = scopes_of(engine)
        then = layered([documents.get(each, {}) for each in scopes], now)
        engines[engine.id] = (_in_force(scopes, standing, now), then)
    return Proposed(
        scope=whose,
        revision=current.revision if current else 0,
        before=before,
        after=after,
        diff=diff(before, after),
        engines=engines,
    )


def _engines(session: Session, scope: Scope) -> Iterable[Engine]:
    return session.scalars(select(Engine).where(*reached_by(scope)).order_by(Engine.id))


def _in_force(scopes: Iterable[Scope], standing: Mapping[Scope, DesiredState], now: dt.datetime) -> Effective:
    rows = [standing[scope] for scope in scopes if scope in standing]
    return Effective(
        revision=max((row.revision for row in rows), default=0), document=layered([row.document for row in rows], now)
    )
