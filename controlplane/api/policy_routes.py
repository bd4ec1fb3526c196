"""Standing policies over HTTP: what there is, what they decided and why, and creating, changing, running, removing."""

from __future__ import annotations

import datetime as dt
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from controlplane.api.asked import EngineAsked
from controlplane.api.security import Operator, SettingsOf, StoreOf, Viewer
from controlplane.api.write_routes import Reason, ReasonBody, Traceparent
from controlplane.clock import utc_now
from controlplane.errors import BadRequest
from controlplane.steering.deed import Deed
from controlplane.steering.policies import kinds, registry, runner
from controlplane.steering.policies.when import When
from controlplane.steering.policies.why import Why, why
from controlplane.store import queries
from controlplane.store.queries_steering import PolicyView
from controlplane.store.query_types import view

router = APIRouter(tags=["policies"])

Name = Annotated[str, Path(max_length=64)]
Limit = Annotated[int, Query(ge=1, le=1000)]


class ScopeBody(BaseModel):
    """Where a policy holds: one engine, or a group, or (neither) all; of what chooses prefixes, one namespace."""

    model_config = ConfigDict(extra="forbid")
    engine: str | None = None
    group: str | None = None
    namespace: str | None = None


class Tunables(BaseModel):
    """What can be set and changed."""

    model_config = ConfigDict(extra="forbid")
    parameters: dict[str, Any] | None = None
    every_seconds: int | None = Field(default=None, description="An interval; or give `cron`; or neither: on events.")
    cron: str | None = Field(default=None, max_length=128, description="Five fields; Sunday is 0 and 7.")
    time_zone: str | None = Field(default=None, max_length=64, description="Of `cron`: UTC, or as Europe/Berlin.")
    scope: ScopeBody | None = None
    paused: bool | None = None


class NewPolicyBody(Tunables):
    """A policy to add."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "name": "morning-warm-up",
                    "kind": "warmup",
                    "cron": "30 6 * * mon-fri",
                    "time_zone": "Europe/Berlin",
                    "scope": {"group": "chat", "namespace": "tenant-a"},
                    "parameters": {"max_bytes": 8589934592, "labels": ["tier=gold"], "on_alerts": []},
                    "reason": "tenant-a starts at seven",
                }
            ]
        },
    )
    name: str = Field(max_length=64)
    kind: str = Field(max_length=24)
    reason: Reason


class ChangeBody(Tunables):
    """A change: what is left out stays. Parameters are merged; a null among them goes back to its default."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"parameters": {"minimum_samples": 20}, "reason": "too eager at night"},
                {"paused_until": "2026-01-31T06:00:00Z", "reason": "the disk is being replaced"},
            ]
        },
    )
    paused_until: dt.datetime | None = Field(default=None, description="The end of a pause, with its zone.")
    reason: Reason


class RunBody(ReasonBody):
    """Run a policy now, also when it is paused. A dry run decides and applies nothing."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"dry_run": True, "reason": "what would it warm?"}]})
    dry_run: bool = False


@router.get("/v1/policies")
def policies(_caller: Viewer, store: StoreOf) -> list[queries.PolicyView]:
    """The standing rules."""
    with store.read() as session:
        return queries.list_policies(session)


@router.get("/v1/policies/kinds")
def policy_kinds(_caller: Viewer) -> list[dict[str, Any]]:
    """The kinds there are, and their parameters: default, what is allowed, what it means."""
    return [kinds.describe(kind) for kind in kinds.KINDS]


@router.get("/v1/policies/runs")
def policy_runs(
    _caller: Viewer,
    store: StoreOf,
    policy: str | None = None,
    engine: EngineAsked = None,
    acted: bool = False,
    limit: Limit = 100,
) -> list[queries.PolicyRunView]:
    """Decisions of policies, newest first; `acted`: only those that did something."""
    with store.read() as session:
        return queries.list_policy_runs(session, policy=policy, engine_id=engine, acted_only=acted, limit=limit)


@router.get("/v1/policies/{name}")
def policy(name: Name, _caller: Viewer, store: StoreOf) -> dict[str, Any]:
    """One policy with its newest runs and, if it has a cron expression, when that comes next."""
    with store.read() as session:
        found = view(PolicyView, registry.find(session, name))
        runs = queries.list_policy_runs(session, policy=name, limit=20)
    when = When(every_seconds=found.every_seconds, cron=found.cron, time_zone=found.time_zone)
    return {**asdict(found), "next_at": when.next_times(utc_now()), "runs": runs}


@router.get("/v1/policies/{name}/why")
def policy_why(
    name: Name,
    _caller: Viewer,
    store: StoreOf,
    at: Annotated[dt.datetime | None, Query(description="RFC 3339, with a zone; without it: now.")] = None,
    engine: EngineAsked = None,
) -> Why:
    """What the policy had decided at a moment, from what, what it did and what changed: from the record alone."""
    if at is not None and at.tzinfo is None:
        raise BadRequest("time_naive", "A time without a zone was given.", "Write 2026-01-31T12:00:00Z.")
    with store.read() as session:
        return why(session, name, at or utc_now(), engine)


@router.post("/v1/policies", status_code=201)
def create_policy(body: NewPolicyBody, store: StoreOf, who: Operator, traceparent: Traceparent = None) -> PolicyView:
    """Add a policy: of any kind but retention, as many as are needed, each with its own name and scope."""
    wanted = body.model_dump(exclude={"name", "kind", "reason"}, exclude_none=True)
    with store.write() as session:
        deed = Deed(principal=who, reason=body.reason, traceparent=traceparent)
        return view(PolicyView, registry.create(session, deed, body.name, body.kind, wanted))


@router.post("/v1/policies/{name}/run")
def run_policy(name: Name, body: RunBody, store: StoreOf, settings: SettingsOf, who: Operator) -> dict[str, Any]:
    """Run a policy now, also when it is paused; answers its decisions."""
    deed = Deed(principal=who, reason=body.reason)
    return {"runs": runner.run_now(runner.Ground(store, settings), deed, name, dry_run=body.dry_run)}


@router.post("/v1/policies/{name}/remove")
def remove_policy(
    name: Name, body: ReasonBody, store: StoreOf, who: Operator, traceparent: Traceparent = None
) -> dict[str, str]:
    """Remove a policy that somebody created; what it decided stays on record."""
    with store.write() as session:
        registry.remove(session, Deed(principal=who, reason=body.reason, traceparent=traceparent), name)
    return {"removed": name}


@router.post("/v1/policies/{name}")
def change_policy(
    name: Name, body: ChangeBody, store: StoreOf, who: Operator, traceparent: Traceparent = None
) -> PolicyView:
    """Pause, resume or tune a policy."""
    changes = body.model_dump(exclude={"reason"}, exclude_unset=True)
    with store.write() as session:
        deed = Deed(principal=who, reason=body.reason, traceparent=traceparent)
        return view(PolicyView, registry.change(session, deed, name, changes))
