"""The rollups as rows by minute: what charts are drawn from. Nothing here scans raw history."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from controlplane.store.models import (
    MetricSeries,
    RequestHour,
    RequestRollup,
    ValidationHour,
    ValidationRollup,
)
from controlplane.store.queries_span import over
from controlplane.store.query_types import Engines, TimeRange, of_engine
from controlplane.store.series_key import series_attributes


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
