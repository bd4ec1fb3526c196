"""Commands for a group of engines, or for the fleet: one request, one command an engine, one batch."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from controlplane.api.security import Operator, StoreOf, Viewer
from controlplane.api.write_routes import EXAMPLE_SELECTOR, ReasonBody, Selector, Traceparent
from controlplane.clock import utc_now
from controlplane.steering import batches, commands, preview
from controlplane.steering.deed import Deed
from controlplane.steering.wakeups import WAKEUPS

router = APIRouter(tags=["steering"])

Group = Annotated[str | None, Field(max_length=64, description="Only engines of this group; left out: all.")]


class BatchBody(ReasonBody):
    """A command for many engines. Give a selector, or what a preview answered as `selected`, or neither for kinds that
    take no prefixes."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "group": "canary",
                    "kind": "evict",
                    "selector": EXAMPLE_SELECTOR,
                    "idempotency_key": "clean-up-2026-01-31",
                    "reason": "tenant-a grew too big",
                }
            ]
        }
    )
    group: Group = None
    kind: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    selector: Selector = None
    selected: dict[str, dict[str, int]] | None = Field(
        default=None, description="Engine -> prefix -> the version that was seen."
    )
    idempotency_key: str | None = Field(default=None, min_length=8, max_length=batches.LONGEST_KEY)
    expires_s: int = commands.DEFAULT_EXPIRY_SECONDS


class BatchPreviewBody(BaseModel):
    """A command for many engines that somebody thinks about."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"group": "canary", "kind": "evict", "selector": EXAMPLE_SELECTOR}]}
    )
    group: Group = None
    kind: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    selector: Selector = None


@router.post("/v1/batches", status_code=201)
def submit_batch(body: BatchBody, store: StoreOf, who: Operator, traceparent: Traceparent = None) -> batches.Batch:
    """Send a command to every engine of a group, or of the fleet. The same idempotency key again answers the first."""
    draft = commands.Draft(
        engine_id="",
        kind=body.kind,
        arguments=body.arguments,
        selector=body.selector,
        idempotency_key=body.idempotency_key,
        expires_seconds=body.expires_s,
    )
    with store.write() as session:
        deed = Deed(principal=who, reason=body.reason, traceparent=traceparent)
        batch = batches.submit(session, deed, batches.Target(group=body.group), draft, body.selected)
    for command in batch.commands:
        WAKEUPS.notify(command.engine_id)
    return batch


@router.post("/v1/batches/preview")
def preview_batch(body: BatchPreviewBody, store: StoreOf, _who: Operator) -> preview.FleetRadius:
    """The blast radius on every engine, and in sum; nothing is changed."""
    with store.read() as session:
        target = batches.Target(group=body.group)
        return preview.preview_many(session, target, body.kind, body.arguments, body.selector, utc_now())


@router.get("/v1/batches/{batch_id}")
def batch(batch_id: str, store: StoreOf, _caller: Viewer) -> batches.Batch:
    """The commands of one request: how far each is, and how it ended."""
    with store.read() as session:
        return batches.find(session, batch_id)


@router.post("/v1/batches/{batch_id}/cancel")
def cancel_batch(
    batch_id: str, body: ReasonBody, store: StoreOf, who: Operator, traceparent: Traceparent = None
) -> batches.Batch:
    """Stop every command of a batch that is not over."""
    with store.write() as session:
        found = batches.cancel(session, Deed(principal=who, reason=body.reason, traceparent=traceparent), batch_id)
    for command in found.commands:
        WAKEUPS.notify(command.engine_id)
    return found
