"""Engines with two questions kept apart: does it speak (health), and does it run what was asked (sync)."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from controlplane.errors import NotFound
from controlplane.store.models import DesiredState, Engine, HistoryGap
from controlplane.store.query_types import view


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineView:
    """One engine. `health`: live, stale, unreachable, left (it said goodbye). `sync`: in_sync, behind, refused (it said
    why in `observed`)."""

    id: str
    boot_id: str
    model: str
    fingerprint: str
    page_tokens: int
    labels: dict[str, Any]
    registered_at: dt.datetime
    last_seen_at: dt.datetime
    last_seen_seconds: float
    health: str
    observed_revision: int
    desired_revision: int
    sync: str
    observed: dict[str, Any]
    stats: dict[str, Any]
    snapshot_wanted: bool
    open_gaps: int
    group: str = ""
    left_at: dt.datetime | None = None
    clock_ahead_seconds: float | None = None  # its clock less ours at the last heartbeat; None: it does not say


def list_engines(
    session: Session, now: dt.datetime, *, stale_seconds: float = 15, unreachable_seconds: float = 60
) -> list[EngineView]:
    """Every engine that ever registered and was not forgotten, by id."""
    revisions = _desired_revisions(session)
    gaps = _open_gaps(session)
    limits = (stale_seconds, unreachable_seconds)
    return [
        _view(row, now, _newest_for(row, revisions), gaps.get(row.id, 0), limits)
        for row in session.scalars(select(Engine).where(Engine.forgotten_at.is_(None)).order_by(Engine.id))
    ]


def get_engine(
    session: Session, engine_id: str, now: dt.datetime, *, stale_seconds: float = 15, unreachable_seconds: float = 60
) -> EngineView:
    """One engine. Raises NotFound."""
    engines = list_engines(session, now, stale_seconds=stale_seconds, unreachable_seconds=unreachable_seconds)
    for engine in engines:
        if engine.id == engine_id:
            return engine
    known = ", ".join(engine.id for engine in engines) or "none"
    raise NotFound("engine_unknown", f"No engine {engine_id!r} has registered here.", f"Engines: {known}.")


def _view(row: Engine, now: dt.datetime, desired: int, gaps: int, limits: tuple[float, float]) -> EngineView:
    age = max(0.0, (now - row.last_seen_at).total_seconds())
    return view(
        EngineView,
        row,
        group=row.group_name,
        last_seen_seconds=age,
        health=_health(row, age, limits),
        desired_revision=desired,
        sync=_sync(row, desired),
        open_gaps=gaps,
    )


def _health(row: Engine, age_seconds: float, limits: tuple[float, float]) -> str:
    if row.left_at is not None:
        return "left"
    return "live" if age_seconds <= limits[0] else "stale" if age_seconds <= limits[1] else "unreachable"


def _sync(row: Engine, desired: int) -> str:
    if row.observed_revision < desired:
        return "behind"
    return "refused" if row.observed.get("error") else "in_sync"


def _newest_for(row: Engine, revisions: dict[tuple[str | None, str | None], int]) -> int:
    scopes = ((None, None), (None, row.group_name), (row.id, None))
    return max(revisions.get(scope, 0) for scope in scopes)


def _desired_revisions(session: Session) -> dict[tuple[str | None, str | None], int]:
    scope = (DesiredState.engine_id, DesiredState.group_name)
    query = select(*scope, func.max(DesiredState.revision)).group_by(*scope)
    return {(engine_id, group): revision for engine_id, group, revision in session.execute(query)}


def _open_gaps(session: Session) -> dict[str, int]:
    query = (
        select(HistoryGap.engine_id, func.count()).where(HistoryGap.closed_at.is_(None)).group_by(HistoryGap.engine_id)
    )
    return dict(session.execute(query).tuples().all())
