"""Changes as marks in time: what was done, by whom and why, for every chart."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from controlplane.store.models import Alert, Command, DesiredState, PrefixVersion
from controlplane.store.queries_steering import list_policy_runs
from controlplane.store.query_types import Engines, TimeRange, inside, of_engine

MOST = 500  # of each kind: more marks than a chart has room for
MARKED_COMMANDS = ("evict", "warm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One change. `kind`: desired, evict, warm, policy, alert, quarantine. `reference`: the row it stands for."""

    at: dt.datetime
    kind: str
    engine_id: str | None
    text: str
    actor: str
    reason: str
    reference: str
    trace_id: str | None


def list_marks(session: Session, window: TimeRange, engine_id: Engines = None) -> list[Mark]:
    """The changes in a range that bear on an engine (or any), oldest first."""
    found = [
        *_desired(session, window, engine_id),
        *_commands(session, window, engine_id),
        *_policy_runs(session, window, engine_id),
        *_alerts(session, window, engine_id),
        *_quarantines(session, window, engine_id),
    ]
    return sorted(found, key=lambda mark: mark.at)


def _desired(session: Session, window: TimeRange, engine_id: Engines) -> Iterator[Mark]:
    mine = [or_(DesiredState.engine_id.is_(None), own) for own in of_engine(DesiredState.engine_id, engine_id)]
    conditions = (inside(DesiredState.at, window), *mine)
    for row in session.scalars(
        select(DesiredState).where(*conditions).order_by(DesiredState.revision.desc()).limit(MOST)
    ):
        yield Mark(
            at=row.at,
            kind="desired",
            engine_id=row.engine_id,
            text=f"desired state, revision {row.revision}",
            actor=row.actor,
            reason=row.reason,
            reference=str(row.revision),
            trace_id=row.trace_id,
        )


def _commands(session: Session, window: TimeRange, engine_id: Engines) -> Iterator[Mark]:
    conditions = (inside(Command.created_at, window), Command.kind.in_(MARKED_COMMANDS))
    query = select(Command).where(*conditions, *of_engine(Command.engine_id, engine_id))
    for row in session.scalars(query.order_by(Command.created_at.desc()).limit(MOST)):
        count = len(row.arguments.get("prefix_ids") or ())
        yield Mark(
            at=row.created_at,
            kind=row.kind,
            engine_id=row.engine_id,
            text=f"{row.kind} {count} prefix{'' if count == 1 else 'es'}: {row.status}",
            actor=row.actor,
            reason=row.reason,
            reference=row.id,
            trace_id=_trace_id(row.traceparent),
        )


def _policy_runs(session: Session, window: TimeRange, engine_id: Engines) -> Iterator[Mark]:
    for run in list_policy_runs(session, window, engine_id=engine_id, acted_only=True, limit=MOST):
        yield Mark(
            at=run.at,
            kind="policy",
            engine_id=run.engine_id,
            text=f"policy {run.policy}: {run.decision}",
            actor=f"policy:{run.policy}",
            reason=run.trigger,
            reference=str(run.id),
            trace_id=None,
        )


def _alerts(session: Session, window: TimeRange, engine_id: Engines) -> Iterator[Mark]:
    query = select(Alert).where(inside(Alert.fired_at, window), *of_engine(Alert.engine_id, engine_id))
    for row in session.scalars(query.order_by(Alert.id.desc()).limit(MOST)):
        yield Mark(
            at=row.fired_at or row.since,
            kind="alert",
            engine_id=row.engine_id,
            text=f"alert {row.rule}: {row.summary}",
            actor="alert",
            reason=row.rule,
            reference=str(row.id),
            trace_id=None,
        )


def _quarantines(session: Session, window: TimeRange, engine_id: Engines) -> Iterator[Mark]:
    conditions = (inside(PrefixVersion.at, window), PrefixVersion.state_to == "QUARANTINED")
    query = select(PrefixVersion).where(*conditions, *of_engine(PrefixVersion.engine_id, engine_id))
    for row in session.scalars(query.order_by(PrefixVersion.at.desc()).limit(MOST)):
        yield Mark(
            at=row.at,
            kind="quarantine",
            engine_id=row.engine_id,
            text=f"prefix {row.prefix_id[:8]} quarantined: {row.reason}",
            actor=row.cause,
            reason=row.reason,
            reference=row.prefix_id,
            trace_id=row.trace_id or None,
        )


def _trace_id(traceparent: str | None) -> str | None:
    parts = (traceparent or "").split("-")
    return parts[1] if len(parts) == 4 else None
