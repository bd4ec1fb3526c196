"""One tree of errors. Each says what happened, to which value, and what to do next.

The API turns them into `{"error": {"code", "message", "hint"}}` with the class's status; the CLI prints both texts.
"""

from __future__ import annotations

from typing import ClassVar


class ControlPlaneError(Exception):
    """Base of the tree. `code` is stable and for programs; `message` and `hint` are for people."""

    status: ClassVar[int] = 500

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class SettingsError(ControlPlaneError):
    """A setting has a value that cannot be used; the process must not start."""


class BadRequest(ControlPlaneError):
    """The request cannot be understood; sending it again unchanged will not help."""

    status = 400


class Unauthorised(ControlPlaneError):
    """No token, or one that is unknown, expired or already spent."""

    status = 401


class Forbidden(ControlPlaneError):
    """A valid token whose role may not do this."""

    status = 403


class NotFound(ControlPlaneError):
    """The named thing is not in the store."""

    status = 404


class Conflict(ControlPlaneError):
    """The thing exists, but not in the state the request needs."""

    status = 409


class TooLarge(ControlPlaneError):
    """The body is over the limit, as sent or once decompressed."""

    status = 413


class Misdirected(ControlPlaneError):
    """The request was sent to a name this control plane does not go by: perhaps by a page of elsewhere."""

    status = 421


class TooManyRequests(ControlPlaneError):
    """Too many tokens from this address were wrong; none is looked at for `retry_after_seconds`."""

    status = 429

    def __init__(self, code: str, message: str, hint: str = "", *, retry_after_seconds: int = 3) -> None:
        super().__init__(code, message, hint)
        self.retry_after_seconds = retry_after_seconds


class Unavailable(ControlPlaneError):
    """The database is locked or down. Nothing was written; try again after `retry_after_seconds`."""

    status = 503

    def __init__(self, code: str, message: str, hint: str = "", *, retry_after_seconds: int = 2) -> None:
        super().__init__(code, message, hint)
        self.retry_after_seconds = retry_after_seconds


class SchemaMismatch(ControlPlaneError):
    """The database schema is not the one this code was written for."""

    status = 503
