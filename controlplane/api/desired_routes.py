"""Desired state: what is in force where, what a change would do, the change itself, and the way back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from controlplane.api.security import Operator, StoreOf, Viewer
from controlplane.api.write_routes import ReasonBody, Traceparent
from controlplane.clock import utc_now
from controlplane.steering import commands, desired, desired_fleet, foresight
from controlplane.steering.deed import Deed
from controlplane.steering.wakeups import WAKEUPS

router = APIRouter(tags=["steering"])


class DesiredBody(ReasonBody):
    """A change of desired state: of one engine, of a group, or (neither) of the fleet. A null removes a key."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"group": "canary", "changes": {"cap_prefixes": 500, "eviction": None}, "reason": "room for tenant-a"}
            ]
        }
    )
    engine: str | None = None
    group: str | None = None
    changes: dict[str, Any]
    expect_revision: int | None = None


class RollbackBody(ReasonBody):
    """Back to what an earlier revision said. 0 is before the first, of the engine, group or (neither) fleet named."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"revision": 12, "reason": "the hit rate fell"}]})
    revision: int = Field(ge=0, le=(1 << 63) - 1)
    engine: str | None = None
    group: str | None = None
    expect_revision: int | None = None


class TryBody(BaseModel):
    """A change, or a rollback (`revision`), that somebody thinks about. `ask`: also the engines themselves."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"engine": "local", "changes": {"cap_prefixes": 50}, "ask": True}]}
    )
    engine: str | None = None
    group: str | None = None
    changes: dict[str, Any] | None = None
    revision: int | None = Field(default=None, ge=0, le=(1 << 63) - 1)
    ask: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One document that reaches an engine."""

    scope: str
    revision: int
    document: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce:
    """Desired beside observed for one engine. `differs`: what it runs otherwise, key -> [desired, observed]."""

    engine_id: str
    group: str
    revision: int
    observed_revision: int
    document: dict[str, Any]
    layers: list[Layer]
    observed: dict[str, Any]
    differs: dict[str, list[Any]]
    refused: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What a change would do on one engine. `command_id`: the command that asks the engine itself, if it was sent."""

    engine_id: str
    diff: dict[str, list[Any]]
    estimate: foresight.Foresight
    command_id: str | None
    not_asked: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a change would write, and what it would do where. Nothing was changed."""

    scope: str
    revision: int
    before: dict[str, Any]
    after: dict[str, Any]
    diff: dict[str, list[Any]]
    engines: list[Tried]


@router.get("/v1/desired/engines/{engine_id}")
def in_force(engine_id: str, store: StoreOf, _caller: Viewer) -> InForce:
    """What one engine should run with, which documents say so, and what it runs with."""
    now = utc_now()
    with store.read() as session:
        engine = desired.require_engine(session, engine_id)
        effective = desired.effective(session, engine_id, now)
        rows = [(scope, desired.newest(session, scope)) for scope in desired.scopes_of(engine)]
        return InForce(
            engine_id=engine_id,
            group=engine.group_name,
            revision=effective.revision,
            observed_revision=engine.observed_revision,
            document=effective.document,
            layers=[
                Layer(scope=scope.name, revision=row.revision, document=row.document) for scope, row in rows if row
            ],
            observed=engine.observed,
            differs={
                key: [value, engine.observed.get(key)]
                for key, value in effective.document.items()
                if key != "mode_expires_at" and engine.observed.get(key) != value
            },
            refused=engine.observed.get("error"),
        )


@router.post("/v1/desired")
def revise_desired(
    body: DesiredBody, store: StoreOf, who: Operator, traceparent: Traceparent = None
) -> desired.Revised:
    """Change caps, mode or knobs; a new revision."""
    with store.write() as session:
        revised = desired.revise(
            session,
            Deed(principal=who, reason=body.reason, traceparent=traceparent),
            engine_id=body.engine,
            group=body.group,
            changes=body.changes,
            expect_revision=body.expect_revision,
        )
    WAKEUPS.notify(body.engine)
    return revised


@router.post("/v1/desired/try")
def try_desired(body: TryBody, store: StoreOf, who: Operator, traceparent: Traceparent = None) -> Trial:
    """The difference a change would make, and what it would evict: estimated from the store, and, with `ask`, by a
    `foresee` command to each engine, whose outcome is exact or says why not."""
    now = utc_now()
    scope = desired.Scope(engine_id=body.engine, group=body.group)
    with store.read() as session:
        proposed = desired_fleet.propose(session, scope, now, changes=body.changes, revision=body.revision)
        documents = {engine_id: then for engine_id, (_, then) in proposed.engines.items()}
        estimates = foresight.foresee(session, documents)
    asked: dict[str, commands.Asked] = {}
    if body.ask:
        deed = Deed(principal=who, reason="a change is tried", traceparent=traceparent, now=now)
        with store.write() as session:
            asked = commands.ask_to_foresee(session, deed, documents)
        for engine_id in asked:
            WAKEUPS.notify(engine_id)
    nobody = commands.Asked()
    return Trial(
        scope=proposed.scope.name,
        revision=proposed.revision,
        before=proposed.before,
        after=proposed.after,
        diff=proposed.diff,
        engines=[
            Tried(
                engine_id=engine_id,
                diff=desired.diff(standing.document, then),
                estimate=estimates[engine_id],
                command_id=asked.get(engine_id, nobody).command_id,
                not_asked=asked.get(engine_id, nobody).why_not,
            )
            for engine_id, (standing, then) in proposed.engines.items()
        ],
    )


@router.post("/v1/desired/rollback")
def rollback_desired(
    body: RollbackBody, store: StoreOf, who: Operator, traceparent: Traceparent = None
) -> desired.Revised:
    """Make an earlier revision's document the newest again; 0 for what there was before the first."""
    scope = desired.Scope(engine_id=body.engine, group=body.group)
    with store.write() as session:
        deed = Deed(principal=who, reason=body.reason, traceparent=traceparent)
        revised = desired.rollback(
            session, deed, revision=body.revision, scope=scope, expect_revision=body.expect_revision
        )
    WAKEUPS.notify(None)
    return revised
