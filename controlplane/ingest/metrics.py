"""One OTLP metrics export into the store, in one transaction."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics
from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from controlplane.clock import Clock, floor_hour, floor_minute, utc_now
from controlplane.errors import ControlPlaneError
from controlplane.ingest.engines import require_engine_row
from controlplane.ingest.facts import BadFact
from controlplane.ingest.gaps import ask_for_snapshot
from controlplane.ingest.growth import Growth, Heard, growth, is_repeat, merged
from controlplane.ingest.outcome import SCOPE, IngestOutcome, Sender, sender_of
from controlplane.ingest.points import Point, read_metric
from controlplane.ingest.reading import latest_ns
from controlplane.store.models import MetricHour, MetricPoint, MetricRollup, MetricSeries
from controlplane.store.upsert import Row, add_to, replace, summed

SERIES_KEY = ("engine_id", "name", "attributes")
ROLLUP_KEY = (*SERIES_KEY, "minute")
HOUR_KEY = ("engine_id", "name", "attributes", "hour")
Minute = tuple[str, str, dt.datetime]  # name, attributes, minute


def ingest_metrics(session: Session, request: ExportMetricsServiceRequest, *, clock: Clock = utc_now) -> IngestOutcome:
    """Write the points and their growth by minute. A point heard before, or older than one heard, counts nothing.

    Needs a write session. Raises as `ingest_traces` does.
    """
    outcome = IngestOutcome()
    for resource in request.resource_metrics:
        try:
            sender = sender_of(resource.resource)
            engine = require_engine_row(session, sender.engine_id, sender.boot_id)
        except ControlPlaneError as error:
            outcome.refuse(error, sum(len(scope.metrics) for scope in resource.scope_metrics))
            continue
        now = clock()
        _apply(session, sender, _read(resource, now, outcome), outcome)
        # Metrics come every few seconds even from an idle engine, so an overdue gap is noticed without traffic.
        ask_for_snapshot(session, engine, now)
    outcome.raise_if_all_refused()
    return outcome


def _read(resource: ResourceMetrics, now: dt.datetime, outcome: IngestOutcome) -> list[Point]:
    points: list[Point] = []
    latest = latest_ns(now)
    for scope in resource.scope_metrics:
        if scope.scope.name != SCOPE:
            outcome.ignored += len(scope.metrics)
            continue
        for metric in scope.metrics:
            for read in read_metric(metric, latest):
                if isinstance(read, BadFact):
                    outcome.reject(read.reason, str(read))
                else:
                    points.append(read)
    outcome.accepted += len(points)
    outcome.heard(max((point.at for point in points), default=None))
    return sorted(points, key=lambda point: point.at)


def _apply(session: Session, sender: Sender, points: Sequence[Point], outcome: IngestOutcome) -> None:
    heard = _heard(session, sender.engine_id)
    boot_is_known = any(series.boot_id == sender.boot_id for series in heard.values())
    new: list[Point] = []
    grown: list[tuple[Point, Growth]] = []
    for point in points:
        last = heard.get(point.series)
        if is_repeat(point, sender.boot_id, last):
            outcome.repeated += 1
            continue
        grown.append((point, growth(point, sender.boot_id, last, boot_is_known=boot_is_known)))
        new.append(point)
        heard[point.series] = _as_heard(point, sender.boot_id)
    if not new:
        return
    session.execute(insert(MetricPoint), [_point_row(sender, point) for point in new])
    latest = {point.series: _point_row(sender, point) for point in new}
    replace(session, MetricSeries, list(latest.values()), SERIES_KEY)
    _add_to_minutes(session, sender, grown)


def _heard(session: Session, engine_id: str) -> dict[tuple[str, str], Heard]:
    table = MetricSeries.__table__.c
    query = select(
        table.name, table.attributes, table.at, table.boot_id, table.value, table.count, table.buckets
    ).where(table.engine_id == engine_id)
    return {
        (row[0], row[1]): Heard(at=row[2], boot_id=row[3], value=row[4], count=row[5], buckets=row[6])
        for row in session.execute(query)
    }


def _as_heard(point: Point, boot_id: str) -> Heard:
    buckets = None if point.buckets is None else asdict(point.buckets)
    return Heard(at=point.at, boot_id=boot_id, value=point.value, count=point.count, buckets=buckets)


def _point_row(sender: Sender, point: Point) -> Row:
    return {
        "engine_id": sender.engine_id,
        "name": point.name,
        "attributes": point.attributes,
        "at": point.at,
        "boot_id": sender.boot_id,
        "value": point.value,
        "count": point.count,
        "buckets": None if point.buckets is None else asdict(point.buckets),
    }


def _add_to_minutes(session: Session, sender: Sender, grown: Sequence[tuple[Point, Growth]]) -> None:
    minutes = {floor_minute(point.at) for point, _ in grown}
    table = MetricRollup.__table__
    query = select(table).where(table.c.engine_id == sender.engine_id, table.c.minute.in_(minutes))
    rows: dict[Minute, dict[str, Any]] = {
        (row["name"], row["attributes"], row["minute"]): dict(row) for row in session.execute(query).mappings()
    }
    touched: dict[Minute, Row] = {}
    for point, more in grown:
        key = (*point.series, floor_minute(point.at))
        row = rows.setdefault(key, _empty_minute(sender, point))
        row["last"] = point.value
        row["delta"] += more.value
        row["maximum"] = max(row["maximum"], point.value)
        row["count_delta"] += more.count
        row["bucket_deltas"] = merged(row["bucket_deltas"], more.buckets)
        row["boot_id"] = sender.boot_id
        touched[key] = row
    replace(session, MetricRollup, list(touched.values()), ROLLUP_KEY)
    _add_to_hours(session, sender, grown)


def _add_to_hours(session: Session, sender: Sender, grown: Sequence[tuple[Point, Growth]]) -> None:
    rows = (
        {
            "engine_id": sender.engine_id,
            "name": point.name,
            "attributes": point.attributes,
            "hour": floor_hour(point.at),
            "delta": more.value,
        }
        for point, more in grown
        if more.value
    )
    add_to(session, MetricHour, summed(rows, HOUR_KEY, ("delta",)), HOUR_KEY, ("delta",))


def _empty_minute(sender: Sender, point: Point) -> dict[str, Any]:
    return {
        "engine_id": sender.engine_id,
        "name": point.name,
        "attributes": point.attributes,
        "minute": floor_minute(point.at),
        "last": point.value,
        "delta": 0.0,
        "maximum": point.value,
        "count_delta": 0,
        "bucket_deltas": None,
        "boot_id": sender.boot_id,
    }
