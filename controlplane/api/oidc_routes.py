"""Signing in with an identity provider's ID token."""

from __future__ import annotations

import datetime as dt

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from controlplane import audit
from controlplane.api.security import SettingsOf, StoreOf, failures_counted
from controlplane.api.session_routes import Session
from controlplane.auth import issue_token
from controlplane.oidc import Provider

router = APIRouter(tags=["session"])


class IdTokenBody(BaseModel):
    """An ID token that the provider made for this deck's client."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"id_token": "eyJhbGciOiJSUzI1NiJ9.eyJzdWIi..."}]})
    id_token: str = Field(min_length=1, max_length=32_768)


@router.post("/v1/session/oidc")
def open_oidc_session(request: Request, body: IdTokenBody, store: StoreOf, settings: SettingsOf) -> Session:
    """Trade an ID token for a session token of the role its claim maps to. Needs no other token."""
    provider: Provider = request.app.state.provider
    with failures_counted(request, body.id_token):
        principal = provider.principal(body.id_token)
    ttl = dt.timedelta(seconds=settings.session_ttl_seconds)
    with store.write() as session:
        secret = issue_token(session, principal.name, principal.role, ttl=ttl)
        audit.record(session, principal, "open_session", principal.name, f"signed in with {settings.oidc_issuer}")
    return Session(role=principal.role.word, name=principal.name, session_token=secret)
