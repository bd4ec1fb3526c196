"""How many statements a read takes: as many for a fleet as for two engines, in every call and for every page."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from api_seed import Seed
from databases import Database
from sqlalchemy import Engine, event
from steering_support import Deck, running_deck
from streamlit.testing.v1 import AppTest

from controlplane.store.models import Alert, Command, DesiredState, HistoryGap, Notification, Policy, PolicyRun
from dashboard import control, data
from dashboard.app import PAGES

SMALL, LARGE = 2, 12
ONCE_AN_ENGINE = (LARGE - SMALL) // 2
"""A statement made so many times more is made by engine. A few more are none: what was kept may run out meanwhile."""


@contextmanager
def counted(engine: Engine) -> Iterator[list[str]]:
    """The statements that reach a database while the block runs."""
    seen: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        seen.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    yield seen
    event.remove(engine, "before_cursor_execute", note)


class Fleet:
    """A seeded control plane that grows: every engine brings one of everything that a read might ask about."""

    def __init__(self, deck: Deck) -> None:
        self.deck, self.seed, self.size = deck, Seed(deck), 1

    def grow_to(self, engines: int) -> None:
        for number in range(self.size + 1, engines + 1):
            self._join(f"engine-{number}", number)
        self.size = engines

    def _join(self, engine: str, number: int) -> None:
        seed = self.seed
        for visit in (seed.register(engine), seed.traces(engine), seed.metrics(engine), seed.curve(engine)):
            assert visit.send(self.deck).status_code == 200, visit.name
        assert seed.heartbeat(engine).send(self.deck).status_code == 200
        for visit in seed.people():  # its own rules, policies, silences and receivers
            visit.send(self.deck)
        with self.deck.store.write() as session:
            session.add_all(self._of(engine, number))

    def _of(self, engine: str, number: int) -> list[Any]:
        at = self.seed.at
        alert = Alert(
            id=1000 + number, rule="engine_silent", engine_id=engine, state="firing", severity="critical",
            summary="no word", runbook="", value=70.0, threshold=60.0, since=at, fired_at=at,
        )  # fmt: skip
        told = Notification(
            id=str(uuid.uuid4()), receiver="on-call", alert_id=1000 + number, state="firing", body={}, status="failed",
            attempts=1, next_at=at, created_at=at,
        )  # fmt: skip
        command = Command(
            id=str(uuid.uuid4()), engine_id=engine, kind="warm", arguments={}, idempotency_key=uuid.uuid4().hex,
            epoch=0, status="failed", progress={}, outcome={"error": "no"}, actor="a", reason="r", created_at=at,
            expires_at=at,
        )  # fmt: skip
        policy = Policy(
            name=f"own-{number}", kind="warmup", parameters={}, every_seconds=60, scope={"engine": engine}, memory={},
            changed_at=at,
        )  # fmt: skip
        run = PolicyRun(
            policy=f"own-{number}", engine_id=engine, at=at, trigger="schedule", dry_run=False, inputs={},
            decision="nothing", proposed=[], did={}, error="it broke",
        )  # fmt: skip
        gap = HistoryGap(
            engine_id=engine, prefix_id=f"{number:032x}", life=1, first_version=1, last_version=2, found_at=at
        )
        asked = DesiredState(engine_id=engine, document={"cap_prefixes": 50}, actor="a", reason="r", at=at)
        return [alert, told, command, policy, run, gap, asked]


@pytest.fixture
def fleet(database: Database, tmp_path: Any) -> Iterator[Fleet]:
    with running_deck(tmp_path, database) as deck:
        yield Fleet(deck)


def many(before: Mapping[str, list[str]], after: Mapping[str, list[str]]) -> dict[str, str]:
    """The reads that make a statement again for each engine: how many times, and which."""
    found = {}
    for name, statements in after.items():
        was, now = Counter(before[name]), Counter(statements)
        often = max(now, key=lambda statement: now[statement] - was[statement], default="")
        if now[often] - was[often] >= ONCE_AN_ENGINE:
            found[name] = f"{was[often]} -> {now[often]}: {' '.join(often.split())[:200]}"
    return found


def api_calls(fleet: Fleet) -> dict[str, list[str]]:
    """Every call that only looks, and the trial of a change -> the statements it took."""
    found = {}
    for visit in (*fleet.seed.reads(), *(visit for visit in fleet.seed.people() if visit.name == "try_desired")):
        with counted(fleet.deck.store.engine) as seen:
            answer = visit.send(fleet.deck)
        assert answer.status_code == 200, f"{visit.name}: {answer.text}"
        found[f"/{visit.name}"] = seen  # a page may have the name of a call
    return found


def one_page(path: str, role: str) -> None:
    """The script of a run: the frame of every page, then the page. Streamlit runs its source alone."""
    from dashboard import app, session
    from dashboard.components import header

    session.sign_in(session.Person(name="ann", role=role, token="t"))
    header.draw(session.Person(name="ann", role=role, token="t"))
    next(draw for draw, _, name, _ in app.PAGES if name == path)()


def page_runs(role: str) -> dict[str, list[str]]:
    """Every page, read anew -> the statements that drawing it took."""
    found = {}
    for _, _, path, _ in PAGES:
        data.clear()
        data.namespaces.clear()
        with counted(data.store().engine) as seen:
            run = AppTest.from_function(one_page, args=(path, role), default_timeout=120).run()
        assert not run.exception, f"{path}: {run.exception[0].message}"
        found[path] = seen
    return found


@pytest.fixture
def pages(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    environment = {"KVDECK_DATABASE_URL": fleet.deck.store.url, "KVDECK_API_PORT": str(fleet.deck.settings.api_port)}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    control.settings.cache_clear()
    data.store.cache_clear()
    yield
    data.clear()
    data.store().dispose()
    data.store.cache_clear()
    control.settings.cache_clear()


@pytest.mark.usefixtures("pages")
def test_no_call_and_no_page_makes_a_statement_for_each_engine(fleet: Fleet) -> None:
    fleet.grow_to(SMALL)
    small = api_calls(fleet) | page_runs("operator")
    fleet.grow_to(LARGE)
    assert many(small, api_calls(fleet) | page_runs("operator")) == {}
    assert len(small) > 40
    assert all(small[name] for name in ("/doctor", "/overview", "/try_desired", *(path for _, _, path, _ in PAGES)))
