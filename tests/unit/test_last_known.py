"""Answers that are told again while the database is away: to whom, how long, how many."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.requests import Request
from starlette.responses import JSONResponse

from controlplane.api.calls import STALE_HEADER
from controlplane.api.errors import answer_to
from controlplane.api.last_known import KEPT_SECONDS, LARGEST_BYTES, MOST_BYTES, LastKnown, StaleReads
from controlplane.errors import ControlPlaneError, Forbidden, Unauthorised, Unavailable

AWAY = Unavailable("database_unavailable", "The database does not answer.", "Wait.")


class Server:
    """An app with one route that answers what it is set to."""

    def __init__(self) -> None:
        self.error: ControlPlaneError | None = None
        self.asked = 0
        app = FastAPI()

        async def answer(request: Request) -> Any:
            self.asked += 1
            return answer_to(self.error) if self.error else JSONResponse({"asked": self.asked})

        for path in ("/v1/engines", "/v1/engines/e/poll", "/v1/commands/c", "/v1/batches/b", "/healthz"):
            app.add_api_route(path, answer, methods=["GET", "POST"])
        app.add_middleware(StaleReads)
        self.client = TestClient(app)

    def get(self, path: str = "/v1/engines", token: str | None = "a") -> Any:
        return self.client.get(path, headers={"Authorization": f"Bearer {token}"} if token else {})


@pytest.fixture
def server() -> Server:
    return Server()


def test_a_caller_is_told_again_what_it_was_told_and_that_it_is_old(server: Server) -> None:
    fresh = server.get()
    assert STALE_HEADER not in fresh.headers
    server.error = AWAY
    old = server.get()
    assert (old.status_code, old.json(), old.headers[STALE_HEADER]) == (200, {"asked": 1}, "database_unavailable")
    assert int(old.headers["Age"]) >= 0
    assert "Retry-After" not in old.headers  # it is an answer, not a refusal
    server.error = None
    again = server.get()
    assert (again.json(), STALE_HEADER in again.headers) == ({"asked": 3}, False)


@pytest.mark.parametrize(
    ("path", "token"),
    [("/v1/engines", "b"), ("/v1/engines", None), ("/v1/engines?minutes=5", "a"), ("/v1/engines/e/poll", "a"),
     ("/v1/commands/c", "a"), ("/v1/batches/b", "a"), ("/healthz", "a")],
)  # fmt: skip
def test_nobody_else_and_nothing_else_is_answered(server: Server, path: str, token: str | None) -> None:
    server.get()
    for asked in ("/v1/engines/e/poll", "/v1/commands/c", "/v1/batches/b", "/healthz"):
        server.get(asked)
    server.error = AWAY
    assert server.get(path, token).status_code == 503


def test_writes_and_other_errors_go_out_as_they_are(server: Server) -> None:
    server.get()
    server.error = AWAY
    assert server.client.post("/v1/engines", headers={"Authorization": "Bearer a"}).status_code == 503
    server.error = Unavailable("engine_busy", "Another reason.", "Wait.")
    assert server.get().status_code == 503


@pytest.mark.parametrize("error", [Unauthorised("token_ended", "m", "h"), Forbidden("role_insufficient", "m", "h")])
def test_a_token_that_was_refused_since_is_told_nothing(server: Server, error: ControlPlaneError) -> None:
    server.get()
    server.error = error
    assert server.get().status_code == error.status
    server.error = AWAY
    assert server.get().status_code == 503


def test_what_is_kept_has_an_end_in_time_and_in_bytes() -> None:
    now = [0.0]
    known = LastKnown(clock=lambda: now[0])
    known.keep(b"old", b"x")
    now[0] = KEPT_SECONDS
    assert known.find(b"old") == (b"x", KEPT_SECONDS)
    now[0] += 1
    assert known.find(b"old") is None
    known.keep(b"large", b"x" * (LARGEST_BYTES + 1))
    assert known.find(b"large") is None
    count = MOST_BYTES // LARGEST_BYTES
    for number in range(count + 2):
        known.keep(b"%d" % number, b"x" * LARGEST_BYTES)
        known.keep(b"%d" % number, b"y" * LARGEST_BYTES)  # in place of the first, not beside it
    kept = [number for number in range(count + 2) if known.find(b"%d" % number)]
    assert kept == list(range(2, count + 2))
