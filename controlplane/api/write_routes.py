"""What changes things on behalf of people (docs/reference/wire.md, section 4): CLI and dashboard write through here."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from controlplane.api.security import Operator, StoreOf
from controlplane.steering import commands, preview
from controlplane.steering.deed import Deed
from controlplane.steering.wakeups import WAKEUPS
from controlplane.store.queries_steering import CommandView
from controlplane.store.query_types import view

router = APIRouter(tags=["steering"])

Traceparent = Annotated[str | None, Header(max_length=64)]
Reason = Annotated[str, Field(min_length=1, max_length=2000)]


class ReasonBody(BaseModel):
    """Why; it goes into the audit."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "the incident of 03:12 is over"}]})
    reason: Reason


EXAMPLE_SELECTOR: dict[str, JsonValue] = {"namespace": "tenant-a", "idle_s": 3600, "least_useful": 20}
Selector = Annotated[
    dict[str, Any] | None,
    Field(
        description="Which prefixes, instead of `arguments.prefix_ids`: labels, namespace, states, tier, idle_s, "
        "pinned, least_useful, limit. Everything given must hold. Resolved when the command is stored."
    ),
]


class CommandBody(ReasonBody):
    """A command for one engine."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "engine": "local",
                    "kind": "evict",
                    "selector": EXAMPLE_SELECTOR,
                    "arguments": {"prefixes_per_s": 50},
                    "idempotency_key": "clean-up-2026-01-31",
                    "expires_s": 300,
                    "reason": "tenant-a grew too big",
                }
            ]
        }
    )
    engine: str = Field(max_length=64)
    kind: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    selector: Selector = None
    idempotency_key: str | None = Field(default=None, min_length=8, max_length=128)
    expires_s: int = commands.DEFAULT_EXPIRY_SECONDS


class PreviewBody(BaseModel):
    """A command somebody thinks about."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"engine": "local", "kind": "evict", "selector": EXAMPLE_SELECTOR}]}
    )
    engine: str
    kind: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    selector: Selector = None


@router.post("/v1/commands", status_code=201)
def submit_command(body: CommandBody, store: StoreOf, who: Operator, traceparent: Traceparent = None) -> CommandView:
    """Send a command to an engine. The same idempotency key again answers the first command."""
    draft = commands.Draft(
        engine_id=body.engine,
        kind=body.kind,
        arguments=body.arguments,
        selector=body.selector,
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
        return preview.preview(session, body.engine, body.kind, body.arguments, body.selector)


@router.post("/v1/commands/{command_id}/cancel")
def cancel_command(
    command_id: str, body: ReasonBody, store: StoreOf, who: Operator, traceparent: Traceparent = None
) -> CommandView:
    """Stop a command: at once if no engine has taken it, else at its next step; see `cancel_requested_at`."""
    with store.write() as session:
        deed = Deed(principal=who, reason=body.reason, traceparent=traceparent)
        command = view(CommandView, commands.cancel(session, deed, command_id))
    WAKEUPS.notify(command.engine_id)
    return command
