"""A prefix's page asks its engine for leases and generations: an answer, a refusal, silence; in a real Chromium."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from dashboard_seed_series import LIVE, prefix_id
from dashboard_stage import Deck, Visit
from live_support import Live, live_engine, prompt
from playwright.sync_api import expect
from steering_support import wait_for

from controlplane.auth import ANY_ENGINE, Role, issue_token
from controlplane.clock import utc_now
from controlplane.steering import commands
from controlplane.store import models as m
from dashboard.components import inspection

ENGINE = "live"
NOW = dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC)

# uvicorn's websocket support is imported lazily and warns about itself; Streamlit is another process.
pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Deck, Live, str]]:
    """A seeded deck, a real engine at it, and the id of the prefix that it holds."""
    folder: Path = tmp_path_factory.mktemp("deck")
    deck = Deck(folder)
    with deck.store.write() as session:
        token = issue_token(session, "engines", Role.ENGINE, ttl=None, engine_id=ANY_ENGINE)
    line = SimpleNamespace(url=deck.settings.api_url, tokens={Role.ENGINE: token})
    with live_engine(line, folder / "engine") as live:  # type: ignore[arg-type]
        live.serve(prompt(1))

        def held() -> m.Prefix | None:
            with deck.store.read() as session:
                return session.query(m.Prefix).where(m.Prefix.engine_id == ENGINE).first()

        yield deck, live, wait_for(held, "the prefix").prefix_id
    deck.close()


@pytest.fixture
def visit(browser, ground) -> Iterator[Visit]:
    made = Visit(browser, ground[0])
    yield made
    made.leave()


def open_prefix(visit: Visit, role: str, engine: str, prefix: str) -> None:
    visit.enter(role, "prefixes", f"?prefix={engine}/{prefix}")
    visit.see("Leases and generations")


def ask(visit: Visit) -> None:
    visit.page.get_by_role("button", name="Ask the engine").click()


def test_an_operator_sees_who_holds_it_and_as_of_when(visit, ground) -> None:
    _, live, held = ground
    open_prefix(visit, "operator", ENGINE, held)
    with live.engine.acquire(prompt(1), deadline_s=5.0):
        ask(visit)
        visit.see("· 1 lease · not pinned")  # the head of the page also has "leases" in it
    visit.see("As of")
    visit.see("not pinned")
    visit.settle()
    leases, objects = (visit.page.get_by_test_id("stDataFrame").nth(n) for n in (-2, -1))
    expect(leases.locator("tr[aria-rowindex='2']")).to_contain_text("✔ yes")
    expect(objects.locator("tr[aria-rowindex='2']")).to_contain_text("GPU")
    visit.shoot("prefix_inspected")
    ask(visit)
    visit.see("No request was reading it.")


def test_what_the_engine_refuses_is_said_in_words(visit, ground) -> None:
    deck, live, _ = ground
    gone = live_prefix(live, 2)
    with deck.store.write() as session:
        known = session.query(m.Prefix).where(m.Prefix.engine_id == ENGINE).first()
        row = {column.name: getattr(known, column.key) for column in m.Prefix.__table__.columns}
        session.merge(m.Prefix(**(row | {"prefix_id": gone[::-1], "state": "FULL"})))
    open_prefix(visit, "operator", ENGINE, gone[::-1])
    ask(visit)
    visit.see("The engine does not hold this prefix any more.")


def live_prefix(live: Live, number: int) -> str:
    """The id of a prefix that the engine holds now."""
    live.serve(prompt(number))
    return str(live.engine.snapshot()[-1]["prefix.id"])


def test_an_engine_that_does_not_answer_is_waited_for_and_then_said_to_be_silent(visit, ground) -> None:
    deck = ground[0]
    open_prefix(visit, "operator", LIVE, prefix_id(7))
    ask(visit)
    visit.see("waiting for the engine")
    with deck.store.write() as session:
        assert commands.expire_overdue(session, utc_now() + dt.timedelta(seconds=31))
    visit.see("No answer.")
    visit.see("see the Fleet page")


def test_a_viewer_cannot_ask(visit, ground) -> None:
    open_prefix(visit, "viewer", ENGINE, ground[2])
    visit.see("An operator can ask the engine")
    expect(visit.page.get_by_role("button", name="Ask the engine")).to_have_count(0)


def test_what_is_told_reads_as_it_is() -> None:
    lease = {"lease_id": 1, "age_s": 3.0, "left_s": -1.0, "usable_tokens": 128, "current": False}
    lost = {"kind": "compressed_kv", "boundary": None, "tier": None, "codec": None, "pages": 0, "bytes": 0}
    lost |= {"generation_min": None, "generation_max": None, "current": None}
    deep = lost | {"boundary": 1280, "tier": "host", "codec": "none", "generation_min": 2, "generation_max": 5}
    said = {
        "at_unix_s": NOW.timestamp() - 4, "version": 3, "leases": 2, "oldest_leases": [lease], "busy": True,
        "pinned_until_unix_s": NOW.timestamp() + 60, "checkpoints": 60, "checkpoints_told": 50, "objects": [lost, deep],
    }  # fmt: skip
    text = inspection.summary_text(said, NOW)
    for part in ("(4 s ago)", "2 leases, the oldest 1", "pinned until 2026-01-02 03:01:00", "deepest 50 of 60"):
        assert part in text
    assert inspection.leases_frame(said).loc[0, ["Ends in", "Pointers current"]].tolist() == [
        "past its deadline", "✖ stale",
    ]  # fmt: skip
    assert inspection.objects_frame(said)[["At", "Tier", "Generation"]].to_numpy().tolist() == [
        ["pages", "missing", "–"], ["checkpoint 1,280", "host", "2 to 5"],
    ]  # fmt: skip
    assert "said goodbye" in inspection.why_not("expired", {"reason": "engine_left"})
    assert inspection.why_not("failed", {"reason": "1 closed"}) == "The command failed: 1 closed."
