"""The dashboard in a real Chromium while things change: what people do there, and what it says when something is gone.

A missing Chromium fails: a skipped look is no look.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from dashboard_seed_series import GONE, LIVE
from dashboard_stage import PATIENCE_MS, Deck, Visit
from playwright.sync_api import expect
from sqlalchemy import select, update

from controlplane.store import models as m

GONE_TABLES = ("alembic_version", "prefixes")
PAGES = ("Prefixes", "Validations", "Memory", "Fleet", "Caps and mode", "Policies", "Alerts", "Audit")
# uvicorn's websocket support is imported lazily and warns about itself; Streamlit is another process.
pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def deck(tmp_path_factory) -> Iterator[Deck]:
    made = Deck(tmp_path_factory.mktemp("deck"))
    yield made
    made.close()


def test_evicting_shows_the_blast_radius_asks_why_and_follows_to_the_outcome(visit):
    visit.enter("operator", "prefixes")
    visit.pick_row(0)
    visit.page.get_by_role("button", name="Evict", exact=True).click()
    dialog = visit.page.get_by_role("dialog")
    expect(dialog.get_by_text("Prefixes touched")).to_be_visible()
    _await_refresh(visit)  # of the page behind, which must not close the dialog
    dialog.get_by_role("button", name="Evict 1 prefix").click()
    expect(dialog.get_by_text("Write a reason first")).to_be_visible()
    visit.settle()
    visit.shoot("evict_dialog")
    dialog.get_by_label("Reason").fill("make room for tenant-a")
    dialog.get_by_role("button", name="Evict 1 prefix").click()
    expect(dialog.get_by_text("Waiting for the engine to fetch it")).to_be_visible()
    _engine_reports(visit.deck, "running", progress={"done": 1, "total": 2})
    expect(dialog.get_by_text("1 of 2")).to_be_visible(timeout=PATIENCE_MS)
    _engine_reports(visit.deck, "succeeded", outcome={"evicted": 1, "bytes": 1 << 20, "refused": []})
    expect(dialog.get_by_text("evicted 1, 1.0 MiB")).to_be_visible(timeout=PATIENCE_MS)
    visit.shoot("evict_done")


def _await_refresh(visit: Visit) -> None:
    """Until the parts that refresh by themselves have done so."""
    state = "document.querySelector('[data-testid=stApp]').dataset.testScriptState"
    visit.page.wait_for_function(f"{state} === 'running'")
    visit.settle()


def _engine_reports(deck: Deck, status: str, **values: object) -> None:
    """What an engine's agent would make of the newest command."""
    ended = dt.datetime.now(dt.UTC) if status == "succeeded" else None
    with deck.store.write() as session:
        session.execute(
            update(m.Command)
            .where(m.Command.reason == "make room for tenant-a")
            .values(status=status, finished_at=ended, **values)
        )


def test_caps_show_the_diff_ask_why_and_watch_until_engines_have_them(visit):
    visit.enter("operator", "caps")
    visit.page.get_by_label("Prefixes", exact=True).fill("5,000")
    visit.page.get_by_label("Host bytes", exact=True).fill("32 GiB")
    visit.page.get_by_role("button", name="Review the change").click()
    dialog = visit.page.get_by_role("dialog")
    expect(dialog.get_by_text("on top of revision")).to_be_visible()
    expect(dialog.get_by_text("By the store, ")).to_be_visible(timeout=PATIENCE_MS)
    visit.shoot("caps_review")
    dialog.get_by_label("Reason").fill("twice the traffic is expected")
    dialog.get_by_role("button", name="Apply").click()
    visit.see("Applying revision")
    visit.see(f"{LIVE} waiting: still runs revision")
    with visit.deck.store.write() as session:
        session.execute(update(m.Engine).where(m.Engine.id == LIVE).values(observed_revision=99))
    visit.see(f"{LIVE} applied: runs revision 99")
    visit.see(f"{GONE} silent")
    visit.shoot("caps_applying")


def test_a_dangerous_mode_needs_its_name_typed(visit):
    visit.enter("operator", "caps", f"?engine={LIVE}")
    visit.choose("Mode", "bypass")
    visit.page.get_by_label("Pin share", exact=True).fill("10%")
    visit.page.get_by_role("button", name="Review the change").click()
    dialog = visit.page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("wrong answers are suspected")
    dialog.get_by_role("button", name="Apply").click()
    expect(dialog.get_by_text("Type bypass as it is written")).to_be_visible(timeout=PATIENCE_MS)
    visit.shoot("caps_dangerous")
    dialog.get_by_label("type bypass").fill("bypass")
    dialog.get_by_role("button", name="Apply").click()
    visit.see("Applying revision")
    with visit.deck.store.read() as session:
        newest = session.scalars(select(m.DesiredState).order_by(m.DesiredState.revision.desc())).first()
    assert (newest.engine_id, newest.document["mode"], newest.document["pin_budget_ratio"]) == (LIVE, "bypass", 0.1)


def test_a_change_is_rolled_back_right_after_it_was_applied(visit):
    fleet = select(m.DesiredState).where(m.DesiredState.engine_id.is_(None), m.DesiredState.group_name.is_(None))
    newest = fleet.order_by(m.DesiredState.revision.desc())
    with visit.deck.store.read() as session:
        before = session.scalars(newest).first()
    visit.enter("operator", "caps")
    visit.page.get_by_label("Prefixes", exact=True).fill("6,000")
    visit.page.get_by_role("button", name="Review the change").click()
    dialog = visit.page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("more traffic is expected")
    dialog.get_by_role("button", name="Apply").click()
    visit.see("Applying revision")
    with visit.deck.store.read() as session:
        applied = session.scalars(newest).first()
        revisions = list(session.scalars(select(m.DesiredState.revision).order_by(m.DesiredState.revision.desc())))
    assert (applied.revision > before.revision, applied.document["cap_prefixes"]) == (True, 6000)
    visit.pick_row(revisions.index(before.revision), of=visit.page.get_by_test_id("stDataFrame").last)
    visit.page.get_by_role("button", name=f"Roll back to revision {before.revision}").click()
    expect(dialog.get_by_text("as a new revision")).to_be_visible()
    expect(dialog.get_by_text("6,000", exact=True)).to_be_attached(timeout=PATIENCE_MS)  # a cell of a grid
    visit.shoot("caps_rollback")
    dialog.get_by_label("Reason").fill("the traffic did not come")
    dialog.get_by_role("button", name="Roll back").click()
    expect(dialog).to_have_count(0, timeout=PATIENCE_MS)
    with visit.deck.store.read() as session:
        back = session.scalars(newest).first()
    assert (back.revision > applied.revision, back.document, back.reason) == (
        True, before.document, "the traffic did not come",
    )  # fmt: skip
    visit.see(f"Applying revision {back.revision}")


def test_a_policy_says_why_and_is_paused_and_tuned_with_a_reason(visit):
    visit.enter("operator", "policies")
    visit.page.get_by_role("button", name="Why?").first.click()
    dialog = visit.page.get_by_role("dialog")
    expect(dialog.get_by_text("degrade decided well")).to_be_visible()
    expect(dialog.get_by_text("(window 1 min): rate 1.9%").first).to_be_visible()
    visit.shoot("policy_why")
    dialog.get_by_role("button", name="Close").first.click()
    expect(dialog).to_have_count(0)
    visit.page.get_by_role("button", name="Tune").nth(1).click()
    seconds = dialog.get_by_label("Seconds", exact=True)
    seconds.fill("1800")
    seconds.press("Tab")
    expect(dialog.get_by_text("runs: every 2 min → every 30 min")).to_be_visible()
    dialog.get_by_label("Reason").fill("less often")
    visit.shoot("policy_tune")
    dialog.get_by_role("button", name="Change", exact=True).click()
    expect(dialog).to_have_count(0)
    visit.settle()
    visit.page.get_by_role("button", name="Pause", exact=True).last.click()
    dialog.get_by_label("Reason").fill("the disk is being replaced")
    visit.shoot("policy_pause")
    dialog.get_by_role("button", name="Pause").click()
    expect(dialog).to_have_count(0)
    with visit.deck.store.read() as session:
        done = session.scalars(select(m.Audit.reason).where(m.Audit.actor == "test operator")).all()
        assert {"less often", "the disk is being replaced"} <= set(done)
        assert session.scalars(select(m.Policy.name).where(m.Policy.every_seconds == 1800)).all() == ["offload-idle"]
        assert session.get_one(m.Policy, "warm-top").paused


def test_what_policies_are_set_to_knew_and_did_is_said_with_units(visit):
    visit.enter("viewer", "policies")
    for text in ("max bytes 4 GiB", "max bytes per hour 16 GiB", "pinned first yes", "labels none",
                 "step down above 20%", "longest hold 1 h", "served 48,000 tokens are not resident"):  # fmt: skip
        visit.see(text)
    visit.pick_row(0)  # the decision of warm-top: it was recorded last
    visit.see("Because: 12 prefixes that served 48,000 tokens")
    facts = visit.page.get_by_test_id("stTable")
    for position, text in enumerate(("3.0 GiB", "16 GiB", "warm succeeded (warmed 12, bytes 2.0 GiB)")):
        expect(facts.nth(position)).to_contain_text(text)
    visit.shoot("policy_decision")


def test_a_policy_is_tuned_in_the_units_of_its_parameters(visit):
    visit.enter("operator", "policies")
    visit.page.get_by_role("button", name="Tune").first.click()
    dialog = visit.page.get_by_role("dialog")
    share = dialog.get_by_role("spinbutton", name="step down above (%)")
    expect(share).to_have_value("20")
    share.fill("25")
    share.press("Tab")
    expect(dialog.get_by_text("step down above: 20% → 25%")).to_be_visible()
    window = dialog.get_by_role("spinbutton", name="window (seconds)")
    window.fill("90")
    window.press("Tab")
    expect(dialog.get_by_text("window: 1 min → 1 min 30 s")).to_be_visible()
    visit.settle()
    dialog.get_by_label("Reason").fill("it stepped down for too little")
    dialog.get_by_role("button", name="Change", exact=True).click()
    expect(dialog).to_have_count(0)
    with visit.deck.store.read() as session:
        parameters = session.get_one(m.Policy, "degrade").parameters
    assert (parameters["step_down_above"], parameters["window_seconds"]) == (0.25, 90)


def test_an_alert_is_silenced_with_a_reason_until_an_end(visit):
    visit.enter("operator", "alerts")
    visit.page.get_by_role("button", name="Silence").first.click()
    dialog = visit.page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("known, being mended")
    visit.shoot("silence_dialog")
    dialog.get_by_role("button", name="Silence").click()
    visit.see("known, being mended")
    visit.shoot("alerts_silenced")
    visit.page.get_by_role("button", name="End it").click()
    dialog.get_by_label("Reason").fill("mended")
    dialog.get_by_role("button", name="End it").click()
    visit.see("Nothing is silenced")


def test_a_new_alert_is_told_and_nothing_moves_until_it_is_asked_for(visit):
    visit.enter("operator", "alerts")
    visit.see("damaged prefixes")
    with visit.deck.store.write() as session:
        now = dt.datetime.now(dt.UTC)
        session.add(
            m.Alert(rule="disk_slow", engine_id=LIVE, state="firing", summary="the disk is slow", value=1.0,
                    threshold=0.5, since=now, fired_at=now)
        )  # fmt: skip
    visit.see("Alerts have changed")
    expect(visit.page.get_by_text("disk slow")).to_have_count(0)
    visit.shoot("alerts_changed")
    visit.page.get_by_role("button", name="Show it").click()
    visit.see("disk slow")
    expect(visit.page.get_by_text("Alerts have changed")).to_have_count(0)


# -- something is gone, or not there yet -------------------------------------------------------------------------------


def test_with_the_control_plane_down_the_pages_still_read_and_say_so(visit):
    visit.enter("operator")
    visit.deck.stop_control_plane()
    try:
        visit.see("The control plane is unreachable.")
        visit.see("control plane unreachable")
        visit.see_chart("Hit rate by object kind")
        for name in PAGES:
            visit.open(name)
            visit.see("The control plane is unreachable.")
            visit.shoot(f"control_plane_down_{name.split()[0].lower()}")
        visit.open("Overview")
        visit.shoot("control_plane_down_overview")
    finally:
        visit.deck.start_control_plane()
    visit.see("control plane up")


def test_with_the_database_gone_no_number_is_shown_and_it_looks_different(visit):
    visit.enter("operator", "prefixes")
    visit.see_chart("Prefix families by bytes held")
    visit.see("Read at")
    visit.open("Overview")
    with _renamed(visit.deck, {name: f"{name}_gone" for name in GONE_TABLES}):
        visit.see("control plane: database unreadable")
        for name in ("Overview", *PAGES):  # what was just drawn is in caches still
            if name != "Overview":
                visit.open(name)
            visit.see("The database has another schema")
            visit.see("Not shown")
            expect(visit.page.locator(".js-plotly-plot")).to_have_count(0)
            expect(visit.page.get_by_test_id("stDataFrame")).to_have_count(0)
            assert visit.page.get_by_text("The database has another schema").count() == 1
            if name in ("Overview", "Prefixes", "Caps and mode"):
                visit.shoot(f"database_unreadable_{name.split()[0].lower()}")
        visit.open("Prefixes")
    visit.see_chart("Prefix families by bytes held")  # by itself, and so is the list
    expect(visit.page.get_by_test_id("stDataFrame")).to_have_count(1)
    with _renamed(visit.deck, {name: f"{name}_gone" for name in GONE_TABLES}):
        visit.see("The database has another schema")  # and gone again, with nobody touching the page
        expect(visit.page.get_by_test_id("stDataFrame")).to_have_count(0)
        expect(visit.page.locator(".js-plotly-plot")).to_have_count(0)


@contextmanager
def _renamed(deck: Deck, names: dict[str, str]) -> Iterator[None]:
    """Tables under other names for a while."""
    _rename(deck, names)
    try:
        yield
    finally:
        _rename(deck, {new: old for old, new in names.items()})


def _rename(deck: Deck, names: dict[str, str]) -> None:
    with deck.store.write() as session:
        for old, new in names.items():
            session.connection().exec_driver_sql(f"ALTER TABLE {old} RENAME TO {new}")


def test_when_every_engine_is_silent_the_numbers_are_called_old(visit):
    with visit.deck.store.write() as session:
        heard = session.get_one(m.Engine, LIVE).last_seen_at
        session.get_one(m.Engine, LIVE).last_seen_at = heard - dt.timedelta(minutes=20)
    visit.enter("viewer", "memory")
    visit.see(f"{LIVE} stale, 2")  # some 20 minutes, more on a slow machine
    visit.see("Pick an engine")
    visit.shoot("memory_stale")
    visit.open("Fleet")
    visit.see("2 stale")
    visit.shoot("fleet_stale")


def test_before_the_first_engine_every_page_says_what_will_appear(browser, tmp_path):
    deck = Deck(tmp_path / "empty", rows=False)
    visit = Visit(browser, deck)
    try:
        visit.enter("admin")
        visit.see("No engine has registered yet")
        visit.see("no engine has registered")
        visit.shoot("overview_empty")
        expected = (
            "No prefixes yet",
            "Nothing is damaged",
            "No engine",
            "No engine",
            "No revision yet",
            "No policies yet",
            "No alert",
            "No commands yet",
        )
        for name, text in zip(PAGES, expected, strict=True):
            visit.open(name)
            visit.see(text)
            visit.shoot(f"{name.split()[0].lower()}_empty")
    finally:
        visit.leave()
        deck.close()
