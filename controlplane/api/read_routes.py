"""Everything there is to see: wire.md, section 4. Needs the role viewer, but for /healthz."""

from __future__ import annotations

import datetime as dt
from typing import Annotated

from fastapi import APIRouter, Query
from sqlalchemy import text

from controlplane.api.asked import EngineAsked
from controlplane.api.security import SettingsOf, StoreOf, Viewer
from controlplane.clock import utc_now
from controlplane.errors import BadRequest
from controlplane.steering import desired as steered
from controlplane.store import queries
from controlplane.store.queries import TimeRange

router = APIRouter(tags=["read"])

EARLIEST, LATEST = dt.datetime(1970, 2, 2, tzinfo=dt.UTC), dt.datetime(9000, 1, 1, tzinfo=dt.UTC)
FARTHEST_OFFSET = 100_000_000
MOST_ROW_ID = (1 << 63) - 1
Limit = Annotated[int, Query(ge=1, le=1000)]
Minutes = Annotated[float, Query(gt=0, le=60 * 24 * 31, description="How far back, in minutes.")]
Since = Annotated[dt.datetime | None, Query(description="RFC 3339, with a zone; goes before `minutes`.")]


def window_of(since: dt.datetime | None, until: dt.datetime | None, minutes: float) -> TimeRange:
    """The range a caller asked for. Raises BadRequest for times without a zone, or the wrong way round."""
    now = utc_now()
    for time in (since, until):
        if time is not None and time.tzinfo is None:
            raise BadRequest("time_naive", "A time without a zone was given.", "Write 2026-01-31T12:00:00Z.")
        if time is not None and not EARLIEST <= time <= LATEST:
            raise BadRequest(
                "time_range", f"{time} is before 1970 or after the year 9000.", "Nothing is kept of such times."
            )
    window = TimeRange.last(minutes, until or now) if since is None else TimeRange(since, until or now)
    if window.since >= window.until:
        raise BadRequest("time_order", f"since {window.since} is not before {window.until}.", "Swap them.")
    return window


@router.get("/healthz", tags=["health"])
def healthz(store: StoreOf) -> dict[str, str]:
    """200 when the database answers, 503 when it does not. Needs no token."""
    with store.read() as session:
        session.execute(text("SELECT version_num FROM alembic_version"))
    return {"status": "ok", "database": store.dialect}


@router.get("/v1/overview")
def overview(
    _caller: Viewer,
    store: StoreOf,
    engine: EngineAsked = None,
    namespace: str | None = None,
    minutes: Minutes = 60,
    since: Since = None,
) -> queries.Overview:
    """One range in numbers, and what the engines hold now. Of one namespace as far as numbers carry it: the answer
    names those that do not."""
    with store.read() as session:
        return queries.overview(session, window_of(since, None, minutes), engine, namespace)


@router.get("/v1/engines")
def engines(_caller: Viewer, store: StoreOf, settings: SettingsOf) -> list[queries.EngineView]:
    """Every engine, with health and sync apart."""
    with store.read() as session:
        return queries.list_engines(
            session,
            utc_now(),
            stale_seconds=settings.engine_stale_seconds,
            unreachable_seconds=settings.engine_unreachable_seconds,
        )


@router.get("/v1/prefixes")
def prefixes(
    _caller: Viewer,
    store: StoreOf,
    engine: EngineAsked = None,
    state: Annotated[list[str] | None, Query()] = None,
    namespace: str | None = None,
    search: str = "",
    id_start: str = "",
    pinned: bool | None = None,
    label: Annotated[str, Query(description="NAME or NAME=VALUE.")] = "",
    order: str = "served",
    limit: Limit = 100,
    offset: Annotated[int, Query(ge=0, le=FARTHEST_OFFSET)] = 0,
) -> queries.PrefixPage:
    """Prefixes that match; without `state`, all but the evicted ones. 404 for a namespace there is not."""
    name, has_value, value = label.partition("=")
    with store.read() as session:
        if namespace is not None:
            queries.require_namespace(session, namespace)
        return queries.list_prefixes(
            session,
            engine_id=engine,
            states=state or (),
            namespace=namespace,
            search=search,
            id_start=id_start,
            pinned=pinned,
            label=(name, value if has_value else None) if label else None,
            order=order,
            limit=limit,
            offset=offset,
        )


@router.get("/v1/prefixes/{engine}/{prefix_id}")
def prefix(_caller: Viewer, store: StoreOf, engine: str, prefix_id: str) -> queries.PrefixDetail:
    """One prefix: now, versions, checkpoints, failures, gaps, children."""
    with store.read() as session:
        return queries.get_prefix(session, engine, prefix_id)


@router.get("/v1/validations/failures")
def failures(
    _caller: Viewer,
    store: StoreOf,
    engine: EngineAsked = None,
    validation: str | None = None,
    since: Since = None,
    limit: Limit = 100,
) -> list[queries.FailureView]:
    """Failed validations, newest first; without `since`, all that are kept."""
    window = None if since is None else window_of(since, None, 1)
    with store.read() as session:
        return queries.list_failures(session, window, engine, validation=validation, limit=limit)


@router.get("/v1/validations")
def validations(
    _caller: Viewer, store: StoreOf, engine: EngineAsked = None, minutes: Minutes = 60, since: Since = None
) -> list[queries.ValidationCount]:
    """How the validations ended, by validation, verdict and reason."""
    with store.read() as session:
        return queries.validation_counts(session, window_of(since, None, minutes), engine)


@router.get("/v1/damaged")
def damaged(
    _caller: Viewer, store: StoreOf, engine: EngineAsked = None, limit: Limit = 100
) -> list[queries.DamagedView]:
    """Prefixes in quarantine, and why."""
    with store.read() as session:
        return queries.list_damaged(session, engine, limit=limit)


@router.get("/v1/series")
def series(
    _caller: Viewer,
    store: StoreOf,
    name: str,
    engine: EngineAsked = None,
    minutes: Minutes = 60,
    since: Since = None,
    until: Since = None,
) -> queries.Series:
    """One series by minute; an unknown name is answered with those there are."""
    with store.read() as session:
        return queries.series(session, name, window_of(since, until, minutes), engine)


@router.get("/v1/marks")
def marks(
    _caller: Viewer, store: StoreOf, engine: EngineAsked = None, minutes: Minutes = 60, since: Since = None
) -> list[queries.Mark]:
    """What was changed in a range, by whom and why."""
    with store.read() as session:
        return queries.list_marks(session, window_of(since, None, minutes), engine)


@router.get("/v1/desired")
def desired(
    _caller: Viewer, store: StoreOf, engine: EngineAsked = None, group: str | None = None, limit: Limit = 100
) -> list[queries.DesiredView]:
    """Revisions of desired state, newest first; of one engine or group, with those of wider scopes that reach it."""
    with store.read() as session:
        steered.check_scope(session, steered.Scope(engine_id=engine, group=group))
        return queries.list_desired(session, engine, group=group, limit=limit)


@router.get("/v1/commands")
def commands(
    _caller: Viewer,
    store: StoreOf,
    engine: EngineAsked = None,
    status: Annotated[list[str] | None, Query()] = None,
    kind: str = "",
    batch: str = "",
    limit: Limit = 100,
) -> list[queries.CommandView]:
    """Commands, newest first."""
    with store.read() as session:
        return queries.list_commands(session, engine, statuses=status or (), kind=kind, batch_id=batch, limit=limit)


@router.get("/v1/commands/{command_id}")
def command(_caller: Viewer, store: StoreOf, command_id: str) -> queries.CommandView:
    """One command, how far it is, and how it ended."""
    with store.read() as session:
        return queries.get_command(session, command_id)


@router.get("/v1/audit")
def audit_rows(
    _caller: Viewer,
    store: StoreOf,
    actor: str | None = None,
    action: str | None = None,
    target: Annotated[str, Query(description="Any part of the target.")] = "",
    trace: str | None = None,
    since: Since = None,
    before: Annotated[
        int | None, Query(ge=0, le=MOST_ROW_ID, description="Rows older than the one of this id.")
    ] = None,
    limit: Limit = 100,
) -> list[queries.AuditView]:
    """Who did what, newest first. The next page: `before` the id of the last row."""
    window = None if since is None else window_of(since, None, 1)
    with store.read() as session:
        return queries.list_audit(
            session, window, actor=actor, action=action, target=target, trace_id=trace, before=before, limit=limit
        )
