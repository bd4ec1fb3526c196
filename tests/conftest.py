"""Fixtures of many tests: real engines, closed at the end, with freed memory poisoned; real databases of both kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from databases import KINDS, Database, Databases, PostgresServer


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Names bytes by their argument: what a test sends may carry the time, and two workers must collect one list."""
    return argname if isinstance(val, bytes) else None


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A Postgres server of this test process."""
    server = PostgresServer()
    yield server
    server.remove()


@pytest.fixture
def databases(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Databases]:
    """Makes databases of a kind, for tests that need another than `database`."""
    made = Databases(lambda: request.getfixturevalue("postgres_server"), tmp_path)
    yield made
    made.forget()


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, databases: Databases) -> Database:
    """An empty database with our schema: a test that asks for it runs on SQLite and on Postgres."""
    return databases.new(request.param)


@pytest.fixture
def make_rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Builds `Rig`s; every one of them must balance at the end, unless it says it was left broken on purpose."""
    # Imported here: most tests in this tree never load torch.
    from engine_support import Rig, do_not_wait_for_the_disk, poison_freed_slots

    from engine.integrations.synthetic import use_one_thread

    use_one_thread()
    poison_freed_slots(monkeypatch)
    do_not_wait_for_the_disk(monkeypatch)
    made: list[Rig] = []

    def make(*args: Any, **kwargs: Any) -> Rig:
        made.append(Rig(*args, **kwargs))
        return made[-1]

    yield make
    for rig in made:
        rig.engine.close()
