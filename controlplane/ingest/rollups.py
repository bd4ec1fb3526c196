"""Validations and requests into sums by minute, and every failed validation into a row of its own."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy.orm import Session

from controlplane.clock import floor_hour, floor_minute
from controlplane.ingest.facts import AcquireFact, ValidationFact
from controlplane.store.base import Base
from controlplane.store.models import RequestHour, RequestRollup, ValidationFailure, ValidationHour, ValidationRollup
from controlplane.store.upsert import Row, add_to, insert_new, summed

VALIDATION_KEY = ("engine_id", "minute", "validation", "verdict", "reason")
REQUEST_KEY = ("engine_id", "minute", "namespace", "outcome", "reason", "state", "tier")
REQUEST_SUMS = ("requests", "prompt_tokens", "lcp_tokens", "usable_tokens", "replay_tokens")


def add_validations(session: Session, engine_id: str, facts: Iterable[ValidationFact]) -> None:
    """Count validations. Not idempotent: only for spans seen for the first time."""
    rows = (
        {
            "engine_id": engine_id,
            "minute": floor_minute(fact.at),
            "validation": fact.validation,
            "verdict": fact.verdict,
            "reason": fact.reason,
            "count": 1,
        }
        for fact in facts
    )
    minutes = summed(rows, VALIDATION_KEY, ("count",))
    add_to(session, ValidationRollup, minutes, VALIDATION_KEY, ("count",))
    add_to_hours(session, ValidationHour, minutes, VALIDATION_KEY, ("count",))


def add_failures(session: Session, engine_id: str, facts: Iterable[ValidationFact]) -> None:
    """Keep the failed validations. Idempotent by span id."""
    rows: list[Row] = [
        {
            "engine_id": engine_id,
            "prefix_id": fact.prefix_id,
            "validation": fact.validation,
            "object_kind": fact.object_kind,
            "reason": fact.reason,
            "boundary": fact.boundary,
            "at": fact.at,
            "trace_id": fact.trace_id,
            "span_id": fact.span_id,
        }
        for fact in facts
        if fact.verdict == "fail"
    ]
    insert_new(session, ValidationFailure, rows, ("engine_id", "trace_id", "span_id"))


def add_requests(session: Session, engine_id: str, facts: Iterable[AcquireFact]) -> None:
    """Sum up requests. Not idempotent: only for spans seen for the first time."""
    rows = (
        {
            "engine_id": engine_id,
            "minute": floor_minute(fact.at),
            "namespace": fact.namespace,
            "outcome": fact.outcome,
            "reason": fact.reason,
            "state": fact.state,
            "tier": fact.tier,
            "requests": 1,
            "prompt_tokens": fact.prompt_tokens,
            "lcp_tokens": fact.lcp_tokens,
            "usable_tokens": fact.usable_tokens,
            "replay_tokens": fact.replay_tokens,
        }
        for fact in facts
    )
    minutes = summed(rows, REQUEST_KEY, REQUEST_SUMS)
    add_to(session, RequestRollup, minutes, REQUEST_KEY, REQUEST_SUMS)
    add_to_hours(session, RequestHour, minutes, REQUEST_KEY, REQUEST_SUMS)


def add_to_hours(
    session: Session, model: type[Base], minutes: Iterable[Row], key: tuple[str, ...], sums: tuple[str, ...]
) -> None:
    """Add sums by minute to the table that has the same by hour."""
    keys = tuple("hour" if name == "minute" else name for name in key)
    rows = ({**row, "hour": floor_hour(row["minute"])} for row in minutes)
    add_to(session, model, summed(rows, keys, sums), keys, sums)
