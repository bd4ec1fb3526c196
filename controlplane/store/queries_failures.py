"""Failed validations, one by one."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from controlplane.store.models import ValidationFailure
from controlplane.store.query_types import Engines, TimeRange, inside, of_engine, view


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureView:
    """One validation that failed, and the trace it failed in."""

    engine_id: str
    prefix_id: str
    validation: str
    object_kind: str
    reason: str
    boundary: int
    at: dt.datetime
    trace_id: str
    span_id: str


def list_failures(
    session: Session,
    window: TimeRange | None = None,
    engine_id: Engines = None,
    *,
    validation: str | None = None,
    limit: int = 100,
) -> list[FailureView]:
    """Failed validations, newest first; `window` None: over all that is kept."""
    conditions = list(of_engine(ValidationFailure.engine_id, engine_id))
    if window is not None:
        conditions.append(inside(ValidationFailure.at, window))
    if validation is not None:
        conditions.append(ValidationFailure.validation == validation)
    query = select(ValidationFailure).where(*conditions).order_by(ValidationFailure.at.desc()).limit(limit)
    return [view(FailureView, row) for row in session.scalars(query)]
