"""The rollups summed over engines and into time slots: what charts of a fleet are drawn from.

Where `queries_minutes` gives every row of every engine, these sums are made in the database: their size grows with
the chart, not with the number of engines.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, distinct, func, literal, select, type_coerce
from sqlalchemy.orm import Session

from controlplane.clock import floor_minute
from controlplane.store.columns import UtcMicros
from controlplane.store.models import LossRollup, MetricRollup, RequestRollup, ValidationRollup
from controlplane.store.query_types import Engines, TimeRange, minutes_in, of_engine
from controlplane.store.series_key import series_attributes

MINUTE_MICROS = 60_000_000
MOST_HISTOGRAMS = 12_000
"""Histograms read for one chart; more are thinned out to some whole minutes, evenly over the range."""


@dataclass(frozen=True, slots=True)
class RequestSlot:
    """Requests of one time slot by serving state; tokens are sums."""

    minute: dt.datetime
    state: str
    requests: int
    prompt_tokens: int
    lcp_tokens: int
    usable_tokens: int


@dataclass(frozen=True, slots=True)
class LossSlot:
    """Tokens that were no hit, of one time slot and one cause."""

    minute: dt.datetime
    cause: str
    requests: int
    tokens: int


@dataclass(frozen=True, slots=True)
class MetricSlot:
    """One series of all engines in one time slot. `delta`: growth; `held`: the mean over the slot's minutes of the sum
    over engines; `mean`: over engines and minutes."""

    minute: dt.datetime
    attributes: dict[str, str]
    delta: float
    held: float
    mean: float


@dataclass(frozen=True, slots=True)
class EngineSlot:
    """The highest value of a gauge of one engine in one time slot."""

    minute: dt.datetime
    engine_id: str
    maximum: float


@dataclass(frozen=True, slots=True)
class HistogramSlot:
    """Growth of one histogram in one time slot, over all engines: counts by bucket of `bounds`."""

    minute: dt.datetime
    attributes: dict[str, str]
    bounds: list[float]
    counts: list[int]


@dataclass(frozen=True, slots=True)
class ValidationSlot:
    """How often one validation ended in one way, in one time slot."""

    minute: dt.datetime
    validation: str
    verdict: str
    reason: str
    count: int


def request_slots(
    session: Session, window: TimeRange, step_minutes: int, engines: Engines = None, namespace: str | None = None
) -> list[RequestSlot]:
    """Requests by time slot and state, oldest first."""
    table = RequestRollup.__table__.c
    slot = _slot(table.minute, step_minutes)
    sums = (func.sum(table[name]) for name in RequestSlot.__slots__[2:])
    query = (
        select(slot, table.state, *sums)
        .where(*_of(table, window, engines), *_named(table, namespace))
        .group_by(slot, table.state)
        .order_by(slot)
    )
    return [RequestSlot(row[0], row[1], *(int(value) for value in row[2:])) for row in session.execute(query)]


def loss_slots(
    session: Session, window: TimeRange, step_minutes: int, engines: Engines = None, namespace: str | None = None
) -> list[LossSlot]:
    """Losses by time slot and cause, oldest first."""
    table = LossRollup.__table__.c
    slot = _slot(table.minute, step_minutes)
    query = (
        select(slot, table.cause, func.sum(table.requests), func.sum(table.tokens))
        .where(*_of(table, window, engines), *_named(table, namespace))
        .group_by(slot, table.cause)
        .order_by(slot)
    )
    return [LossSlot(row[0], row[1], int(row[2]), int(row[3])) for row in session.execute(query)]


def metric_slots(
    session: Session, name: str, window: TimeRange, step_minutes: int, engines: Engines = None
) -> list[MetricSlot]:
    """One instrument by time slot and attributes, oldest first."""
    table = MetricRollup.__table__.c
    slot = _slot(table.minute, step_minutes)
    query = (
        select(
            slot,
            table.attributes,
            func.sum(table.delta),
            func.sum(table.last) / func.count(distinct(table.minute)),
            func.avg(table.last),
        )
        .where(table.name == name, *_of(table, window, engines))
        .group_by(slot, table.attributes)
        .order_by(slot)
    )
    return [
        MetricSlot(row[0], series_attributes(row[1]), *(float(v) for v in row[2:])) for row in session.execute(query)
    ]


def engine_slots(
    session: Session, name: str, window: TimeRange, step_minutes: int, engines: Engines = None
) -> list[EngineSlot]:
    """The highest value of a gauge by time slot and engine, oldest first."""
    table = MetricRollup.__table__.c
    slot = _slot(table.minute, step_minutes)
    query = (
        select(slot, table.engine_id, func.max(table.maximum))
        .where(table.name == name, *_of(table, window, engines))
        .group_by(slot, table.engine_id)
        .order_by(slot)
    )
    return [EngineSlot(row[0], row[1], float(row[2])) for row in session.execute(query)]


def histogram_slots(
    session: Session, name: str, window: TimeRange, step_minutes: int, engines: Engines = None
) -> tuple[list[HistogramSlot], int]:
    """One histogram by time slot and attributes, and how many minutes one that was read stands for (1: all were read).

    Buckets are documents that no database adds up alike, so they are added here; a fleet over a long range has more of
    them than a page can wait for, and is then sampled by whole minutes.
    """
    table = MetricRollup.__table__.c
    mine = (table.name == name, *_of(table, window, engines))
    newest = session.scalar(select(func.max(table.minute)).where(*mine))
    if newest is None:
        return [], 1
    a_minute = session.scalar(select(func.count()).where(*mine, table.minute == newest)) or 1
    minutes = max(1, int((window.until - window.since).total_seconds() // 60))
    every = max(1, -(-minutes * a_minute // MOST_HISTOGRAMS))
    query = select(table.minute, table.attributes, table.bucket_deltas).where(*mine)
    if every > 1:
        first = floor_minute(window.since)
        chosen = [first + dt.timedelta(minutes=offset) for offset in range(0, minutes + 1, every)]
        query = query.where(table.minute.in_(chosen))
    sums: dict[tuple[int, str], tuple[list[float], list[int]]] = {}
    for minute, attributes, buckets in session.execute(query):
        if buckets is None:  # a histogram's first word has no growth; the document "null" is not SQL's NULL
            continue
        key = (int(minute.timestamp() // (60 * step_minutes)), attributes)
        kept = sums.get(key)
        if kept is None:
            sums[key] = (list(buckets["bounds"]), list(buckets["counts"]))
        elif kept[0] == buckets["bounds"]:
            kept[1][:] = map(int.__add__, kept[1], buckets["counts"])
    return [
        HistogramSlot(
            dt.datetime.fromtimestamp(number * 60 * step_minutes, dt.UTC), series_attributes(attributes), *both
        )
        for (number, attributes), both in sorted(sums.items())
    ], every


def validation_slots(
    session: Session, window: TimeRange, step_minutes: int, engines: Engines = None
) -> list[ValidationSlot]:
    """Validations that did not pass, by time slot, oldest first."""
    table = ValidationRollup.__table__.c
    slot = _slot(table.minute, step_minutes)
    keys = (slot, table.validation, table.verdict, table.reason)
    query = (
        select(*keys, func.sum(table["count"]))
        .where(table.verdict.in_(("fail", "repairable")), *_of(table, window, engines))
        .group_by(*keys)
        .order_by(slot)
    )
    return [ValidationSlot(row[0], row[1], row[2], row[3], int(row[4])) for row in session.execute(query)]


def usable_by_engine(session: Session, window: TimeRange) -> dict[str, tuple[int, int, int]]:
    """Engine -> (requests, prompt tokens, usable tokens) over a range."""
    table = RequestRollup.__table__.c
    query = (
        select(table.engine_id, func.sum(table.requests), func.sum(table.prompt_tokens), func.sum(table.usable_tokens))
        .where(minutes_in(table.minute, window))
        .group_by(table.engine_id)
    )
    return {row[0]: (int(row[1]), int(row[2]), int(row[3])) for row in session.execute(query)}


def namespaces_asked(session: Session, window: TimeRange, engines: Engines = None) -> list[str]:
    """Namespaces that had requests in a range, by name."""
    table = RequestRollup.__table__.c
    return sorted(session.scalars(select(distinct(table.namespace)).where(*_of(table, window, engines))))


def _slot(minute: ColumnElement[Any], step_minutes: int) -> ColumnElement[Any]:
    """The start of the slot a minute lies in: times are stored as integers, so this is whole division on both."""
    width = literal(step_minutes * MINUTE_MICROS, BigInteger)
    micros = type_coerce(minute, BigInteger)
    return type_coerce(micros - micros % width, UtcMicros).label("slot")


def _of(table: Any, window: TimeRange, engines: Engines) -> Sequence[ColumnElement[bool]]:
    return (minutes_in(table.minute, window), *of_engine(table.engine_id, engines))


def _named(table: Any, namespace: str | None) -> Sequence[ColumnElement[bool]]:
    return () if namespace is None else (table.namespace == namespace,)
