"""What requests lost, and to what: sums by minute and cause, and each request for a while."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import insert
from sqlalchemy.orm import Session

from controlplane.clock import floor_minute
from controlplane.ingest.facts import AcquireFact
from controlplane.ingest.rollups import add_to_hours
from controlplane.store.models import LossHour, LossRollup, RequestRecord
from controlplane.store.upsert import add_to, summed

LOSS_KEY = ("engine_id", "minute", "namespace", "cause")
LOSS_SUMS = ("requests", "tokens")


def add_losses(session: Session, engine_id: str, facts: Sequence[AcquireFact]) -> None:
    """Sum up losses. Not idempotent: only for spans seen for the first time."""
    rows = (
        {
            "engine_id": engine_id,
            "minute": floor_minute(fact.at),
            "namespace": fact.namespace,
            "cause": cause,
            "requests": 1,
            "tokens": tokens,
        }
        for fact in facts
        for cause, tokens in fact.lost.items()
    )
    minutes = summed(rows, LOSS_KEY, LOSS_SUMS)
    add_to(session, LossRollup, minutes, LOSS_KEY, LOSS_SUMS)
    add_to_hours(session, LossHour, minutes, LOSS_KEY, LOSS_SUMS)


def keep_requests(session: Session, engine_id: str, facts: Sequence[AcquireFact]) -> None:
    """A row a request. Not idempotent: only for spans seen for the first time."""
    names = (
        "trace_id", "span_id", "at", "namespace", "outcome", "reason", "mode", "prefix_id", "lost_prefix_id",
        "prompt_tokens", "lcp_tokens", "usable_tokens", "replay_tokens", "lost",
    )  # fmt: skip
    rows = [{"engine_id": engine_id, **{name: getattr(fact, name) for name in names}} for fact in facts]
    if rows:
        session.execute(insert(RequestRecord), rows)
