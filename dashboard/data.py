"""What the pages show, read from the store. Owns the caches.

`st.cache_data` is shared by everybody who is signed in, so the role of the reader is part of every key: nobody is shown
what was read for somebody with more rights. Entries live a few seconds.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import pandas as pd
import streamlit as st
from sqlalchemy import event

from controlplane.api.client import Unreachable
from controlplane.clock import utc_now
from controlplane.errors import ControlPlaneError, Forbidden, Unauthorised
from controlplane.insight import doctor, live, whymiss
from controlplane.insight.doctor_gather import gather
from controlplane.insight.doctor_rule import Finding
from controlplane.steering import desired
from controlplane.steering.alerts import receivers
from controlplane.steering.desired_fleet import effective_of_all
from controlplane.steering.policies import why
from controlplane.steering.policies.degrade import DegradeRule
from controlplane.store import queries, queries_alerts, queries_charts
from controlplane.store.queries_families import Families, families
from controlplane.store.query_types import Engines
from controlplane.store.session import Store
from dashboard import control, frames
from dashboard.caching import TTL_SECONDS, RangeCache
from dashboard.control import settings
from dashboard.readings import Charts, ControlPlaneHealth, EngineNow, Validations, slot_minutes
from dashboard.session import Filters

FINDINGS_TTL_SECONDS = 15  # the doctor reads a good deal of every engine
FINDINGS_MINUTES = 60  # and looks at the last hour whatever range is drawn: what it finds is about now
IDLE_MINUTES = 3  # a live engine without a request for this long is idle


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
        lately = queries_charts.usable_by_engine(session, queries.TimeRange.last(IDLE_MINUTES, now))
    found = []
    for view in views:
        requests, prompt, usable = lately.get(view.id, (0, 0, 0))
        found.append(
            EngineNow(
                view=view,
                requests_lately=requests,
                prompt_tokens_lately=prompt,
                usable_tokens_lately=usable,
            )
        )
    return found


@st.cache_data(ttl=TTL_SECONDS, show_spinner=False, max_entries=16)
def gaps(role: str, engine: Engines) -> list[queries.GapView]:
    """Open holes in the history, newest first."""
    del role
    with store().read() as session:
        return queries.list_gaps(session, engine)


def scope(role: str, chosen: Filters) -> str | tuple[str, ...] | None:
    """What the filters mean for a read: one engine, the engines of a group, or (None) all."""
    if chosen.engine or not chosen.group:
        return chosen.engine
    return tuple(engine.view.id for engine in engines(role) if engine.view.group == chosen.group)


def engines_in(role: str, chosen: Filters) -> list[EngineNow]:
    """The engines the filters choose, by id."""
    wanted = scope(role, chosen)
    if isinstance(wanted, str):
        return [engine for engine in engines(role) if engine.view.id == wanted]
    return [engine for engine in engines(role) if wanted is None or engine.view.id in wanted]


@st.cache_data(ttl=TTL_SECONDS, show_spinner=False, max_entries=64)
def whatif(role: str, engine: str, namespace: str, cap_prefixes: int | None, cap_bytes: int | None) -> live.WhatIfView:
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


@RangeCache
def charts(role: str, engine: Engines, namespace: str | None, minutes: int) -> Charts:
    """Everything the time charts draw. Metrics have no namespace: only requests and losses are cut down to one.
    `as_of` says when it was read."""
    del role
    now, step = utc_now(), slot_minutes(minutes)
    window = queries.TimeRange.last(minutes, now)
    with store().read() as session:

        def series(name: str) -> list[queries_charts.MetricSlot]:
            return queries_charts.metric_slots(session, f"kvcache.{name}", window, step, engine)

        io, io_every = queries_charts.histogram_slots(session, "kvcache.tier.io.duration", window, step, engine)
        drawn: dict[str, pd.DataFrame] = {
            "requests": frames.requests_frame(queries_charts.request_slots(session, window, step, engine, namespace)),
            "losses": frames.losses_frame(queries_charts.loss_slots(session, window, step, engine, namespace)),
            "queries": frames.queries_frame(series("queries")),
            "hits": frames.hits_frame(series("hits")),
            "recoveries": frames.recoveries_frame(series("recoveries")),
            "io": frames.io_frame(io),
            "fragmentation": frames.fragmentation_frame(series("fragmentation")),
            "tier_bytes": frames.tier_bytes_frame(series("tier.bytes")),
            "mode": frames.mode_frame(queries_charts.engine_slots(session, "kvcache.mode", window, step, engine)),
            "marks": frames.marks_frame(queries.list_marks(session, window, engine)),
        }
    return Charts(
        as_of=now,
        since=window.since,
        step_minutes=step,
        io_every=io_every,
        version=frames.version_of(drawn.values()),
        **drawn,
    )


@RangeCache
def overview(role: str, engine: Engines, namespace: str | None, minutes: int) -> queries.Overview:
    """The range in numbers."""
    del role
    with store().read() as session:
        return queries.overview(session, queries.TimeRange.last(minutes, utc_now()), engine, namespace)


@RangeCache
def why_miss(role: str, engine: Engines, namespace: str | None, minutes: int) -> whymiss.WhyMiss:
    """Where the tokens of prompts went, by cause."""
    del role
    window = queries.TimeRange.last(minutes, utc_now())
    with store().read() as session:
        return whymiss.why_in_window(session, window, engine, namespace)


@st.cache_data(ttl=FINDINGS_TTL_SECONDS, show_spinner=False, max_entries=16, refresh_mode="background")
def _findings(role: str, engine: str | None) -> list[Finding]:
    """What the doctor finds on one engine or all, worst first."""
    del role
    now = utc_now()
    window = queries.TimeRange.last(FINDINGS_MINUTES, now)
    with store().read() as session:
        return doctor.examine(gather(session, settings(), now, window, engine))


def findings(role: str, chosen: Filters) -> list[Finding]:
    """What the doctor finds on the engines the filters choose, and on the deck itself."""
    wanted = scope(role, chosen)
    if wanted is None or isinstance(wanted, str):
        return _findings(role, wanted)
    return [one for one in _findings(role, None) if one.engine_id is None or one.engine_id in wanted]


@st.cache_data(ttl=30, show_spinner=False, max_entries=16, refresh_mode="background")
def prefix_families(role: str, engine: Engines, namespace: str | None) -> Families:
    """The largest prefixes with all above them, and the rest as sums."""
    del role
    with store().read() as session:
        return families(session, engine, namespace)


@st.cache_data(ttl=30, show_spinner=False, max_entries=16)
def namespaces(role: str) -> list[str]:
    """Namespaces that had requests in the last day, by name."""
    del role
    with store().read() as session:
        return queries_charts.namespaces_asked(session, queries.TimeRange.last(24 * 60, utc_now()))


@st.cache_data(ttl=TTL_SECONDS, show_spinner=False, max_entries=32)
def prefixes(
    role: str,
    engine: Engines,
    namespace: str | None,
    states: tuple[str, ...],
    search: str,
    order: str,
    limit: int,
    holds_in: str = "",
) -> queries.PrefixPage:
    """The prefixes that match, in order. A search with "=" in it is for a label: name=value, or name= for any value."""
    del role
    name, is_label, value = search.strip().partition("=")
    with store().read() as session:
        return queries.list_prefixes(
            session,
            engine_id=engine,
            namespace=namespace,
            states=states,
            search="" if is_label else search,
            label=(name.strip(), value.strip() or None) if is_label else None,
            holds_in=holds_in,
            order=order,
            limit=limit,
        )


@st.cache_data(ttl=TTL_SECONDS, show_spinner=False, max_entries=32)
def prefix(role: str, engine: str, prefix_id: str) -> queries.PrefixDetail:
    """One prefix's life. Raises NotFound."""
    del role
    with store().read() as session:
        return queries.get_prefix(session, engine, prefix_id)


@st.cache_data(ttl=TTL_SECONDS, show_spinner=False, max_entries=16)
def damaged(role: str, engine: Engines) -> list[queries.DamagedView]:
    """Prefixes in quarantine, newest first."""
    del role
    with store().read() as session:
        return queries.list_damaged(session, engine, limit=200)


@RangeCache
def validations(role: str, engine: Engines, minutes: int) -> Validations:
    """How the validations of a range ended, when they did not pass, and the newest that failed."""
    del role
    now, step = utc_now(), slot_minutes(minutes)
    window = queries.TimeRange.last(minutes, now)
    with store().read() as session:
        return Validations(
            counts=queries.validation_counts(session, window, engine),
            slots=frames.not_passed_frame(queries_charts.validation_slots(session, window, step, engine)),
            failures=queries.list_failures(session, window, engine, limit=300),
        )


@st.cache_data(ttl=1, show_spinner=False, max_entries=16)
def revisions(role: str, engine: str | None) -> list[queries.DesiredView]:
    """Revisions of desired state that bear on an engine (or any), newest first."""
    del role
    with store().read() as session:
        return queries.list_desired(session, engine, limit=60)


@st.cache_data(ttl=1, show_spinner=False, max_entries=16)
def standing(role: str, engine: str | None, group: str | None) -> tuple[int, dict[str, Any]]:
    """The newest revision and document of exactly this scope; (0, {}) where nothing was ever asked for."""
    del role
    with store().read() as session:
        row = desired.newest(session, desired.Scope(engine_id=engine, group=group))
        return (row.revision, dict(row.document)) if row else (0, {})


@st.cache_data(ttl=1, show_spinner=False, max_entries=16)
def effective(role: str) -> dict[str, dict[str, Any]]:
    """Engine -> what it should run with now: its own document over its group's over that for every engine."""
    del role
    with store().read() as session:
        return {engine: wanted.document for engine, wanted in effective_of_all(session, utc_now()).items()}


@st.cache_data(ttl=TTL_SECONDS, show_spinner=False, max_entries=16)
def commands(role: str, engine: Engines) -> list[queries.CommandView]:
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
def policy_why(role: str, name: str, at: dt.datetime, engine: str | None) -> why.Why:
    """What a policy had decided at a moment, and from what. Raises NotFound."""
    del role
    with store().read() as session:
        return why.why(session, name, at, engine)


@st.cache_data(ttl=TTL_SECONDS, show_spinner=False, max_entries=8)
def telling(role: str) -> tuple[list[receivers.ReceiverView], list[queries_alerts.SilenceView]]:
    """Who is told of alerts and how that goes, and the silences that hold."""
    del role
    with store().read() as session:
        return receivers.list_receivers(session), queries_alerts.list_silences(session, utc_now())


@st.cache_data(ttl=TTL_SECONDS, show_spinner=False, max_entries=16)
def undelivered(role: str) -> list[queries_alerts.NotificationView]:
    """The newest notifications that failed or still wait, newest first."""
    del role
    with store().read() as session:
        return [
            row
            for status in ("failed", "pending")
            for row in queries_alerts.list_notifications(session, status=status, limit=20)
        ]


@st.cache_data(ttl=TTL_SECONDS, show_spinner=False, max_entries=16)
def alerts(role: str, engine: Engines) -> list[queries.AlertView]:
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
        why_miss,
        _findings,
        prefix_families,
        gaps,
        prefixes,
        prefix,
        damaged,
        validations,
        revisions,
        standing,
        effective,
        commands,
        policies,
        policy_why,
        telling,
        undelivered,
        alerts,
    ):
        cached.clear()
    audit.clear()
