"""The operator's calls as a typed client: what the CLI and the dashboard use (docs/reference/wire.md, section 4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import httpx

from controlplane.api.calls import STALE_HEADER, Json
from controlplane.api.client_rules import RuleCalls
from controlplane.api.client_steering import SteeringCalls, Unreachable
from controlplane.errors import (
    BadRequest,
    Conflict,
    ControlPlaneError,
    Forbidden,
    Misdirected,
    NotFound,
    TooLarge,
    TooManyRequests,
    Unauthorised,
    Unavailable,
)

__all__ = ["ControlPlaneClient", "Unreachable"]
BY_STATUS: Mapping[int, type[ControlPlaneError]] = {
    400: BadRequest,
    401: Unauthorised,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
    421: Misdirected,
    429: TooManyRequests,
    503: Unavailable,
}


class ControlPlaneClient(RuleCalls, SteeringCalls):
    """One caller's line to the control plane. Methods raise ControlPlaneErrors: the server's own, or Unreachable.
    `on_stale` gets the age in seconds of an answer that is not of now, because the database is away.

    Times in answers are RFC 3339 texts in UTC.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout_seconds: float = 10.0,
        transport: httpx.BaseTransport | None = None,
        on_stale: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.url = _checked_url(url)
        self._on_stale = on_stale
        headers = {"Authorization": f"Bearer {_checked_token(token)}"} if token else {}
        self._http = httpx.Client(
            base_url=self.url, headers=headers, timeout=timeout_seconds, trust_env=False, transport=transport
        )

    def __enter__(self) -> ControlPlaneClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    # Reads

    def health(self) -> Any:
        """Whether the control plane can work; needs no token."""
        return self.get("/healthz")

    def me(self) -> Json:
        """The caller's name and role."""
        return _document(self.get("/v1/me"))

    def overview(self, **filters: Any) -> Any:
        """A range in numbers, by `engine, namespace, minutes`."""
        return self.get("/v1/overview", **filters)

    def engines(self) -> Any:
        """Every engine with what it last said."""
        return self.get("/v1/engines")

    def prefixes(self, **filters: Any) -> Any:
        """Prefixes by `engine, state, namespace, search, order, limit`."""
        return self.get("/v1/prefixes", **filters)

    def prefix(self, engine: str, prefix_id: str) -> Any:
        """One prefix: now, versions, checkpoints, failures."""
        return self.get(f"/v1/prefixes/{engine}/{prefix_id}")

    def losses(self, **filters: Any) -> Json:
        """Where prompt tokens went, by `engine, namespace, minutes, since, until` -> `{usable_tokens, rows, ...}`."""
        return _document(self.get("/v1/losses", **filters))

    def requests(self, **filters: Any) -> Json:
        """Single requests, by `trace, lost_prefix, engine, namespace, minutes` -> `{requests, why, capped}`."""
        return _document(self.get("/v1/requests", **filters))

    def namespaces(self, **filters: Any) -> Any:
        """What each namespace asked for and got, by `engine, minutes`."""
        return self.get("/v1/namespaces", **filters)

    def doctor(self, **filters: Any) -> Json:
        """What is wrong, by `engine, minutes` -> `{engines, rules, findings}`."""
        return _document(self.get("/v1/doctor", **filters))

    def series(self, name: str, **filters: Any) -> Any:
        """A metric over time, by `engine` and `since`."""
        return self.get("/v1/series", name=name, **filters)

    def whatif(self, **asked: Any) -> Json:
        """The curve of an `engine`, and what a cap would bring: `namespace`, `cap_prefixes`, `cap_bytes`."""
        return _document(self.get("/v1/whatif", **asked))

    def predictions(self, **filters: Any) -> Any:
        """What curves foretold of caps, and what then happened."""
        return self.get("/v1/whatif/outcomes", **filters)

    def audit(self, **filters: Any) -> Any:
        """Who did what, newest first, by `actor, action, target, trace, since, before, limit`."""
        return self.get("/v1/audit", **filters)

    def marks(self, **filters: Any) -> Any:
        """What was changed in a range, by `engine, minutes, since`."""
        return self.get("/v1/marks", **filters)

    def validations(self, **filters: Any) -> Any:
        """How the validations ended, by `engine, minutes, since`."""
        return self.get("/v1/validations", **filters)

    def failures(self, **filters: Any) -> Any:
        """Failed validations, by `engine, validation, since, limit`."""
        return self.get("/v1/validations/failures", **filters)

    def damaged(self, **filters: Any) -> Any:
        """Prefixes in quarantine, by `engine, limit`."""
        return self.get("/v1/damaged", **filters)

    # Writes

    def redeem(self, one_time_token: str) -> Json:
        """Spends a one-time link -> `{role, name, session_token}`."""
        return _document(self._call("POST", "/v1/session", json={"token": one_time_token}))

    def exchange(self, id_token: str) -> Json:
        """Trades an identity provider's ID token -> `{role, name, session_token}`."""
        return _document(self._call("POST", "/v1/session/oidc", json={"id_token": id_token}))

    # The line itself

    def get(self, path: str, **query: Any) -> Any:
        """Any read; a query of None is left out."""
        return self._call("GET", path, params={key: value for key, value in query.items() if value is not None})

    def _post(self, path: str, body: Mapping[str, Any], traceparent: str | None = None) -> Json:
        headers = {"traceparent": traceparent} if traceparent else {}
        return _document(self._call("POST", path, json=body, headers=headers))

    def _call(self, method: str, path: str, **how: Any) -> Any:
        try:
            answer = self._http.request(method, path, **how)
        except httpx.InvalidURL as error:
            raise BadRequest(
                "id_unfit", f"{path[:200]!r} is nothing to ask for: {error}.", "Check the id or name that was given."
            ) from error
        except ValueError as error:  # JSON has no NaN and no infinity
            raise BadRequest("value_unfit", f"This cannot be sent: {error}.", "Give finite numbers.") from error
        except httpx.HTTPError as error:
            raise Unreachable(
                "unreachable",
                f"No control plane answers at {self.url} ({type(error).__name__}).",
                "Start one with `kvdeck up`, or name yours with --url or KVDECK_URL.",
            ) from error
        if answer.status_code >= 400:
            raise _error_of(answer)
        if STALE_HEADER in answer.headers:
            self._on_stale(_seconds(answer.headers.get("Age", "")))
        try:
            return answer.json()
        except ValueError as error:
            raise Unreachable(
                "no_json", f"What answers at {self.url} is no kvdeck control plane.", "Check --url or KVDECK_URL."
            ) from error


def _checked_url(url: str) -> str:
    """The address without its last slash. Raises BadRequest for what is none, or of another scheme."""
    try:
        parsed = httpx.URL(url.strip())
    except (httpx.InvalidURL, ValueError):
        parsed = httpx.URL("")
    if parsed.scheme not in ("http", "https") or not parsed.host or (parsed.port or 1) > 65_535:
        raise BadRequest(
            "url_invalid",
            f"{url[:200]!r} is no address of a control plane.",
            "Write it with its scheme, as http://127.0.0.1:8410 (--url, KVDECK_URL).",
        )
    return url.strip().rstrip("/")


def _checked_token(token: str) -> str:
    """The token. Raises Unauthorised for what no header can carry; it is not repeated."""
    if not token.isascii() or not token.isprintable():
        raise Unauthorised(
            "token_unfit", "The token has characters that no token has.", "Check --token, KVDECK_TOKEN or the file."
        )
    return token


def _seconds(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


def _error_of(answer: httpx.Response) -> ControlPlaneError:
    kind = BY_STATUS.get(answer.status_code, ControlPlaneError)
    try:
        said = answer.json()["error"]
        return kind(str(said["code"]), str(said["message"]), str(said.get("hint", "")))
    except (ValueError, KeyError, TypeError):
        message = f"The control plane answered {answer.status_code} and nothing we understand."
        return kind(f"http_{answer.status_code}", message, "Check --url, and the server's log.")


def _document(body: Any) -> Json:
    if not isinstance(body, dict):
        raise Unreachable("no_document", "The answer has not the shape we expect.", "Check that versions match.")
    return body
