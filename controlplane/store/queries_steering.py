"""What people and policies want and did: desired state, commands, policies and their runs, alerts, audit."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import String, cast, or_, select
from sqlalchemy.orm import Session

from controlplane.errors import NotFound
from controlplane.store.models import Alert, Audit, Command, DesiredState, Engine, Policy, PolicyRun
from controlplane.store.query_types import Engines, TimeRange, inside, of_engine, view


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredView:
    """One revision of desired state: of one engine, of a group, or (neither) of the fleet."""

    revision: int
    engine_id: str | None
    group_name: str | None
    document: dict[str, Any]
    actor: str
    reason: str
    at: dt.datetime
    trace_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandView:
    """One command, how far it is, and how it ended."""

    id: str
    engine_id: str
    kind: str
    arguments: dict[str, Any]
    status: str
    progress: dict[str, Any]
    outcome: dict[str, Any]
    actor: str
    reason: str
    created_at: dt.datetime
    expires_at: dt.datetime
    delivered_at: dt.datetime | None
    finished_at: dt.datetime | None
    traceparent: str | None
    batch_id: str | None = None
    selection: dict[str, Any] | None = None
    cancel_requested_at: dt.datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyView:
    """A standing rule."""

    name: str
    kind: str
    parameters: dict[str, Any]
    every_seconds: int | None
    cron: str | None
    time_zone: str
    scope: dict[str, Any]
    paused: bool
    paused_until: dt.datetime | None
    memory: dict[str, Any]
    changed_at: dt.datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRunView:
    """One decision of a policy: its inputs, what it proposed, did, and changed (filled in when that has an end)."""

    id: int
    policy: str
    engine_id: str | None
    at: dt.datetime
    trigger: str
    dry_run: bool
    inputs: dict[str, Any]
    decision: str
    proposed: list[Any]
    did: dict[str, Any]
    changed: dict[str, Any]
    settled_at: dt.datetime | None
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertView:
    """One alert: pending, firing or resolved."""

    id: int
    rule: str
    engine_id: str
    state: str
    severity: str
    summary: str
    runbook: str
    value: float
    threshold: float
    since: dt.datetime
    fired_at: dt.datetime | None
    resolved_at: dt.datetime | None
    acknowledged_by: str | None
    acknowledged_at: dt.datetime | None
    acknowledged_reason: str | None
    silence_id: int | None
    notified_at: dt.datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditView:
    """Who did what, why, before and after."""

    id: int
    at: dt.datetime
    actor: str
    role: str
    action: str
    target: str
    reason: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    trace_id: str | None


def list_desired(
    session: Session, engine_id: str | None = None, *, group: str | None = None, limit: int = 100
) -> list[DesiredView]:
    """Revisions, newest first; of one engine or group: its own and those that reach it."""
    conditions = [] if engine_id is None else [_applies_to(session, engine_id)]
    if group is not None:
        conditions.append(_FLEET | (DesiredState.group_name == group))
    query = select(DesiredState).where(*conditions).order_by(DesiredState.revision.desc()).limit(limit)
    return [view(DesiredView, row) for row in session.scalars(query)]


def list_commands(
    session: Session,
    engine_id: Engines = None,
    *,
    statuses: Sequence[str] = (),
    kind: str = "",
    batch_id: str = "",
    limit: int = 100,
) -> list[CommandView]:
    """Commands, newest first."""
    conditions = list(of_engine(Command.engine_id, engine_id))
    if statuses:
        conditions.append(Command.status.in_(statuses))
    if kind:
        conditions.append(Command.kind == kind)
    if batch_id:
        conditions.append(Command.batch_id == batch_id)
    query = select(Command).where(*conditions).order_by(Command.created_at.desc(), Command.id).limit(limit)
    return [view(CommandView, row) for row in session.scalars(query)]


def get_command(session: Session, command_id: str) -> CommandView:
    """One command. Raises NotFound."""
    row = session.get(Command, command_id)
    if row is None:
        raise NotFound("command_unknown", f"There is no command {command_id!r}.", "GET /v1/commands lists them.")
    return view(CommandView, row)


def list_policies(session: Session) -> list[PolicyView]:
    """All policies, by name."""
    return [view(PolicyView, row) for row in session.scalars(select(Policy).order_by(Policy.name))]


def list_policy_runs(
    session: Session,
    window: TimeRange | None = None,
    *,
    policy: str | None = None,
    engine_id: Engines = None,
    acted_only: bool = False,
    limit: int = 100,
) -> list[PolicyRunView]:
    """Runs, newest first. `acted_only`: those that were no dry run and proposed something."""
    conditions = list(of_engine(PolicyRun.engine_id, engine_id))
    if window is not None:
        conditions.append(inside(PolicyRun.at, window))
    if policy is not None:
        conditions.append(PolicyRun.policy == policy)
    if acted_only:
        # JSON is kept as its text on both databases, so an empty list is these two signs.
        conditions += [PolicyRun.dry_run.is_(False), cast(PolicyRun.proposed, String) != "[]"]
    query = select(PolicyRun).where(*conditions).order_by(PolicyRun.id.desc()).limit(limit)
    return [view(PolicyRunView, row) for row in session.scalars(query)]


def list_alerts(
    session: Session, *, engine_id: Engines = None, states: Sequence[str] = (), limit: int = 100
) -> list[AlertView]:
    """Alerts, newest first."""
    conditions = list(of_engine(Alert.engine_id, engine_id))
    if states:
        conditions.append(Alert.state.in_(states))
    query = select(Alert).where(*conditions).order_by(Alert.since.desc(), Alert.id.desc()).limit(limit)
    return [view(AlertView, row) for row in session.scalars(query)]


def list_audit(
    session: Session,
    window: TimeRange | None = None,
    *,
    actor: str | None = None,
    action: str | None = None,
    target: str = "",
    trace_id: str | None = None,
    before: int | None = None,
    limit: int = 100,
) -> list[AuditView]:
    """What was done, newest first. `target`: any part of it; `before`: only rows older than the one of this id, so that
    pages do not shift while rows are added."""
    conditions = [] if window is None else [inside(Audit.at, window)]
    if actor is not None:
        conditions.append(Audit.actor == actor)
    if action is not None:
        conditions.append(Audit.action == action)
    if target:
        conditions.append(Audit.target.contains(target, autoescape=True))
    if trace_id is not None:
        conditions.append(Audit.trace_id == trace_id)
    if before is not None:
        conditions.append(Audit.id < before)
    query = select(Audit).where(*conditions).order_by(Audit.id.desc()).limit(limit)
    return [view(AuditView, row) for row in session.scalars(query)]


_FLEET = DesiredState.engine_id.is_(None) & DesiredState.group_name.is_(None)


def _applies_to(session: Session, engine_id: str) -> Any:
    engine = session.get(Engine, engine_id)
    group = engine.group_name if engine is not None else ""
    reaching = [_FLEET, DesiredState.engine_id == engine_id]
    return or_(*reaching, *([DesiredState.group_name == group] if group else []))
