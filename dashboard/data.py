"""What the pages show, read from the store. Owns the caches.

`st.cache_data` is shared by everybody who is signed in, so the role of the reader is part of every key: nobody is shown
what was read for somebody with more rights. Entries live a few seconds.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

import pandas as pd
import streamlit as st
from sqlalchemy import event

from controlplane.api.client import Unreachable
from controlplane.clock import utc_now
from controlplane.errors import ControlPlaneError, Forbidden, Unauthorised
from controlplane.insight import live
from controlplane.steering import desired
from controlplane.steering.policies.degrade import DegradeRule
from controlplane.store import queries
from controlplane.store.session import Store
from dashboard import control, frames
from dashboard.control import settings

TTL_SECONDS = 3
IDLE_MINUTES = 3  # a live engine without a request for this long is idle


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineNow:
    """An engine with what a person asks first: does it speak, does it work, does it run what was asked."""

    view: queries.EngineView
    requests_lately: int

    @property
    def health(self) -> str:
        """live, idle (speaks, but no requests), stale or unreachable."""
        return "idle" if self.view.health == "live" and not self.requests_lately else self.view.health


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlaneHealth:
    """`state`: up, unreachable (no answer), database unreadable (it answers, its database does not)."""

    state: str
    detail: str
    checked_at: dt.datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Charts:
    """The frames of one time range, read in one snapshot, and when that was."""

    as_of: dt.datetime
    since: dt.datetime
    requests: pd.DataFrame
    queries: pd.DataFrame
    hits: pd.DataFrame
    recoveries: pd.DataFrame
    io: pd.DataFrame
    fragmentation: pd.DataFrame
    tier_bytes: pd.DataFrame
    mode: pd.DataFrame
    marks: pd.DataFrame


@st.cache_resource
def store() -> Store:
    """The store, opened once a process."""
    opened = Store(settings().database_url)
    # This process must not write: everything that changes goes through the control plane, which checks and audits.
    if opened.dialect == "sqlite":
        event.listen(opened.engine, "connect", _query_only)
    return opened


def _query_only(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA query_only=ON")


@st.cache_data(ttl=TTL_SECONDS, show_spinner=False, max_entries=16)
def engines(role: str) -> list[EngineNow]:
    """Every engine that ever registered, by id."""
    del role
    now, chosen = utc_now(), settings()
    with store().read() as session:
        views = queries.list_engines(
            session,
            now,
            stale_seconds=chosen.engine_stale_seconds,
            unreachable_seconds=chosen.engine_unreachable_seconds,
        )
        lately = queries.request_minutes(session, queries.TimeRange.last(IDLE_MINUTES, now))
    counts: dict[str, int] = {}
    for row in lately:
        counts[row.engine_id] = counts.get(row.engine_id, 0) + row.requests
    return [EngineNow(view=view, requests_lately=counts.get(view.id, 0)) for view in views]


@st.cache_data(ttl=TTL_SECONDS, show_spinner=False, max_entries=64)
def whatif(
    role: str, engine: str, namespace: str, cap_prefixes: int | None, cap_bytes: int | None
) -> live.WhatIfView:
    """The newest curve of an engine, and what a proposed cap would bring. Raises NotFound where there is none."""
    del role
    with store().read() as session:
        return live.what_if(session, engine, namespace=namespace, cap_prefixes=cap_prefixes, cap_bytes=cap_bytes)


@st.cache_data(ttl=TTL_SECONDS, show_spinner=False, max_entries=16)
def predictions(role: str, engine: str) -> list[live.PredictionView]:
    """What curves foretold of an engine's caps, and what came of it, newest first."""
    del role
    with store().read() as session:
        return live.outcomes(session, engine, limit=20)


@st.cache_data(ttl=TTL_SECONDS, show_spinner=False, max_entries=32)
def charts(role: str, engine: str | None, namespace: str | None, minutes: int) -> Charts:
    """Everything the time charts draw. Metrics have no namespace: only the request frame is cut down to one."""
    del role
    now = utc_now()
    window = queries.TimeRange.last(minutes, now)
    with store().read() as session:

        def series(name: str) -> list[queries.MetricMinute]:
            return queries.metric_minutes(session, f"kvcache.{name}", window, engine)

        return Charts(
            as_of=now,
            since=window.since,
            requests=frames.requests_frame(queries.request_minutes(session, window, engine), namespace),
            queries=frames.queries_frame(series("queries")),
            hits=frames.hits_frame(series("hits")),
            recoveries=frames.recoveries_frame(series("recoveries")),
            io=frames.io_frame(series("tier.io.duration")),
            fragmentation=frames.fragmentation_frame(series("fragmentation")),
            tier_bytes=frames.tier_bytes_frame(series("tier.bytes")),
            mode=frames.mode_frame(series("mode")),
            marks=frames.marks_frame(queries.list_marks(session, window, engine)),
        )


@st.cache_data(ttl=TTL_SECONDS, show_spinner=False, max_entries=32)
def overview(role: str, engine: str | None, minutes: int) -> queries.Overview:
    """The range in numbers."""
    del role
    with store().read() as session:
        return queries.overview(session, queries.TimeRange.last(minutes, utc_now()), engine)


@st.cache_data(ttl=30, show_spinner=False, max_entries=16)
def namespaces(role: str) -> list[str]:
    """Namespaces that had requests in the last day, by name."""
    del role
    with store().read() as session:
        rows = queries.request_minutes(session, queries.TimeRange.last(24 * 60, utc_now()))
    return sorted({row.namespace for row in rows})


@st.cache_data(ttl=TTL_SECONDS, show_spinner=False, max_entries=32)
def prefixes(
    role: str,
    engine: str | None,
    namespace: str | None,
    states: tuple[str, ...],
    search: str,
    order: str,
    limit: int,
) -> queries.PrefixPage:
    """The prefixes that match, in order."""
    del role
    with store().read() as session:
        return queries.list_prefixes(
            session, engine_id=engine, namespace=namespace, states=states, search=search, order=order, limit=limit
        )


@st.cache_data(ttl=TTL_SECONDS, show_spinner=False, max_entries=32)
def prefix(role: str, engine: str, prefix_id: str) -> queries.PrefixDetail:
    """One prefix's life. Raises NotFound."""
    del role
    with store().read() as session:
        return queries.get_prefix(session, engine, prefix_id)


@st.cache_data(ttl=TTL_SECONDS, show_spinner=False, max_entries=16)
def damaged(role: str, engine: str | None) -> list[queries.DamagedView]:
    """Prefixes in quarantine, newest first."""
    del role
    with store().read() as session:
        return queries.list_damaged(session, engine, limit=200)


@st.cache_data(ttl=TTL_SECONDS, show_spinner=False, max_entries=32)
def validations(
    role: str, engine: str | None, minutes: int
) -> tuple[list[queries.ValidationCount], list[queries.FailureView]]:
    """How the validations of a range ended, and the newest that failed."""
    del role
    window = queries.TimeRange.last(minutes, utc_now())
    with store().read() as session:
        return (
            queries.validation_counts(session, window, engine),
            queries.list_failures(session, window, engine, limit=300),
        )


@st.cache_data(ttl=1, show_spinner=False, max_entries=16)
def revisions(role: str, engine: str | None) -> list[queries.DesiredView]:
    """Revisions of desired state that bear on an engine (or any), newest first."""
    del role
    with store().read() as session:
        return queries.list_desired(session, engine, limit=60)


@st.cache_data(ttl=1, show_spinner=False, max_entries=16)
def effective(role: str, engine: str) -> dict[str, Any]:
    """What one engine should run with now: its own document over that for every engine."""
    del role
    with store().read() as session:
        return desired.effective(session, engine, utc_now()).document


@st.cache_data(ttl=TTL_SECONDS, show_spinner=False, max_entries=16)
def commands(role: str, engine: str | None) -> list[queries.CommandView]:
    """The newest commands."""
    del role
    with store().read() as session:
        return queries.list_commands(session, engine, limit=60)


@st.cache_data(ttl=0.5, show_spinner=False, max_entries=32)
def command(role: str, command_id: str) -> queries.CommandView:
    """One command, fresh enough to follow. Raises NotFound."""
    del role
    with store().read() as session:
        return queries.get_command(session, command_id)


@st.cache_data(ttl=TTL_SECONDS, show_spinner=False, max_entries=16)
def policies(role: str) -> tuple[list[queries.PolicyView], list[queries.PolicyRunView]]:
    """The standing policies, and the newest runs of all of them."""
    del role
    with store().read() as session:
        return queries.list_policies(session), queries.list_policy_runs(session, limit=200)


@st.cache_data(ttl=TTL_SECONDS, show_spinner=False, max_entries=16)
def alerts(role: str, engine: str | None) -> list[queries.AlertView]:
    """The newest alerts."""
    del role
    with store().read() as session:
        return queries.list_alerts(session, engine_id=engine, limit=200)


@st.cache_data(ttl=TTL_SECONDS, show_spinner=False, max_entries=16)
def audit(role: str, minutes: int) -> list[queries.AuditView]:
    """What people and policies did in a range, newest first."""
    del role
    with store().read() as session:
        return queries.list_audit(session, queries.TimeRange.last(minutes, utc_now()), limit=500)


def degrade_threshold(role: str) -> float | None:
    """The failure rate above which the degrade policy steps down; None when no such policy runs."""
    for policy in policies(role)[0]:
        if policy.kind == "degrade" and not policy.paused:
            return float(policy.parameters.get("step_down_above", DegradeRule().step_down_above))
    return None


@st.cache_data(ttl=2, show_spinner=False, max_entries=1)
def control_plane() -> ControlPlaneHealth:
    """Whether the control plane answers, and whether its database does."""
    now = utc_now()
    try:
        control.health()
    except Unreachable as error:
        return ControlPlaneHealth(state="unreachable", detail=str(error), checked_at=now)
    except ControlPlaneError as error:
        return ControlPlaneHealth(state="database unreadable", detail=str(error), checked_at=now)
    return ControlPlaneHealth(state="up", detail="It answers, and so does its database.", checked_at=now)


@st.cache_data(ttl=30, show_spinner=False, max_entries=64)
def token_still_holds(token: str, role: str) -> bool:
    """Whether the control plane still knows this token with this role. Nobody to ask: as before.

    Reads do not pass through the API, so a token that was revoked must be noticed here.
    """
    try:
        return control.identify(token).role == role
    except (Unauthorised, Forbidden):
        return False
    except ControlPlaneError:
        return True


def clear() -> None:
    """Forget what was read, so that the next look shows what an action just changed."""
    control_plane.clear()
    for cached in (
        engines,
        charts,
        overview,
        prefixes,
        prefix,
        damaged,
        validations,
        revisions,
        commands,
        policies,
        alerts,
    ):
        cached.clear()
    audit.clear()
