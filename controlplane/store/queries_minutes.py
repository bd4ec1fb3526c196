"""The rollups as rows by minute: what charts are drawn from. Nothing here scans raw history."""

from __future__ import annotations

import datetime as dt
import functools
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from controlplane.store.models import (
    MetricRollup,
    MetricSeries,
    RequestHour,
    RequestRollup,
    ValidationHour,
    ValidationRollup,
)
from controlplane.store.queries_span import over
from controlplane.store.query_types import Engines, TimeRange, minutes_in, of_engine
from controlplane.store.series_key import series_attributes


@dataclass(frozen=True, slots=True)
class RequestMinute:
    """Requests of one minute that ended alike. Tokens are sums."""

    engine_id: str
    minute: dt.datetime
    namespace: str
    outcome: str
    reason: str
    state: str
    tier: str
    requests: int
    prompt_tokens: int
    lcp_tokens: int
    usable_tokens: int
    replay_tokens: int


@dataclass(frozen=True, slots=True)
class ValidationMinute:
    """Validations of one minute that ended alike."""

    engine_id: str
    minute: dt.datetime
    validation: str
    verdict: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class MetricMinute:
    """One series in one minute. `last`: value at its end; `delta`, `count_delta`, `bucket_deltas`: growth inside it."""

    engine_id: str
    minute: dt.datetime
    attributes: dict[str, str]
    last: float
    delta: float
    maximum: float
    count_delta: int
    bucket_deltas: dict[str, Any] | None  # {"bounds": [...], "counts": [...]}; histograms only


@dataclass(frozen=True, slots=True)
class MetricNow:
    """One series as last heard. `value` of a counter is cumulative since the engine's start."""

    engine_id: str
    attributes: dict[str, str]
    at: dt.datetime
    value: float


@dataclass(frozen=True, slots=True)
class ValidationCount:
    """How often one validation ended in one way, over a range."""

    validation: str
    verdict: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class ReasonCount:
    """Why what the index found was not all usable: requests, and the tokens found but not used."""

    reason: str
    requests: int
    tokens_lost: int


def request_minutes(session: Session, window: TimeRange, engine_id: Engines = None) -> list[RequestMinute]:
    """Requests by minute, oldest first."""
    table = RequestRollup.__table__.c
    query = (
        select(*(table[name] for name in RequestMinute.__slots__))
        .where(minutes_in(table.minute, window), *of_engine(table.engine_id, engine_id))
        .order_by(table.minute)
    )
    return [RequestMinute(*row) for row in session.execute(query)]


def validation_minutes(session: Session, window: TimeRange, engine_id: Engines = None) -> list[ValidationMinute]:
    """Validations by minute, oldest first."""
    table = ValidationRollup.__table__.c
    query = (
        select(*(table[name] for name in ValidationMinute.__slots__))
        .where(minutes_in(table.minute, window), *of_engine(table.engine_id, engine_id))
        .order_by(table.minute)
    )
    return [ValidationMinute(*row) for row in session.execute(query)]


def metric_minutes(session: Session, name: str, window: TimeRange, engine_id: Engines = None) -> list[MetricMinute]:
    """One instrument of wire.md, section 2, by minute and attributes, oldest first."""
    table = MetricRollup.__table__.c
    query = (
        select(*(table[column] for column in MetricMinute.__slots__))
        .where(table.name == name, minutes_in(table.minute, window), *of_engine(table.engine_id, engine_id))
        .order_by(table.minute)
    )
    read = functools.cache(series_attributes)  # a few keys, in every minute of every engine
    return [MetricMinute(row[0], row[1], read(row[2]), *row[3:]) for row in session.execute(query)]


def metric_now(session: Session, name: str, engine_id: Engines = None) -> list[MetricNow]:
    """One instrument as last heard from each engine's current boot."""
    table = MetricSeries.__table__.c
    query = select(table.engine_id, table.attributes, table.at, table.value).where(
        table.name == name, *of_engine(table.engine_id, engine_id)
    )
    return [MetricNow(row[0], series_attributes(row[1]), row[2], row[3]) for row in session.execute(query)]


def validation_counts(session: Session, window: TimeRange, engine_id: Engines = None) -> list[ValidationCount]:
    """How the validations ended over a range, by validation, verdict and reason."""
    names = ("validation", "verdict", "reason")
    table = over(ValidationRollup, ValidationHour, (*names, "count"), window, engine_id)
    keys = [table[name] for name in names]
    query = select(*keys, func.sum(table["count"])).group_by(*keys).order_by(*keys)
    return [ValidationCount(row[0], row[1], row[2], int(row[3])) for row in session.execute(query)]


def miss_reasons(session: Session, window: TimeRange, engine_id: Engines = None) -> list[ReasonCount]:
    """Why not a hit: tokens found but not usable, by reason, most first."""
    names = ("reason", "requests", "lcp_tokens", "usable_tokens")
    table = over(RequestRollup, RequestHour, names, window, engine_id)
    lost = func.sum(table.lcp_tokens - table.usable_tokens)
    query = (
        select(table.reason, func.sum(table.requests), lost)
        .where(table.reason != "none")
        .group_by(table.reason)
        .order_by(lost.desc())
    )
    return [ReasonCount(row[0], int(row[1]), int(row[2])) for row in session.execute(query)]
