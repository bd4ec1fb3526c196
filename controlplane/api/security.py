"""Who is calling: FastAPI dependencies that turn a bearer token into a Principal."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from controlplane.auth import Principal, Role, check_secret, note_use, use_is_stale
from controlplane.errors import Unauthorised, Unavailable
from controlplane.settings import Settings
from controlplane.store.session import Store

_bearer = HTTPBearer(auto_error=False, description="A token from `kvdeck token issue`, or a redeemed session token.")


def get_store(request: Request) -> Store:
    """The store of this app."""
    store: Store = request.app.state.store
    return store


def get_settings(request: Request) -> Settings:
    """The settings of this app."""
    settings: Settings = request.app.state.settings
    return settings


def authenticated(
    request: Request,
    bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> Principal:
    """Whoever the bearer token proves, of any role. Raises Unauthorised."""
    if bearer is None:
        raise Unauthorised(
            "token_missing", "This call needs a token.", "Send it as `Authorization: Bearer <token>` (`kvdeck token`)."
        )
    store = get_store(request)
    with store.read() as session:
        credential = check_secret(session, bearer.credentials)
    if use_is_stale(credential):
        # When a token was last used is worth knowing, but not worth failing a read over a busy database.
        with suppress(Unavailable), store.write_beside() as session:
            note_use(session, credential)
    return credential.principal


def require(role: Role) -> Callable[[Principal], Principal]:
    """A dependency: the caller, who has at least `role`. Raises Unauthorised or Forbidden."""

    def checked(principal: Annotated[Principal, Depends(authenticated)]) -> Principal:
        principal.must_be(role)
        return principal

    return checked


require_engine = require(Role.ENGINE)


def speaks_for(engine_id: str, principal: Annotated[Principal, Depends(require_engine)]) -> Principal:
    """The caller, who may speak for the engine in the path. Raises Unauthorised or Forbidden."""
    principal.must_speak_for(engine_id)
    return principal


StoreOf = Annotated[Store, Depends(get_store)]
SettingsOf = Annotated[Settings, Depends(get_settings)]
Viewer = Annotated[Principal, Depends(require(Role.VIEWER))]
Operator = Annotated[Principal, Depends(require(Role.OPERATOR))]
Admin = Annotated[Principal, Depends(require(Role.ADMIN))]
EngineCaller = Annotated[Principal, Depends(require_engine)]
Spokesman = Annotated[Principal, Depends(speaks_for)]
