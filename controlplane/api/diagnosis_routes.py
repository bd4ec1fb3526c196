"""What went wrong and why: losses by cause, single requests, and the doctor's findings."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Request

from controlplane.api.asked import EngineAsked
from controlplane.api.read_routes import Limit, Minutes, Since, window_of
from controlplane.api.security import SettingsOf, StoreOf, Viewer
from controlplane.api.vitals import Vitals
from controlplane.clock import utc_now
from controlplane.errors import NotFound
from controlplane.insight.doctor import RULES, examine
from controlplane.insight.doctor_gather import gather
from controlplane.insight.doctor_rule import Finding
from controlplane.insight.whymiss import WhyMiss, why_in_window, why_of
from controlplane.store.queries_losses import (
    LossMinute,
    NamespaceAsked,
    RequestView,
    asked_by_namespace,
    list_requests,
    loss_minutes,
)

router = APIRouter(tags=["diagnosis"])

Until = Annotated[dt.datetime | None, Query(description="RFC 3339, with a zone; else now.")]
Namespace = Annotated[str | None, Query(max_length=128, description="Only this namespace.")]
TraceId = Annotated[str | None, Query(pattern="^[0-9a-f]{32}$", description="32 hexadecimal digits.")]
PrefixId = Annotated[str | None, Query(pattern="^[0-9a-f]{32}$", description="It would have served more.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestsWhy:
    """Single requests, and what they lost together. `capped`: there are more than were read."""

    requests: list[RequestView]
    why: WhyMiss
    capped: bool


@router.get("/v1/losses")
def losses(
    _caller: Viewer,
    store: StoreOf,
    engine: EngineAsked = None,
    namespace: Namespace = None,
    minutes: Minutes = 60,
    since: Since = None,
    until: Until = None,
) -> WhyMiss:
    """Where the prompt tokens of a range went: usable, or lost, by cause, each with what to do about it."""
    with store.read() as session:
        return why_in_window(session, window_of(since, until, minutes), engine, namespace)


@router.get("/v1/losses/minutes")
def losses_by_minute(
    _caller: Viewer,
    store: StoreOf,
    engine: EngineAsked = None,
    namespace: Namespace = None,
    minutes: Minutes = 60,
    since: Since = None,
    until: Until = None,
) -> list[LossMinute]:
    """Lost tokens by minute and cause, oldest first."""
    with store.read() as session:
        return loss_minutes(session, window_of(since, until, minutes), engine, namespace)


@router.get("/v1/namespaces")
def namespaces(
    _caller: Viewer, store: StoreOf, engine: EngineAsked = None, minutes: Minutes = 60, since: Since = None
) -> list[NamespaceAsked]:
    """What each namespace asked for and got over a range, most tokens first."""
    with store.read() as session:
        return asked_by_namespace(session, window_of(since, None, minutes), engine)


@router.get("/v1/requests")
def requests(
    _caller: Viewer,
    store: StoreOf,
    trace: TraceId = None,
    lost_prefix: PrefixId = None,
    engine: EngineAsked = None,
    namespace: Namespace = None,
    minutes: Minutes = 60 * 24,
    since: Since = None,
    limit: Limit = 100,
) -> RequestsWhy:
    """Single requests, newest first, for as long as they are kept: of a trace, or those that missed a prefix.

    404 when a trace was asked for and none of its requests is kept.
    """
    window = None if trace is not None else window_of(since, None, minutes)
    with store.read() as session:
        found = list_requests(
            session, window, engine_id=engine, namespace=namespace, trace_id=trace, lost_prefix_id=lost_prefix,
            limit=limit + 1,
        )  # fmt: skip
    if trace is not None and not found:
        raise NotFound(
            "trace_unknown",
            f"No request of trace {trace} is kept here.",
            "Requests are kept for KVDECK_KEEP_REQUESTS_HOURS, and arrive some seconds after they ran.",
        )
    shown = found[:limit]
    return RequestsWhy(requests=shown, why=why_of(shown), capped=len(found) > limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What the doctor found, the worst first, and what it looked at."""

    engines: list[str]
    rules: int
    findings: list[Finding]


@router.get("/v1/doctor")
def doctor(
    request: Request,
    _caller: Viewer,
    store: StoreOf,
    settings: SettingsOf,
    engine: EngineAsked = None,
    minutes: Minutes = 60,
    since: Since = None,
) -> Diagnosis:
    """Every rule of the doctor over a range."""
    now = utc_now()
    with store.read() as session:
        window = window_of(since, None, minutes)
        vitals: Vitals = request.app.state.vitals
        facts = gather(session, settings, now, window, engine, vitals.refusals())
    return Diagnosis(engines=[engine.id for engine in facts.engines], rules=len(RULES), findings=examine(facts))
