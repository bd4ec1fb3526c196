"""Gathers the doctor's facts from the store, in one read and a number of statements that no fleet changes."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Select, func, select, text, union_all
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from controlplane.insight.doctor_facts import (
    DeckFacts,
    FailedCommands,
    PolicyFacts,
    Refusals,
    StoreFacts,
)
from controlplane.insight.doctor_gather_engines import engine_facts
from controlplane.settings import Settings
from controlplane.steering.command_kinds import QUESTIONS
from controlplane.store.among import among
from controlplane.store.models import Command, LeadershipRow, MetricPoint, Policy, PolicyRun, RequestRecord
from controlplane.store.queries_engines import list_engines
from controlplane.store.query_types import TimeRange, inside

FAILURES_LOOKED_AT = 20


def gather(
    session: Session,
    settings: Settings,
    now: dt.datetime,
    window: TimeRange,
    engine_id: str | None = None,
    refused: Sequence[Refusals] = (),
) -> DeckFacts:
    """The facts of one engine, or of all, over a range. `refused` is what only the process at the door knows."""
    engines = list_engines(
        session,
        now,
        stale_seconds=settings.engine_stale_seconds,
        unreachable_seconds=settings.engine_unreachable_seconds,
    )
    chosen = [engine for engine in engines if engine_id in (None, engine.id)]
    return DeckFacts(
        at=now,
        window=window,
        engines=engine_facts(session, chosen, window, engine_id),
        commands=_failed_commands(session, window, [engine.id for engine in chosen]),
        policies=_policies(session),
        store=_store(session, settings, now),
        refused=tuple(refused),
    )


def _failed_commands(session: Session, window: TimeRange, engines: Sequence[str]) -> tuple[FailedCommands, ...]:
    """How many failed, by engine, kind and end, each with the newest of them."""
    alike = (Command.engine_id, Command.kind, Command.status)
    counted = (
        select(
            Command.id,
            func.count().over(partition_by=alike).label("count"),
            func.row_number().over(partition_by=alike, order_by=(Command.created_at.desc(), Command.id)).label("place"),
        )
        .where(inside(Command.created_at, window), Command.status.in_(("failed", "refused", "expired")))
        .where(Command.kind.not_in(QUESTIONS))  # a question that has no answer is nothing that was not done
        .where(among(session, Command.engine_id, engines))
        .subquery()
    )
    newest = select(Command, counted.c["count"]).join(counted, counted.c.id == Command.id).where(counted.c.place == 1)
    return tuple(
        FailedCommands(
            engine_id=command.engine_id,
            kind=command.kind,
            status=command.status,
            count=count,
            last_at=command.finished_at or command.created_at,
            said=str(command.outcome.get("reason") or command.outcome.get("error") or ""),
        )
        for command, count in session.execute(newest.order_by(*alike))
    )


def _policies(session: Session) -> tuple[PolicyFacts, ...]:
    policies = session.scalars(select(Policy).order_by(Policy.name)).all()
    runs: dict[str, list[tuple[dt.datetime, str | None]]] = defaultdict(list)
    if policies:
        # One statement of a part a policy: each part ends at its newest few rows, where a window function reads all.
        parts = [_newest_runs(policy.name) for policy in policies]
        found = union_all(*parts).subquery().c
        for name, at, error in session.execute(select(found.policy, found.at, found.error).order_by(found.id.desc())):
            runs[name].append((at, error))
    return tuple(_policy(policy, runs[policy.name]) for policy in policies)


def _newest_runs(policy: str) -> Select[Any]:
    mine = (PolicyRun.policy == policy, PolicyRun.dry_run.is_(False))
    newest = select(PolicyRun.id, PolicyRun.policy, PolicyRun.at, PolicyRun.error).where(*mine)
    return select(newest.order_by(PolicyRun.id.desc()).limit(FAILURES_LOOKED_AT).subquery())


def _policy(policy: Policy, runs: Sequence[tuple[dt.datetime, str | None]]) -> PolicyFacts:
    failures = next((number for number, (_, error) in enumerate(runs) if not error), len(runs))
    return PolicyFacts(
        name=policy.name,
        paused=policy.paused,
        paused_until=policy.paused_until,
        changed_at=policy.changed_at,
        last_run_at=runs[0][0] if runs else None,
        failures_in_a_row=failures,
        error=str(runs[0][1]) if failures else "",
    )


def _store(session: Session, settings: Settings, now: dt.datetime) -> StoreFacts:
    leader = session.scalar(select(LeadershipRow).order_by(LeadershipRow.epoch.desc()).limit(1))
    kept = {
        MetricPoint.at: dt.timedelta(hours=settings.keep_metric_points_hours),
        RequestRecord.at: dt.timedelta(hours=settings.keep_requests_hours),
    }
    overdue = {}
    for column, limit in kept.items():
        table = column.class_
        oldest = session.scalar(select(column).order_by(table.id).limit(1))
        if oldest is not None and now - oldest > 2 * limit:  # retention runs now and then
            overdue[str(table.__tablename__)] = oldest
    return StoreFacts(
        dialect=session.get_bind().dialect.name,
        size_bytes=_size(session, settings),
        overdue=overdue,
        epoch=leader.epoch if leader else 0,
        leader=leader.holder if leader else "",
        leads_since=leader.began_at if leader else None,
        leader_seen_at=leader.seen_at if leader else None,
    )


def _size(session: Session, settings: Settings) -> int | None:
    if session.get_bind().dialect.name == "postgresql":
        return int(session.execute(text("SELECT pg_database_size(current_database())")).scalar_one())
    name = make_url(settings.database_url).database
    files = [Path(f"{name}{suffix}") for suffix in ("", "-wal")] if name else []
    return sum(file.stat().st_size for file in files if file.exists()) or None
