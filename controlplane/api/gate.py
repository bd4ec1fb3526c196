"""What every request passes before any route looks at it: the name it was sent to, the size of its body, the headers
that its answer carries. Plain ASGI, so that a body that is too large is never held in memory."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controlplane.api.errors import answer_to
from controlplane.errors import ControlPlaneError, Misdirected, TooLarge
from controlplane.settings import Settings

STRANGERS_BYTES = 64 << 10
"""The longest body of a request that brings no token: a one-time link is all it can be."""
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
SECURITY_HEADERS: Mapping[str, str] = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'",
}
"""On every answer. No page here runs a script or loads anything, so nothing else needs to be allowed."""


class Gate:
    """ASGI middleware: refuses strange host names and long bodies, and adds SECURITY_HEADERS."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._names = allowed_names(settings)
        self._most_bytes = settings.ingest_max_inflated_bytes  # a large engine's snapshot is as long as its spans

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        headers = Headers(scope=scope)
        try:
            self._check_host(headers.get("host", ""))
            most = self._most_bytes if "authorization" in headers else STRANGERS_BYTES
            _check_length(headers.get("content-length", ""), most)
        except ControlPlaneError as error:
            await answer_to(error)(scope, receive, guarded)
            return
        await self._bounded(scope, receive, guarded, most)

    async def _bounded(self, scope: Scope, receive: Receive, send: Send, most: int) -> None:
        """Runs the app on a body that ends where it passes `most`, also when its length was not told. Whatever the app
        makes of half a body, the answer is then TooLarge."""
        received, replaced = 0, False

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > most:
                return {"type": "http.request", "body": b"", "more_body": False}
            return message

        async def judged(message: Message) -> None:
            nonlocal replaced
            if received > most and message["type"] == "http.response.start":
                replaced = True
                await answer_to(_too_large(most))(scope, receive, send)
            if not replaced:
                await send(message)

        await self._app(scope, counted, judged)

    def _check_host(self, host: str) -> None:
        """Raises Misdirected: a page of elsewhere that made its own name mean 127.0.0.1 is refused."""
        if self._names and host_name(host) not in self._names:
            raise Misdirected(
                "host_unknown",
                f"This control plane is not known as {host[:100]!r}.",
                "Use the address it was started with, or name this one in KVDECK_ALLOWED_HOSTS.",
            )


def allowed_names(settings: Settings) -> frozenset[str]:
    """The names a request may be sent to; empty: any. On loopback those of this machine, else only what was set."""
    named = frozenset(settings.allowed_host_names)
    return named | LOOPBACK_NAMES | {settings.host.lower()} if settings.is_loopback else named


def host_name(header: str) -> str:
    """The name in a Host header, without its port and in small letters; "" for one that is none."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    name = header.partition(":")[0].lower().rstrip(".")
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name


def _check_length(length: str, most: int) -> None:
    if length.isascii() and length.isdigit() and (len(length) > 18 or int(length) > most):
        raise _too_large(most)


def _too_large(most: int) -> TooLarge:
    return TooLarge(
        "body_too_large",
        f"The body is over {most} bytes.",
        "Send less at once. With a token more may be sent; KVDECK_INGEST_MAX_BYTES sets how much.",
    )
