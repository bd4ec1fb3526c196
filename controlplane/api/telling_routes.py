"""Who is told of alerts, over HTTP: silences, receivers, and what was sent to them."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from controlplane.api.alert_routes import Limit, Name, RowNumber, Severity, deed_of
from controlplane.api.security import Admin, Operator, StoreOf, Viewer
from controlplane.api.write_routes import Reason, ReasonBody, Traceparent
from controlplane.clock import utc_now
from controlplane.steering.alerts import receivers, silences
from controlplane.store import queries_alerts

router = APIRouter(tags=["alerts"])


class MatchersBody(BaseModel):
    """What a silence matches: all that is given must fit; `*` stands for any letters."""

    model_config = ConfigDict(extra="forbid")
    rule: str | None = None
    engine: str | None = None
    group: str | None = None
    namespace: str | None = None


class SilenceBody(ReasonBody):
    """A silence."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "matchers": {"rule": "engine_silent", "group": "canary"},
                    "until": "2026-01-31T06:00:00Z",
                    "reason": "the rack is being moved",
                }
            ]
        }
    )
    matchers: MatchersBody
    until: dt.datetime


class ReceiverTunables(BaseModel):
    """What can be set and changed of a receiver."""

    model_config = ConfigDict(extra="forbid")
    url: SecretStr | None = Field(default=None, description="Never read back: its path is often a secret.")
    secret: SecretStr | None = Field(default=None, description="Signs what is sent; 16 to 256 characters.")
    least_severity: Severity | None = None
    timeout_seconds: int | None = Field(default=None, ge=1, le=receivers.LONGEST_TIMEOUT_SECONDS)
    enabled: bool | None = None

    def plain(self) -> dict[str, Any]:
        """The fields that were given, secrets opened: for the one place that keeps them."""
        given = self.model_dump(exclude={"reason", "name"}, exclude_none=True)
        return {key: v.get_secret_value() if isinstance(v, SecretStr) else v for key, v in given.items()}


class NewReceiverBody(ReceiverTunables):
    """A webhook to tell."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "name": "on-call",
                    "url": "https://alerts.example/hook",
                    "secret": "sixteen letters or more",
                    "least_severity": "critical",
                    "reason": "the on-call phone",
                }
            ]
        },
    )
    name: str = Field(max_length=64)
    url: SecretStr
    reason: Reason


class ChangeReceiverBody(ReceiverTunables):
    """A change of a receiver: what is left out stays."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"enabled": False, "reason": "moved to the new pager"}]}
    )
    reason: Reason


@router.get("/v1/silences")
def list_silences(
    _caller: Viewer,
    store: StoreOf,
    everything: Annotated[bool, Query(description="Also those that are over.")] = False,
    limit: Limit = 100,
) -> list[queries_alerts.SilenceView]:
    """Silences, newest first."""
    with store.read() as session:
        return queries_alerts.list_silences(session, utc_now(), everything=everything, limit=limit)


@router.post("/v1/silences", status_code=201)
def create_silence(
    body: SilenceBody, store: StoreOf, who: Operator, traceparent: Traceparent = None
) -> queries_alerts.SilenceView:
    """Tell nobody of what matches, until an end. Alerts go on being evaluated and shown, and policies run."""
    deed = deed_of(who, body.reason, traceparent)
    with store.write() as session:
        row = silences.create(session, deed, body.matchers.model_dump(exclude_none=True), body.until)
        return queries_alerts.silence_view(row, deed.now)


@router.post("/v1/silences/{silence_id}/remove")
def remove_silence(
    silence_id: RowNumber, body: ReasonBody, store: StoreOf, who: Operator, traceparent: Traceparent = None
) -> queries_alerts.SilenceView:
    """End a silence now; what still fires is told then."""
    deed = deed_of(who, body.reason, traceparent)
    with store.write() as session:
        return queries_alerts.silence_view(silences.remove(session, deed, silence_id), deed.now)


@router.get("/v1/receivers")
def list_receivers(_caller: Viewer, store: StoreOf) -> list[receivers.ReceiverView]:
    """Who is told, and how many notifications wait, arrived, failed or were dropped. Secrets are not shown."""
    with store.read() as session:
        return receivers.list_receivers(session)


@router.post("/v1/receivers", status_code=201)
def create_receiver(
    body: NewReceiverBody, store: StoreOf, who: Admin, traceparent: Traceparent = None
) -> receivers.ReceiverView:
    """Add a webhook. Admins only: it sends what happens here elsewhere."""
    with store.write() as session:
        row = receivers.create(session, deed_of(who, body.reason, traceparent), body.name, body.plain())
        return receivers.see(row, {})


@router.post("/v1/receivers/{name}")
def change_receiver(
    name: Name, body: ChangeReceiverBody, store: StoreOf, who: Admin, traceparent: Traceparent = None
) -> receivers.ReceiverView:
    """Change, enable or disable a webhook. Admins only."""
    with store.write() as session:
        row = receivers.change(session, deed_of(who, body.reason, traceparent), name, body.plain())
        return receivers.see(row, {})


@router.post("/v1/receivers/{name}/remove")
def remove_receiver(
    name: Name, body: ReasonBody, store: StoreOf, who: Admin, traceparent: Traceparent = None
) -> dict[str, str]:
    """Remove a webhook; what waits for it ends as failed. Admins only."""
    with store.write() as session:
        receivers.remove(session, deed_of(who, body.reason, traceparent), name)
    return {"removed": name}


@router.get("/v1/notifications")
def notifications(
    _caller: Viewer,
    store: StoreOf,
    receiver: str | None = None,
    status: Literal["pending", "delivered", "failed", "dropped"] | None = None,
    limit: Limit = 100,
) -> list[queries_alerts.NotificationView]:
    """What receivers were told or will be, newest first."""
    with store.read() as session:
        return queries_alerts.list_notifications(session, receiver=receiver, status=status, limit=limit)
