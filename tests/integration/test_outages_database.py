"""The database goes away while engines speak and people steer: who is told what, and that nothing counts twice."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from databases import KINDS, Database, PostgresServer
from live_support import SPEC, Live, engine_config, prompt
from sqlalchemy import func, select
from steering_support import Deck, running_deck, wait_for
from test_outages import open_gaps, registered, told
from typer.testing import CliRunner

from controlplane.api.calls import STALE_HEADER
from controlplane.auth import Role
from controlplane.cli.main import app
from controlplane.host.deck import engine_on_deck
from controlplane.store.models import Command, RequestRollup
from engine.integrations.synthetic import SyntheticModel

Outage = Callable[[], None]


@contextmanager
def postgres_that_dies(_folder: Path) -> Iterator[tuple[Database, Outage, Outage]]:
    """A database on a server of its own, how it dies, and how it comes back."""
    server = PostgresServer()
    try:
        yield Database(kind="postgresql", url=server.url(server.copy())), server.kill, server.start
    finally:
        server.remove()


@contextmanager
def sqlite_that_locks(folder: Path) -> Iterator[tuple[Database, Outage, Outage]]:
    """A file, how another process takes it for itself, and how that lets go."""
    path = folder / "deck.sqlite3"
    greedy = sqlite3.connect(path, isolation_level=None, check_same_thread=False)

    def lock() -> None:
        greedy.execute("PRAGMA busy_timeout=20000")
        greedy.execute("BEGIN IMMEDIATE")

    yield Database(kind="sqlite", url=f"sqlite:///{path}"), lock, lambda: greedy.execute("ROLLBACK") and None
    greedy.close()


OUTAGES = {"sqlite": sqlite_that_locks, "postgresql": postgres_that_dies}


@pytest.fixture(params=KINDS)
def outage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Deck, Outage, Outage]]:
    with OUTAGES[request.param](tmp_path) as (database, begin, end), running_deck(tmp_path, database) as deck:
        yield deck, begin, end


def call(deck: Deck, method: str, path: str, **more: object) -> httpx.Response:
    headers = {"Authorization": f"Bearer {deck.tokens[Role.OPERATOR]}"}
    return httpx.request(method, deck.url + path, headers=headers, timeout=40, **more)  # type: ignore[arg-type]


def unavailable(answer: httpx.Response) -> str:
    assert answer.status_code == 503
    assert int(answer.headers["Retry-After"]) > 0
    error = answer.json()["error"]
    assert error["hint"]
    return str(error["code"])


def test_what_is_said_and_asked_while_the_database_is_away_is_there_once(
    outage: tuple[Deck, Outage, Outage], tmp_path: Path
) -> None:
    deck, begin, end = outage
    with engine_on_deck(
        SPEC, engine_config(tmp_path / "engine"), url=deck.url, token=deck.tokens[Role.ENGINE]
    ) as engine:
        live = Live(engine, SyntheticModel(SPEC))
        wait_for(lambda: registered(deck), "the engine")
        live.serve(prompt(1))
        wait_for(lambda: told(deck) == engine.counters().transitions, "what was said before")
        wanted = {"engine": engine.id, "kind": "compact", "reason": "test", "idempotency_key": "only-once"}
        before = call(deck, "GET", "/v1/engines").json()
        with deck.client(Role.OPERATOR) as client:
            client.prefixes(order="served", limit=20, offset=0)  # as the verb asks
        begin()
        for seed in (2, 1, 3):
            assert live.serve(prompt(seed)).prompt_tokens
        refused = call(deck, "POST", "/v1/commands", json=wanted)
        look = call(deck, "GET", "/v1/engines")
        if deck.store.dialect == "sqlite":  # one writer is stuck; readers see what was committed last
            assert unavailable(refused) == "database_locked"
            assert [one["id"] for one in look.json()] == [one["id"] for one in before] == [engine.id]
        else:
            assert unavailable(refused) == unavailable(call(deck, "GET", "/v1/alerts")) == "database_unavailable"
            assert (look.status_code, look.json()) == (200, before)  # asked before: told again, as old
            assert look.headers[STALE_HEADER] == "database_unavailable"
            assert int(look.headers["Age"]) >= 0
            said = CliRunner().invoke(app, ["prefixes", "--url", deck.url, "--token", deck.tokens[Role.OPERATOR]])
            assert said.exit_code == 0, said.output
            assert "stale: the database does not answer" in said.output
        end()
        wait_for(lambda: STALE_HEADER not in call(deck, "GET", "/v1/engines").headers, "an answer of now")
        wait_for(lambda: call(deck, "POST", "/v1/commands", json=wanted).status_code == 201, "the command's acceptance")
        assert call(deck, "POST", "/v1/commands", json=wanted).status_code == 201
        wait_for(lambda: told(deck) == engine.counters().transitions, "what was said meanwhile")
        wait_for(lambda: requests(deck) == sum(engine.counters().by_outcome.values()), "the requests served meanwhile")
        wait_for(lambda: commands(deck) == ["succeeded"], "the command's end")
        assert open_gaps(deck) == 0
        assert engine.stats()["telemetry_dropped"] == 0
        assert live.wrong_bytes == 0
        assert engine.check() == []


def requests(deck: Deck) -> int:
    with deck.store.read() as session:
        return session.scalar(select(func.sum(RequestRollup.requests))) or 0


def commands(deck: Deck) -> list[str]:
    with deck.store.read() as session:
        return list(session.scalars(select(Command.status)))
