"""Gathers what the doctor knows of engines: every fact of all of them in one statement, however many there are."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, case, func, select, type_coerce
from sqlalchemy.orm import Session

from controlplane.insight.curves import Curve, curve_of, recommend
from controlplane.insight.doctor_facts import CurveFact, EngineFacts, Thrash, TierIo
from controlplane.insight.whymiss import why_by_engine
from controlplane.store.columns import MICROSECOND
from controlplane.store.models import CurveSample, DesiredState, HistoryGap, MetricRollup, Prefix, PrefixVersion
from controlplane.store.queries_engines import EngineView
from controlplane.store.queries_series import FAILED, bucket_quantile
from controlplane.store.query_types import Engines, TimeRange, inside, minutes_in, of_engine
from controlplane.store.series_key import series_attributes

COMES_BACK = dt.timedelta(minutes=5)
"""An evicted prefix that is made again within this time should have stayed."""
WATCHED_TIER = "disk"
"""The tier whose copies are timed: the others move at the speed of memory."""


def engine_facts(
    session: Session, engines: Sequence[EngineView], window: TimeRange, engine_id: Engines = None
) -> tuple[EngineFacts, ...]:
    """The facts of these engines over a range; `engine_id` None: they are all there are."""
    ids = [engine.id for engine in engines]
    why = why_by_engine(session, window, ids)
    thrash = _thrash(session, window, engine_id)
    recoveries = _grown(session, "kvcache.recoveries", window, ids)
    dropped = _grown(session, "kvcache.telemetry.dropped", window, ids)
    io = _io(session, window, ids)
    curves = _curves(session, engines)
    behind = _behind_since(session, engines)
    gaps = _oldest_gaps(session, engine_id)
    found = []
    for engine in engines:
        failed = sum(n for attributes, n in recoveries[engine.id] if attributes.get("outcome") in FAILED)
        found.append(
            EngineFacts(
                now=engine,
                why=why[engine.id],
                thrash=tuple(thrash[engine.id]),
                io=tuple(io[engine.id]),
                curve=curves.get(engine.id),
                dropped_spans=round(sum(n for _, n in dropped[engine.id])),
                recoveries=round(sum(n for _, n in recoveries[engine.id])),
                failed_recoveries=round(failed),
                clock_ahead_seconds=engine.clock_ahead_seconds,
                behind_since=behind.get(engine.desired_revision) if _is_behind(engine) else None,
                oldest_gap_at=gaps.get(engine.id),
            )
        )
    return tuple(found)


def _grown(
    session: Session, name: str, window: TimeRange, engines: Sequence[str]
) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Engine -> (attributes, growth) of every series of a counter."""
    table = MetricRollup.__table__.c
    query = (
        select(table.engine_id, table.attributes, func.sum(table.delta))
        .where(table.name == name, minutes_in(table.minute, window), *of_engine(table.engine_id, engines))
        .group_by(table.engine_id, table.attributes)
    )
    found: dict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
    for engine_id, attributes, grown in session.execute(query):
        found[engine_id].append((series_attributes(attributes), float(grown)))
    return found


def _thrash(session: Session, window: TimeRange, engine_id: Engines) -> dict[str, list[Thrash]]:
    """A prefix's newest life tells when it was made again; its last eviction before that is in the history."""
    gone = PrefixVersion
    left = (
        select(Prefix.engine_id, Prefix.namespace, Prefix.created_at, func.max(gone.at).label("left_at"))
        .join(Prefix, (Prefix.engine_id == gone.engine_id) & (Prefix.prefix_id == gone.prefix_id))
        .where(*of_engine(gone.engine_id, engine_id), inside(gone.at, window), gone.state_to == "EVICTED")
        .group_by(Prefix.engine_id, Prefix.prefix_id, Prefix.namespace, Prefix.created_at)
        .subquery()
        .c
    )
    away = type_coerce(left.created_at, BigInteger) - type_coerce(left.left_at, BigInteger)
    soon = case(((away > 0) & (away <= COMES_BACK // MICROSECOND), 1), else_=0)
    query = (
        select(left.engine_id, left.namespace, func.count(), func.sum(soon))
        .group_by(left.engine_id, left.namespace)
        .order_by(left.engine_id, left.namespace)
    )
    found: dict[str, list[Thrash]] = defaultdict(list)
    for engine, namespace, evicted, back in session.execute(query):
        found[engine].append(Thrash(namespace=namespace, evicted=int(evicted), came_back=int(back)))
    return found


def _io(session: Session, window: TimeRange, engines: Sequence[str]) -> dict[str, list[TierIo]]:
    table = MetricRollup.__table__.c
    query = select(table.engine_id, table.attributes, table.bucket_deltas).where(
        table.name == "kvcache.tier.io.duration",
        table.attributes.contains(f"tier={WATCHED_TIER}"),
        minutes_in(table.minute, window),
        *of_engine(table.engine_id, engines),
    )
    grouped: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for engine_id, attributes, buckets in session.execute(query):
        if buckets is not None:  # a histogram's first word has no growth; the document "null" is not SQL's NULL
            grouped[engine_id, attributes].append(buckets)
    found: dict[str, list[TierIo]] = defaultdict(list)
    for (engine_id, attributes), histograms in sorted(grouped.items()):
        named = series_attributes(attributes)
        if named.get("tier") == WATCHED_TIER and (io := _timed(named.get("direction", ""), histograms)):
            found[engine_id].append(io)
    return found


def _timed(direction: str, histograms: Sequence[Mapping[str, Any]]) -> TierIo | None:
    bounds: Sequence[float] = histograms[-1]["bounds"]
    counts = [sum(column) for column in zip(*(h["counts"] for h in histograms if h["bounds"] == bounds), strict=True)]
    p50, p99 = bucket_quantile(bounds, counts, 0.5), bucket_quantile(bounds, counts, 0.99)
    if p50 is None or p99 is None:
        return None
    return TierIo(tier=WATCHED_TIER, direction=direction, count=sum(counts), p50_seconds=p50, p99_seconds=p99)


def _curves(session: Session, engines: Iterable[EngineView]) -> dict[str, CurveFact]:
    by_id = {engine.id: engine for engine in engines}
    newest = (
        select(func.max(CurveSample.id))
        .where(CurveSample.engine_id.in_(by_id))
        .group_by(CurveSample.engine_id)
        .scalar_subquery()
    )
    query = select(CurveSample.engine_id, CurveSample.document).where(CurveSample.id.in_(newest))
    facts = ((engine_id, _curve(by_id[engine_id], document)) for engine_id, document in session.execute(query))
    return {engine_id: fact for engine_id, fact in facts if fact is not None}


def _curve(engine: EngineView, document: Mapping[str, Any]) -> CurveFact | None:
    """None with too few samples for a curve, or when the cap in force cannot be placed on it."""
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


def _is_behind(engine: EngineView) -> bool:
    return engine.observed_revision < engine.desired_revision


def _behind_since(session: Session, engines: Iterable[EngineView]) -> dict[int, dt.datetime]:
    """Revision -> when it was made, of those that some engine has not applied."""
    wanted = {engine.desired_revision for engine in engines if _is_behind(engine)}
    query = select(DesiredState.revision, DesiredState.at).where(DesiredState.revision.in_(wanted))
    return dict(session.execute(query).tuples().all())


def _oldest_gaps(session: Session, engine_id: Engines) -> dict[str, dt.datetime]:
    query = (
        select(HistoryGap.engine_id, func.min(HistoryGap.found_at))
        .where(HistoryGap.closed_at.is_(None), *of_engine(HistoryGap.engine_id, engine_id))
        .group_by(HistoryGap.engine_id)
    )
    return dict(session.execute(query).tuples().all())
