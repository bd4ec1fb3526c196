"""What an expression is worth now, for every engine at once: one or two queries a rule, however many engines."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from controlplane.clock import floor_minute
from controlplane.steering.alerts.expressions import (
    Absence,
    Expression,
    Fact,
    Gauge,
    GaugeGrowth,
    Growth,
    HitRateDrop,
    Ratio,
    Silence,
    Where,
)
from controlplane.steering.alerts.health import Health
from controlplane.store.models import (
    Command,
    Engine,
    HistoryGap,
    MetricRollup,
    MetricSeries,
    Notification,
    Policy,
    RequestRollup,
)
from controlplane.store.series_key import series_attributes

CONTROL_PLANE = "(control plane)"  # the subject of what is no engine's; no engine id has brackets
FRESH = dt.timedelta(seconds=60)  # a gauge not heard of for longer says nothing of now
SPEAKS = dt.timedelta(seconds=15)
WHOLE_POLICY = "(policy)"

Values = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What readings look at: the engines there are, and how the scheduler itself fared."""

    engines: Sequence[Engine]
    health: Health
    now: dt.datetime

    @property
    def ids(self) -> list[str]:
        """The engines' ids."""
        return [engine.id for engine in self.engines]


def read(session: Session, expression: Expression, scene: Scene, namespace: str | None = None) -> Values:
    """The value for each subject; a subject that is not in it is one of which nothing can be said now."""
    match expression:
        case Ratio():
            return _ratio(session, expression, scene)
        case Growth():
            return _growth(session, expression.metric, expression.where, expression.window_seconds, scene)
        case Gauge():
            fold: Callable[[Iterable[float]], float] = max if expression.over == "max" else sum
            return {engine: fold(values) for engine, values in _gauges(session, expression, scene).items()}
        case GaugeGrowth():
            return _gauge_growth(session, expression, scene)
        case Absence():
            return _absence(session, expression, scene)
        case Silence():
            return {engine.id: max(0.0, (scene.now - engine.last_seen_at).total_seconds()) for engine in scene.engines}
        case HitRateDrop():
            return _hit_rate_drop(session, expression, scene, namespace)
        case Fact():
            return _fact(session, expression, scene)


def matches(attributes: str, where: Where) -> bool:
    """Whether a series has the attributes that are asked for."""
    if not where:
        return True
    has = series_attributes(attributes)
    return all(
        has.get(name) == wanted if isinstance(wanted, str) else has.get(name) in wanted
        for name, wanted in where.items()
    )


def _ratio(session: Session, ratio: Ratio, scene: Scene) -> Values:
    whole = _growth(session, ratio.whole, ratio.whole_where, ratio.window_seconds, scene)
    part = _growth(session, ratio.part, ratio.part_where, ratio.window_seconds, scene)
    # Nothing was tried, so nothing failed; a few say nothing, and the alert stays as it is.
    return {
        engine: part.get(engine, 0.0) / tried if tried else 0.0
        for engine, tried in whole.items()
        if tried == 0 or tried >= ratio.minimum
    }


def _growth(session: Session, metric: str, where: Where, window_seconds: int, scene: Scene) -> Values:
    since = floor_minute(scene.now - dt.timedelta(seconds=window_seconds))
    query = select(MetricRollup.engine_id, MetricRollup.attributes, func.sum(MetricRollup.delta)).where(
        MetricRollup.engine_id.in_(scene.ids), MetricRollup.name == metric, MetricRollup.minute >= since
    )
    grown = dict.fromkeys(scene.ids, 0.0)
    for engine, attributes, delta in session.execute(query.group_by(MetricRollup.engine_id, MetricRollup.attributes)):
        if matches(attributes, where):
            grown[engine] += delta
    return grown


def _gauges(session: Session, gauge: Gauge | GaugeGrowth, scene: Scene) -> dict[str, list[float]]:
    query = select(MetricSeries.engine_id, MetricSeries.attributes, MetricSeries.value).where(
        MetricSeries.engine_id.in_(scene.ids),
        MetricSeries.name == gauge.metric,
        MetricSeries.at > scene.now - FRESH,
    )
    found: dict[str, list[float]] = defaultdict(list)
    for engine, attributes, value in session.execute(query):
        if matches(attributes, gauge.where):
            found[engine].append(value)
    return found


def _gauge_growth(session: Session, gauge: GaugeGrowth, scene: Scene) -> Values:
    first_minute = floor_minute(scene.now - dt.timedelta(seconds=gauge.window_seconds))
    query = select(MetricRollup.engine_id, MetricRollup.attributes, MetricRollup.last).where(
        MetricRollup.engine_id.in_(scene.ids), MetricRollup.name == gauge.metric, MetricRollup.minute == first_minute
    )
    before: dict[str, float] = defaultdict(float)
    for engine, attributes, value in session.execute(query):
        if matches(attributes, gauge.where):
            before[engine] += value
    speaks = _heard_lately(session, gauge.metric, scene)
    now = _gauges(session, gauge, scene)
    # An engine that sends the metric but not this series has none of it now: that is 0, not silence.
    return {engine: sum(now.get(engine, ())) - before[engine] for engine in speaks}


def _heard_lately(session: Session, metric: str, scene: Scene) -> set[str]:
    query = select(MetricSeries.engine_id).where(
        MetricSeries.engine_id.in_(scene.ids), MetricSeries.name == metric, MetricSeries.at > scene.now - FRESH
    )
    return set(session.scalars(query.distinct()))


def _absence(session: Session, absence: Absence, scene: Scene) -> Values:
    query = select(MetricSeries.engine_id, MetricSeries.attributes, MetricSeries.at).where(
        MetricSeries.engine_id.in_(scene.ids), MetricSeries.name == absence.metric
    )
    newest: dict[str, dt.datetime] = {}
    for engine, attributes, at in session.execute(query):
        if matches(attributes, absence.where):
            newest[engine] = max(at, newest.get(engine, at))
    return {engine: max(0.0, (scene.now - at).total_seconds()) for engine, at in newest.items()}


def _hit_rate_drop(session: Session, drop: HitRateDrop, scene: Scene, namespace: str | None) -> Values:
    since = floor_minute(scene.now - dt.timedelta(minutes=drop.window_minutes))
    before = since - dt.timedelta(minutes=drop.past_minutes)
    now = _hits(session, since, scene.now, namespace, scene)
    past = _hits(session, before, since, namespace, scene)
    return {
        engine: past[engine].rate - seen.rate
        for engine, seen in now.items()
        if engine in past and min(seen.requests, past[engine].requests) >= drop.minimum_requests
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Hits:
    """Requests of a range, and the share of their tokens that was served from the cache."""

    requests: int
    rate: float


def _hits(
    session: Session, since: dt.datetime, until: dt.datetime, namespace: str | None, scene: Scene
) -> dict[str, Hits]:
    table = RequestRollup
    query = select(
        table.engine_id, func.sum(table.requests), func.sum(table.prompt_tokens), func.sum(table.usable_tokens)
    ).where(table.engine_id.in_(scene.ids), table.minute >= since, table.minute < until)
    if namespace is not None:
        query = query.where(table.namespace == namespace)
    return {
        engine: Hits(requests=int(requests), rate=float(usable) / float(prompt))
        for engine, requests, prompt, usable in session.execute(query.group_by(table.engine_id))
        if prompt
    }


def _fact(session: Session, fact: Fact, scene: Scene) -> Values:
    since = scene.now - dt.timedelta(seconds=fact.window_seconds)
    match fact.fact:
        case "open_gaps":
            return _counted(session, HistoryGap.engine_id, scene, HistoryGap.closed_at.is_(None))
        case "failed_commands":
            over = Command.status.in_(("failed", "expired")), Command.finished_at > since
            return _counted(session, Command.engine_id, scene, *over)
        case "failing_policies":
            failing = _failing(session)
            return {engine: float(failing.get(engine, 0)) for engine in scene.ids}
        case "telemetry_lag_seconds":
            return _telemetry_lag(session, scene)
        case "broken_policies":
            return {CONTROL_PLANE: float(_failing(session).get(WHOLE_POLICY, 0))}
        case "database_seconds":
            return {CONTROL_PLANE: scene.health.longest_seconds(since)}
        case "database_failures":
            return {CONTROL_PLANE: float(scene.health.failures(since))}
        case "undelivered_seconds":
            oldest = session.scalar(select(func.min(Notification.created_at)).where(Notification.status == "pending"))
            return {CONTROL_PLANE: 0.0 if oldest is None else max(0.0, (scene.now - oldest).total_seconds())}
    raise AssertionError(f"{fact.fact} is no fact")


def _counted(session: Session, engine_column: Any, scene: Scene, *conditions: Any) -> Values:
    query = select(engine_column, func.count()).where(engine_column.in_(scene.ids), *conditions)
    counts: Mapping[str, int] = dict(session.execute(query.group_by(engine_column)).all())  # type: ignore[arg-type]
    return {engine: float(counts.get(engine, 0)) for engine in scene.ids}


def _failing(session: Session) -> dict[str, int]:
    """How many policies' newest recorded run failed, by engine; the policies remember it."""
    failing: dict[str, int] = defaultdict(int)
    for policy in session.scalars(select(Policy).where(Policy.paused.is_(False))):
        for where, kept in policy.memory.items():
            last = kept.get("recorded", {}) if isinstance(kept, dict) else {}
            if isinstance(last, dict) and last.get("decision") == "failed":
                failing[where] += 1
    return failing


def _telemetry_lag(session: Session, scene: Scene) -> Values:
    speaking = [engine.id for engine in scene.engines if engine.last_seen_at > scene.now - SPEAKS]
    query = select(MetricSeries.engine_id, func.max(MetricSeries.at)).where(MetricSeries.engine_id.in_(speaking))
    newest = session.execute(query.group_by(MetricSeries.engine_id))
    return {engine: max(0.0, (scene.now - at).total_seconds()) for engine, at in newest}
