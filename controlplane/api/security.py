"""Who is calling: FastAPI dependencies that turn a bearer token into a Principal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.concurrency import run_in_threadpool

from controlplane import audit
from controlplane.api.throttle import Denials, FailureThrottle, address_key, token_key
from controlplane.auth import Principal, Role, check_secret, note_use, use_is_stale
from controlplane.errors import Forbidden, Unauthorised, Unavailable
from controlplane.settings import Settings
from controlplane.steering.deed import TRACEPARENT
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
    with failures_counted(request, bearer.credentials), store.read() as session:
        credential = check_secret(session, bearer.credentials)
    if use_is_stale(credential):
        # When a token was last used is worth knowing, but not worth failing a read over a busy database.
        with suppress(Unavailable), store.write_beside() as session:
            note_use(session, credential)
    return credential.principal


@contextmanager
def failures_counted(request: Request, secret: str) -> Iterator[None]:
    """Around the proof of a secret: refuses to look while too many were wrong, and counts how this one ends.

    A token that is known but over is counted by its own id too, so that it is bounded from however many addresses.
    """
    throttle: FailureThrottle = request.app.state.throttle
    address = address_key(request.client.host if request.client else "")
    for key in (address, token_key(secret)):
        throttle.check(key, secret)
    try:
        yield
    except Unauthorised as error:
        throttle.failed(address, secret)
        if error.code != "token_unknown":
            throttle.failed(token_key(secret), secret)
        raise
    throttle.proved(secret)


@dataclass(frozen=True, slots=True)
class Required:
    """A dependency: the caller, who has at least `role`. Raises Unauthorised or Forbidden."""

    role: Role

    async def __call__(self, request: Request, principal: Annotated[Principal, Depends(authenticated)]) -> Principal:
        try:
            principal.must_be(self.role)
        except Forbidden as error:
            await run_in_threadpool(note_denial, request, principal, error)
            raise
        return principal


require_engine = Required(Role.ENGINE)


async def speaks_for(
    request: Request, engine_id: str, principal: Annotated[Principal, Depends(require_engine)]
) -> Principal:
    """The caller, who may speak for the engine in the path. Raises Unauthorised or Forbidden."""
    try:
        principal.must_speak_for(engine_id)
    except Forbidden as error:
        await run_in_threadpool(note_denial, request, principal, error)
        raise
    return principal


def note_denial(request: Request, principal: Principal, error: Forbidden) -> None:
    """Audit that somebody tried to write what their role may not; once a minute for one token and call."""
    denials: Denials = request.app.state.denials
    call = f"{request.method} {getattr(request.scope.get('route'), 'path', '')}"
    if request.method == "GET" or not denials.is_news(f"{principal.token_id} {call}"):
        return
    trace = TRACEPARENT.match(request.headers.get("traceparent", ""))
    with suppress(Unavailable), get_store(request).write_beside() as session:
        audit.record(
            session, principal, "denied", call, error.message, after={"code": error.code},
            trace_id=trace.group(1) if trace else None,
        )  # fmt: skip


# What needs no database is async: a sync dependency costs a hop to a thread and back, each.
async def _store(request: Request) -> Store:
    return get_store(request)


async def _settings(request: Request) -> Settings:
    return get_settings(request)


StoreOf = Annotated[Store, Depends(_store)]
SettingsOf = Annotated[Settings, Depends(_settings)]
Viewer = Annotated[Principal, Depends(Required(Role.VIEWER))]
Operator = Annotated[Principal, Depends(Required(Role.OPERATOR))]
Admin = Annotated[Principal, Depends(Required(Role.ADMIN))]
EngineCaller = Annotated[Principal, Depends(require_engine)]
Spokesman = Annotated[Principal, Depends(speaks_for)]
