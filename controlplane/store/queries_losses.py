"""What requests lost, and to what: sums by minute, and single requests for as long as they are kept."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from controlplane.store.models import LossHour, LossRollup, RequestHour, RequestRecord, RequestRollup
from controlplane.store.queries_span import named, over
from controlplane.store.query_types import Engines, TimeRange, inside, minutes_in, of_engine, view


@dataclass(frozen=True, slots=True)
class LossMinute:
    """Tokens that were no hit, of one minute and one cause. `requests` lost some to it."""

    engine_id: str
    minute: dt.datetime
    namespace: str
    cause: str
    requests: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for and served over a range, in tokens."""

    requests: int
    prompt_tokens: int
    lcp_tokens: int
    usable_tokens: int
    replay_tokens: int


@dataclass(frozen=True, slots=True)
class NamespaceAsked:
    """What one namespace asked one engine for, and got, in tokens."""

    engine_id: str
    namespace: str
    requests: int
    prompt_tokens: int
    lcp_tokens: int
    usable_tokens: int
    replay_tokens: int


@dataclass(frozen=True, slots=True)
class LossCount:
    """One cause over a range."""

    cause: str
    requests: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    """One request. `lost`: cause -> tokens; with the usable ones they are the prompt's. `lost_prefix_id` would have
    served more, had it not left."""

    engine_id: str
    trace_id: str
    span_id: str
    at: dt.datetime
    namespace: str
    outcome: str
    reason: str
    mode: str
    prefix_id: str | None
    lost_prefix_id: str | None
    prompt_tokens: int
    lcp_tokens: int
    usable_tokens: int
    replay_tokens: int
    lost: dict[str, int]


def loss_minutes(
    session: Session, window: TimeRange, engine_id: Engines = None, namespace: str | None = None
) -> list[LossMinute]:
    """Losses by minute and cause, oldest first: the funnel over time."""
    table = LossRollup.__table__.c
    query = (
        select(*(table[name] for name in LossMinute.__slots__))
        .where(minutes_in(table.minute, window), *_of(table, engine_id, namespace))
        .order_by(table.minute)
    )
    return [LossMinute(*row) for row in session.execute(query)]


def loss_counts(
    session: Session, window: TimeRange, engine_id: Engines = None, namespace: str | None = None
) -> list[LossCount]:
    """Losses by cause over a range, most tokens first."""
    table = over(LossRollup, LossHour, LossCount.__slots__, window, engine_id, **named(namespace))
    tokens = func.sum(table.tokens)
    query = (
        select(table.cause, func.sum(table.requests), tokens).group_by(table.cause).order_by(tokens.desc(), table.cause)
    )
    return [LossCount(cause, int(requests), int(lost)) for cause, requests, lost in session.execute(query)]


def asked(session: Session, window: TimeRange, engine_id: Engines = None, namespace: str | None = None) -> Asked:
    """What was asked for over a range."""
    table = over(RequestRollup, RequestHour, Asked.__slots__, window, engine_id, **named(namespace))
    query = select(*(func.coalesce(func.sum(table[name]), 0) for name in Asked.__slots__))
    return Asked(*(int(value) for value in session.execute(query).one()))


def asked_by_engine(session: Session, window: TimeRange, engines: Sequence[str]) -> dict[str, Asked]:
    """What each of these engines was asked for over a range; zeros where nothing was."""
    table = over(RequestRollup, RequestHour, ("engine_id", *Asked.__slots__), window, engines)
    query = select(table.engine_id, *(func.sum(table[name]) for name in Asked.__slots__)).group_by(table.engine_id)
    found = {row[0]: Asked(*(int(value) for value in row[1:])) for row in session.execute(query)}
    return {engine: found.get(engine, Asked(0, 0, 0, 0, 0)) for engine in engines}


def loss_counts_by_engine(session: Session, window: TimeRange, engines: Sequence[str]) -> dict[str, list[LossCount]]:
    """Losses of each of these engines by cause over a range, most tokens first."""
    table = over(LossRollup, LossHour, ("engine_id", *LossCount.__slots__), window, engines)
    tokens = func.sum(table.tokens)
    query = (
        select(table.engine_id, table.cause, func.sum(table.requests), tokens)
        .group_by(table.engine_id, table.cause)
        .order_by(tokens.desc(), table.cause)
    )
    found: dict[str, list[LossCount]] = {engine: [] for engine in engines}
    for engine, cause, requests, lost in session.execute(query):
        found[engine].append(LossCount(cause, int(requests), int(lost)))
    return found


def asked_by_namespace(session: Session, window: TimeRange, engine_id: Engines = None) -> list[NamespaceAsked]:
    """What was asked for over a range, by engine and namespace, most tokens first."""
    table = over(RequestRollup, RequestHour, ("engine_id", "namespace", *Asked.__slots__), window, engine_id)
    prompt = func.sum(table.prompt_tokens)
    query = (
        select(table.engine_id, table.namespace, *(func.sum(table[name]) for name in Asked.__slots__))
        .group_by(table.engine_id, table.namespace)
        .order_by(prompt.desc(), table.engine_id, table.namespace)
    )
    return [NamespaceAsked(row[0], row[1], *(int(value) for value in row[2:])) for row in session.execute(query)]


def list_requests(
    session: Session,
    window: TimeRange | None = None,
    *,
    engine_id: Engines = None,
    namespace: str | None = None,
    trace_id: str | None = None,
    lost_prefix_id: str | None = None,
    limit: int = 100,
) -> list[RequestView]:
    """Single requests, newest first; `window` None: all that are kept."""
    conditions = list(_of(RequestRecord, engine_id, namespace))
    if window is not None:
        conditions.append(inside(RequestRecord.at, window))
    if trace_id is not None:
        conditions.append(RequestRecord.trace_id == trace_id)
    if lost_prefix_id is not None:
        conditions.append(RequestRecord.lost_prefix_id == lost_prefix_id)
    query = select(RequestRecord).where(*conditions).order_by(RequestRecord.at.desc()).limit(limit)
    return [view(RequestView, row) for row in session.scalars(query)]


def _of(table: object, engine_id: Engines, namespace: str | None) -> Sequence[ColumnElement[bool]]:
    column = getattr(table, "namespace")  # noqa: B009  # a model or its columns
    own = () if namespace is None else (column == namespace,)
    return (*of_engine(getattr(table, "engine_id"), engine_id), *own)  # noqa: B009
