"""Who am I, and the redeeming of one-time links."""

from __future__ import annotations

import datetime as dt
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from controlplane import audit
from controlplane.api.security import SettingsOf, StoreOf, authenticated, failures_counted
from controlplane.auth import Principal, redeem

router = APIRouter(tags=["session"])


class RedeemBody(BaseModel):
    """The secret of a one-time link."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"token": "kvd_...the part after ?token= in the link"}]})
    token: str = Field(min_length=1, max_length=256)


class Session(BaseModel):
    """A session: the token to send as bearer from now on."""

    role: str
    name: str
    session_token: str


class Me(BaseModel):
    """The caller."""

    role: str
    name: str


@router.post("/v1/session")
def open_session(request: Request, body: RedeemBody, store: StoreOf, settings: SettingsOf) -> Session:
    """Spend a one-time link for a session token. Needs no other token."""
    with failures_counted(request, body.token), store.write() as session:
        principal, secret = redeem(session, body.token, ttl=dt.timedelta(seconds=settings.session_ttl_seconds))
        audit.record(session, principal, "open_session", principal.name, "redeemed a one-time link")
    return Session(role=principal.role.word, name=principal.name, session_token=secret)


@router.get("/v1/me")
def me(principal: Annotated[Principal, Depends(authenticated)]) -> Me:
    """Whoever the token proves."""
    return Me(role=principal.role.word, name=principal.name)
