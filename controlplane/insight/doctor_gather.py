"""Gathers the doctor's facts from the store, in one read."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import func, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from controlplane.insight.curves import Curve, curve_of, recommend
from controlplane.insight.doctor_facts import (
    CurveFact,
    DeckFacts,
    EngineFacts,
    FailedCommands,
    PolicyFacts,
    Refusals,
    StoreFacts,
    Thrash,
    TierIo,
)
from controlplane.insight.whymiss import why_in_window
from controlplane.settings import Settings
from controlplane.store.models import (
    Command,
    CurveSample,
    DesiredState,
    HistoryGap,
    LeadershipRow,
    MetricPoint,
    Policy,
    PolicyRun,
    Prefix,
    PrefixVersion,
    RequestRecord,
)
from controlplane.store.queries_engines import EngineView, list_engines
from controlplane.store.queries_minutes import MetricMinute, metric_minutes
from controlplane.store.queries_series import FAILED, bucket_quantile
from controlplane.store.query_types import TimeRange, inside

COMES_BACK = dt.timedelta(minutes=5)
"""An evicted prefix that is made again within this time should have stayed."""
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
    # Of all engines at once: one by one, each reads the rows of all others over.
    recoveries, io, dropped = (
        _by_engine(metric_minutes(session, f"kvcache.{name}", window, engine_id))
        for name in ("recoveries", "tier.io.duration", "telemetry.dropped")
    )
    return DeckFacts(
        at=now,
        window=window,
        engines=tuple(
            _engine(session, engine, window, recoveries[engine.id], io[engine.id], dropped[engine.id])
            for engine in chosen
        ),
        commands=_failed_commands(session, window, [engine.id for engine in chosen]),
        policies=tuple(_policy(session, policy) for policy in session.scalars(select(Policy).order_by(Policy.name))),
        store=_store(session, settings, now),
        refused=tuple(refused),
    )


def _by_engine(rows: Sequence[MetricMinute]) -> dict[str, list[MetricMinute]]:
    found: dict[str, list[MetricMinute]] = defaultdict(list)
    for row in rows:
        found[row.engine_id].append(row)
    return found


def _engine(
    session: Session,
    engine: EngineView,
    window: TimeRange,
    recoveries: Sequence[MetricMinute],
    io: Sequence[MetricMinute],
    dropped: Sequence[MetricMinute],
) -> EngineFacts:
    ok, failed = _recoveries(recoveries)
    return EngineFacts(
        now=engine,
        why=why_in_window(session, window, engine.id),
        thrash=_thrash(session, engine.id, window),
        io=_io(io),
        curve=_curve(session, engine),
        dropped_spans=round(sum(row.delta for row in dropped)),
        recoveries=ok + failed,
        failed_recoveries=failed,
        clock_ahead_seconds=engine.clock_ahead_seconds,
        behind_since=_behind_since(session, engine),
        oldest_gap_at=session.scalar(
            select(func.min(HistoryGap.found_at)).where(
                HistoryGap.engine_id == engine.id, HistoryGap.closed_at.is_(None)
            )
        ),
    )


def _recoveries(rows: Sequence[MetricMinute]) -> tuple[int, int]:
    ok = failed = 0.0
    for row in rows:
        if row.attributes.get("outcome") in FAILED:
            failed += row.delta
        else:
            ok += row.delta
    return round(ok), round(failed)


def _thrash(session: Session, engine_id: str, window: TimeRange) -> tuple[Thrash, ...]:
    """A prefix's newest life tells when it was made again; its last eviction before that is in the history."""
    gone = PrefixVersion
    query = (
        select(Prefix.namespace, Prefix.prefix_id, Prefix.created_at, func.max(gone.at))
        .join(Prefix, (Prefix.engine_id == gone.engine_id) & (Prefix.prefix_id == gone.prefix_id))
        .where(gone.engine_id == engine_id, inside(gone.at, window), gone.state_to == "EVICTED")
        .group_by(Prefix.namespace, Prefix.prefix_id, Prefix.created_at)
    )
    evicted: dict[str, int] = defaultdict(int)
    back: dict[str, int] = defaultdict(int)
    for namespace, _, created_at, left_at in session.execute(query):
        evicted[namespace] += 1
        back[namespace] += dt.timedelta() < created_at - left_at <= COMES_BACK
    return tuple(Thrash(namespace=name, evicted=count, came_back=back[name]) for name, count in sorted(evicted.items()))


def _io(rows: Sequence[MetricMinute]) -> tuple[TierIo, ...]:
    grouped: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        if row.bucket_deltas is not None:
            key = (row.attributes.get("tier", ""), row.attributes.get("direction", ""))
            grouped[key].append(row.bucket_deltas)
    found = []
    for (tier, direction), histograms in sorted(grouped.items()):
        bounds: Sequence[float] = histograms[-1]["bounds"]
        counts = [
            sum(column) for column in zip(*(h["counts"] for h in histograms if h["bounds"] == bounds), strict=True)
        ]
        p50, p99 = bucket_quantile(bounds, counts, 0.5), bucket_quantile(bounds, counts, 0.99)
        if p50 is not None and p99 is not None:
            found.append(
                TierIo(tier=tier, direction=direction, count=sum(counts), p50_seconds=p50, p99_seconds=p99)
            )  # fmt: skip
    return tuple(found)


def _curve(session: Session, engine: EngineView) -> CurveFact | None:
    """None without a curve, with too few samples for one, or when the cap in force cannot be placed on it."""
    newest = select(CurveSample.document).where(CurveSample.engine_id == engine.id).order_by(CurveSample.at.desc())
    document = session.scalar(newest.limit(1))
    if not document:
        return None
    try:
        curve: Curve = curve_of(document)
    except (KeyError, TypeError):  # of a kvdeck that writes curves another way
        return None
    found = recommend(curve)
    cap_bytes = engine.observed.get("cap_gpu_bytes") or engine.stats.get("tiers", {}).get("gpu", {}).get("total_bytes")
    pages = curve.pages_at(prefixes=engine.observed.get("cap_prefixes"), n_bytes=cap_bytes)
    if found is None or pages is None or not cap_bytes:
        return None
    better = found.near_ceiling
    return CurveFact(
        hit_ratio=curve.hit_ratio(pages),
        better_ratio=float(better["hit_ratio"]),
        cap_bytes=int(cap_bytes),
        better_bytes=int(better["bytes"] or 0),
        samples=int(curve.samples),
    )


def _behind_since(session: Session, engine: EngineView) -> dt.datetime | None:
    if engine.observed_revision >= engine.desired_revision:
        return None
    return session.scalar(select(DesiredState.at).where(DesiredState.revision == engine.desired_revision))


def _failed_commands(session: Session, window: TimeRange, engines: Sequence[str]) -> tuple[FailedCommands, ...]:
    query = (
        select(Command)
        .where(inside(Command.created_at, window), Command.status.in_(("failed", "refused", "expired")))
        .order_by(Command.created_at.desc())
        .limit(1000)
    )
    grouped: dict[tuple[str, str, str], list[Command]] = defaultdict(list)
    for command in session.scalars(query):
        if command.engine_id in engines:
            grouped[command.engine_id, command.kind, command.status].append(command)
    return tuple(
        FailedCommands(
            engine_id=engine_id,
            kind=kind,
            status=status,
            count=len(found),
            last_at=found[0].finished_at or found[0].created_at,
            said=str(found[0].outcome.get("reason") or found[0].outcome.get("error") or ""),
        )
        for (engine_id, kind, status), found in sorted(grouped.items())
    )


def _policy(session: Session, policy: Policy) -> PolicyFacts:
    query = (
        select(PolicyRun.at, PolicyRun.error)
        .where(PolicyRun.policy == policy.name, PolicyRun.dry_run.is_(False))
        .order_by(PolicyRun.at.desc(), PolicyRun.id.desc())
        .limit(FAILURES_LOOKED_AT)
    )
    runs = session.execute(query).all()
    failures = next((number for number, (_, error) in enumerate(runs) if not error), len(runs))
    return PolicyFacts(
        name=policy.name,
        every_seconds=policy.every_seconds,
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
    )


def _size(session: Session, settings: Settings) -> int | None:
    if session.get_bind().dialect.name == "postgresql":
        return int(session.execute(text("SELECT pg_database_size(current_database())")).scalar_one())
    name = make_url(settings.database_url).database
    files = [Path(f"{name}{suffix}") for suffix in ("", "-wal")] if name else []
    return sum(file.stat().st_size for file in files if file.exists()) or None
