"""What changes things on behalf of people (docs/reference/wire.md, section 4): CLI and dashboard write through here."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header
from pydantic import BaseModel, ConfigDict, Field

from controlplane.api.security import Operator, StoreOf
from controlplane.steering import commands, desired, preview
from controlplane.steering.deed import Deed
from controlplane.steering.wakeups import WAKEUPS
from controlplane.store.queries_steering import CommandView
from controlplane.store.query_types import view

router = APIRouter(tags=["steering"])

Traceparent = Annotated[str | None, Header(max_length=64)]
Reason = Annotated[str, Field(min_length=1, max_length=2000)]


class ReasonBody(BaseModel):
    """Why."""

    reason: Reason


class CommandBody(ReasonBody):
    """A command for one engine."""

    engine: str = Field(max_length=64)
    kind: str
    arguments: dict[str, Any] = {}
    idempotency_key: str | None = Field(default=None, min_length=8, max_length=128)
    expires_s: int = commands.DEFAULT_EXPIRY_SECONDS


class PreviewBody(BaseModel):
    """A command somebody thinks about."""

    engine: str
    kind: str
    arguments: dict[str, Any] = {}


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
    revision: int = Field(ge=0)
    engine: str | None = None
    group: str | None = None
    expect_revision: int | None = None


@router.post("/v1/commands", status_code=201)
def submit_command(body: CommandBody, store: StoreOf, who: Operator, traceparent: Traceparent = None) -> CommandView:
    """Send a command to an engine. The same idempotency key again answers the first command."""
    draft = commands.Draft(
        engine_id=body.engine,
        kind=body.kind,
        arguments=body.arguments,
        idempotency_key=body.idempotency_key,
        expires_seconds=body.expires_s,
    )
    with store.write() as session:
        command = commands.submit(session, Deed(principal=who, reason=body.reason, traceparent=traceparent), draft)
        sent = view(CommandView, command)
    WAKEUPS.notify(body.engine)
    return sent


@router.post("/v1/commands/preview")
def preview_command(body: PreviewBody, store: StoreOf, _who: Operator) -> preview.BlastRadius:
    """The blast radius of a command; nothing is changed."""
    with store.read() as session:
        return preview.preview(session, body.engine, body.kind, body.arguments)


@router.post("/v1/commands/{command_id}/cancel")
def cancel_command(
    command_id: str, body: ReasonBody, store: StoreOf, who: Operator, traceparent: Traceparent = None
) -> CommandView:
    """Stop a command that no engine has taken yet."""
    with store.write() as session:
        deed = Deed(principal=who, reason=body.reason, traceparent=traceparent)
        return view(CommandView, commands.cancel(session, deed, command_id))


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


@router.post("/v1/desired/rollback")
def rollback_desired(
    body: RollbackBody, store: StoreOf, who: Operator, traceparent: Traceparent = None
) -> desired.Revised:
    """Make an earlier revision's document the newest again."""
    with store.write() as session:
        deed = Deed(principal=who, reason=body.reason, traceparent=traceparent)
        scope = desired.Scope(engine_id=body.engine, group=body.group)
        revised = desired.rollback(
            session,
            deed,
            revision=body.revision,
            scope=None if scope == desired.FLEET else scope,
            expect_revision=body.expect_revision,
        )
    WAKEUPS.notify(None)
    return revised
