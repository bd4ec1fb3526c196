"""Every error leaves as `{"error": {"code", "message", "hint"}}`; no traceback ever does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from controlplane.errors import ControlPlaneError, SchemaMismatch, TooManyRequests, Unauthorised, Unavailable


def install_error_handlers(app: FastAPI) -> None:
    """Make the app answer in the uniform shape for our errors, FastAPI's, and bugs."""
    app.add_exception_handler(ControlPlaneError, _ours)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _bug)


def error_body(
    status: int, code: str, message: str, hint: str, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """One error as the response that carries it."""
    body = {"error": {"code": code, "message": message, "hint": hint}}
    return JSONResponse(body, status_code=status, headers=dict(headers or {}))


def answer_to(error: ControlPlaneError) -> JSONResponse:
    """An error of our tree as the response that carries it, with the headers of its kind."""
    headers = {}
    if isinstance(error, Unavailable | TooManyRequests):
        headers["Retry-After"] = str(error.retry_after_seconds)
    elif isinstance(error, SchemaMismatch):
        headers["Retry-After"] = "30"
    elif isinstance(error, Unauthorised):
        headers["WWW-Authenticate"] = "Bearer"
    return error_body(error.status, error.code, error.message, error.hint, headers)


async def _ours(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ControlPlaneError)
    return answer_to(error)


async def _invalid(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    message = f"{where}: {first['msg']}{_got(first['loc'], first.get('input'))}."
    return error_body(400, "request_invalid", message, "Correct the field; /docs shows what each call takes.")


NEVER_REPEATED = frozenset({"token", "id_token", "secret", "url", "password"})
"""Fields of which an error says nothing but that they are wrong."""


def _got(where: Sequence[str | int], value: object) -> str:
    """What was sent instead, where that can be said: a single value, and none that may be a secret."""
    if NEVER_REPEATED & set(where) or not isinstance(value, str | int | float | None):
        return ""
    return f" (got {str(value)[:80]!r})"


async def _http(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    hint = "/docs lists the calls there are." if error.status_code in (404, 405) else ""
    return error_body(error.status_code, f"http_{error.status_code}", f"{error.detail}.", hint, error.headers)


async def _bug(_request: Request, error: Exception) -> JSONResponse:
    message = f"The control plane failed in a way it should not ({type(error).__name__})."
    return error_body(500, "internal", message, "The server's log has the details; please report them.")
