"""The agent's calls over HTTP (docs/reference/wire.md, section 3). Used by one thread at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from engine.errors import ConfigError

EXAMPLE = "http://127.0.0.1:8410"


class CallFailed(Exception):
    """A call had no good answer. `status` is the HTTP status, None when the control plane could not be reached."""

    def __init__(self, message: str, status: int | None = None, code: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    @property
    def must_register(self) -> bool:
        """Whether the control plane does not know this engine, or knows another boot of it."""
        return self.status in (404, 409) and self.code in ("engine_unknown", "engine_boot")

    @property
    def is_final(self) -> bool:
        """Whether the same call again would have the same answer."""
        return self.status is not None and 400 <= self.status < 500 and self.status not in (401, 403, 408, 429)


def check_address(url: str, token: str) -> None:
    """Raises ConfigError for an address or a token with which no call could ever be made; before anything is built."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"the control plane's address {url!r} is no address ({error}); e.g. {EXAMPLE}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(f"the control plane's address is {url!r}; it must be like {EXAMPLE}")
    if not token:
        raise ConfigError("the engine has no token for its control plane; `kvdeck token create NAME --role engine`")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError("the engine's token has characters that no token has; was it copied whole, and only it?")


class AgentClient:
    """One engine's line to its control plane. Every method raises CallFailed."""

    def __init__(self, url: str, token: str, engine_id: str, *, timeout_seconds: float = 5.0) -> None:
        self._base = f"{url.rstrip('/')}/v1/engines/{engine_id}"
        self._timeout_seconds = timeout_seconds
        # A proxy named in the environment is not for a control plane on the same network.
        self._http = httpx.Client(
            headers={"Authorization": f"Bearer {token}"}, timeout=timeout_seconds, trust_env=False
        )

    def register(self, introduction: Mapping[str, Any]) -> dict[str, Any]:
        """Introduces the engine -> `{desired, desired_revision, epoch}`."""
        return self._call("POST", "/register", json=introduction)

    def heartbeat(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """Says what runs -> `{desired_revision, commands_waiting, snapshot_wanted, curve_wanted}`."""
        return self._call("POST", "/heartbeat", json=said)

    def poll(self, after_revision: int, wait_seconds: float) -> dict[str, Any]:
        """Waits for news, at most `wait_seconds` and the client's timeout."""
        timeout = httpx.Timeout(self._timeout_seconds, read=wait_seconds + self._timeout_seconds)
        query = {"after_revision": after_revision, "wait_s": wait_seconds}
        return self._call("GET", "/poll", params=query, timeout=timeout)

    def goodbye(self, boot_id: str) -> dict[str, Any]:
        """Says that this boot stops on purpose."""
        return self._call("POST", "/goodbye", json={"boot_id": boot_id}, timeout=1.0)

    def outcome(self, command_id: str, said: Mapping[str, Any]) -> dict[str, Any]:
        """Reports progress or the end of a command."""
        return self._call("POST", f"/commands/{command_id}/outcome", json=said)

    def snapshot(self, boot_id: str, prefixes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Hands in everything the engine holds."""
        timeout = self._timeout_seconds * 6  # a big engine's snapshot is many rows for the store to compare
        return self._call("POST", "/snapshot", json={"boot_id": boot_id, "prefixes": list(prefixes)}, timeout=timeout)

    def curve(self, boot_id: str, document: Mapping[str, Any]) -> None:
        """Hands in the curves as they are now."""
        self._call("POST", "/curve", json={"boot_id": boot_id, "curve": dict(document)})

    def close(self) -> None:
        """Closes the connections; a call in another thread then fails."""
        self._http.close()

    def _call(self, method: str, path: str, **how: Any) -> dict[str, Any]:
        try:
            answer = self._http.request(method, self._base + path, **how)
        except (httpx.HTTPError, RuntimeError) as error:  # RuntimeError: closed under the call
            raise CallFailed(f"{type(error).__name__} at {self._base}: {error}") from error
        if answer.status_code >= 400:
            error_body = _error_of(answer)
            said = error_body.get("message") or f"{self._base} is answered by something that is no kvdeck"
            message = f"{answer.status_code}: {said} {error_body.get('hint', '')}".rstrip()
            raise CallFailed(message, answer.status_code, str(error_body.get("code", "")))
        try:
            body: dict[str, Any] = answer.json()
        except ValueError as error:
            raise CallFailed(f"{method} {path} was answered with something that is no JSON", 502) from error
        return body


def _error_of(answer: httpx.Response) -> dict[str, Any]:
    try:
        body = answer.json()
    except ValueError:
        return {}
    error = body.get("error") if isinstance(body, dict) else None
    return error if isinstance(error, dict) else {}
