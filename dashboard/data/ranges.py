"""What happened in a range of time, in numbers and as frames."""

from __future__ import annotations

import pandas as pd

from controlplane.clock import utc_now
from controlplane.insight import whymiss
from controlplane.store import queries, queries_charts
from controlplane.store.query_types import Engines
from dashboard import frames
from dashboard.caching import RangeCache, kept
from dashboard.data.opened import store
from dashboard.readings import Charts, Validations, slot_minutes


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


@kept(30)
def namespaces(role: str) -> list[str]:
    """Namespaces that had requests in the last day, by name."""
    del role
    with store().read() as session:
        return queries_charts.namespaces_asked(session, queries.TimeRange.last(24 * 60, utc_now()))


@kept()
def audit(role: str, minutes: int) -> list[queries.AuditView]:
    """What people and policies did in a range, newest first."""
    del role
    with store().read() as session:
        return queries.list_audit(session, queries.TimeRange.last(minutes, utc_now()), limit=500)
