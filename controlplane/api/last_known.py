"""What a caller was last told, told again while the database is away: the same answer, marked as old.

A token cannot be proved without the database. So an answer is kept under the very token and address it was given for,
and goes to nobody else: whoever asks has seen it. Writes, and what engines ask, are never answered from here.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controlplane.api.calls import STALE_HEADER

KEPT_SECONDS = 3600.0
MOST_BYTES = 16 << 20
LARGEST_BYTES = 1 << 20
AWAITED = ("/v1/commands/", "/v1/batches/")
"""Who looks at one of these waits for its end, and must hear that it is not known."""
AWAY = frozenset({"database_unavailable", "database_locked"})
Key = bytes


@dataclass(frozen=True, slots=True)
class Known:
    """An answer and when it was given."""

    body: bytes
    at: float


@dataclass(slots=True)
class LastKnown:
    """The newest answers by caller and question, within MOST_BYTES; what was asked longest ago goes first."""

    clock: Callable[[], float] = time.monotonic
    _kept: OrderedDict[Key, Known] = field(default_factory=OrderedDict)
    _bytes: int = 0

    def keep(self, key: Key, body: bytes) -> None:
        """Remember an answer of now."""
        self.forget(key)
        if len(body) > LARGEST_BYTES:
            return
        self._kept[key] = Known(body, self.clock())
        self._bytes += len(body)
        while self._bytes > MOST_BYTES:
            self.forget(next(iter(self._kept)))

    def find(self, key: Key) -> tuple[bytes, float] | None:
        """The answer and its age in seconds, if it is no older than KEPT_SECONDS."""
        known = self._kept.get(key)
        if known is None:
            return None
        age = self.clock() - known.at
        return (known.body, age) if age <= KEPT_SECONDS else None

    def forget(self, key: Key) -> None:
        """Drop an answer, if there is one."""
        known = self._kept.pop(key, None)
        self._bytes -= 0 if known is None else len(known.body)


class StaleReads:
    """ASGI middleware around LastKnown."""

    def __init__(self, app: ASGIApp) -> None:
        self._app, self._known = app, LastKnown()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = _key_of(scope)
        if key is None:
            await self._app(scope, receive, send)
            return
        answer = _Answer(send, self._known, key)
        await self._app(scope, receive, answer.take)


@dataclass(slots=True)
class _Answer:
    """One answer on its way: its start is held back until its body says whether it goes out as it is."""

    send: Send
    known: LastKnown
    key: Key
    start: Message | None = None

    async def take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.start = message
            return
        if self.start is None or message["type"] != "http.response.body":
            await self.send(message)
            return
        start, self.start = self.start, None
        whole = b"" if message.get("more_body") else bytes(message.get("body", b""))  # ours come in one piece
        if start["status"] == 200 and whole:
            self.known.keep(self.key, whole)
        elif start["status"] in (401, 403):
            self.known.forget(self.key)  # the token was proved to be none, or not enough
        elif start["status"] == 503 and (code := _code_of(whole)) in AWAY and (found := self.known.find(self.key)):
            start, message = _again(start, code, *found)
        await self.send(start)
        await self.send(message)


def _again(start: Message, code: str, body: bytes, age_seconds: float) -> tuple[Message, Message]:
    fresh: Message = {**start, "status": 200, "headers": list(start["headers"])}
    headers = MutableHeaders(scope=fresh)
    headers["Content-Length"] = str(len(body))
    del headers["Retry-After"]
    headers["Age"] = str(int(age_seconds))
    headers[STALE_HEADER] = code
    return fresh, {"type": "http.response.body", "body": body, "more_body": False}


def _code_of(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return ""


def _key_of(scope: Scope) -> Key | None:
    """Who asks what; None for what is never told again."""
    if scope["type"] != "http" or scope["method"] != "GET" or not scope["path"].startswith("/v1/"):
        return None
    if scope["path"].startswith(AWAITED) or scope["path"].endswith("/poll"):
        return None
    bearer = Headers(scope=scope).get("authorization", "")
    asked = b"\0".join((bearer.encode(), scope["path"].encode(), scope.get("query_string", b"")))
    return hashlib.sha256(asked).digest() if bearer else None
