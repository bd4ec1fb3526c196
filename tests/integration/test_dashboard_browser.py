"""The dashboard in a real Chromium, over a real control plane: every page, in every state a person can meet.

A missing Chromium fails: a skipped look is no look.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from browser_support import chromium
from dashboard_seed_series import GONE, LIVE, prefix_id
from dashboard_stage import PATIENCE_MS, Deck, Visit
from playwright.sync_api import Browser, expect
from sqlalchemy import select, update

from controlplane.store import models as m

PAGES = ("Prefixes", "Validations", "Memory", "Fleet", "Caps and mode", "Policies", "Alerts", "Audit")

# uvicorn's websocket support is imported lazily and warns about itself; Streamlit is another process.
pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def deck(tmp_path_factory) -> Iterator[Deck]:
    made = Deck(tmp_path_factory.mktemp("deck"))
    yield made
    made.close()


@pytest.fixture
def visit(browser, deck) -> Iterator[Visit]:
    made = Visit(browser, deck)
    yield made
    made.leave()


def test_a_wrong_token_is_refused_in_words(visit):
    visit.page.goto(visit.deck.address)
    visit.page.get_by_label("Token").fill("kvd_nonsense")
    visit.page.get_by_role("button", name="Sign in").click()
    visit.see("Not signed in")
    visit.see("This token is not known here.")
    visit.shoot("sign_in_refused")


def test_a_one_time_link_signs_in_once_and_leaves_the_address(browser, deck):
    first = Visit(browser, deck)
    first.page.goto(f"{deck.address}/?token={deck.tokens['link']}")
    first.see("Signed in as local operator (admin)")
    assert "token=" not in first.page.url
    first.leave()
    second = Visit(browser, deck)
    second.page.goto(f"{deck.address}/?token={deck.tokens['link']}")
    second.see("This one-time link was already used.")
    second.leave()


def test_a_reload_keeps_who_is_signed_in_and_signing_out_forgets_them(visit):
    kept = "sessionStorage.getItem('kvdeck.session')"
    visit.sign_in("operator")
    visit.page.wait_for_function(f"{kept} !== null")
    visit.page.reload()
    visit.see("Signed in as test operator (operator)")
    visit.settle()
    visit.page.get_by_role("button", name="Sign out").click()
    visit.see("Sign in with a token.")
    visit.page.wait_for_function(f"{kept} === null")
    visit.page.reload()
    visit.see("Sign in with a token.")
    visit.settle()
    expect(visit.page.get_by_label("Token")).to_be_visible()


def test_the_overview_says_first_what_needs_attention(visit):
    visit.enter("operator")
    visit.see("3 engines, among them gpu-a: 3 of 59 prefixes are quarantined")
    visit.see("The breaker of tier disk is open")
    visit.see(f"engine silent on {GONE}")
    visit.see("severe")
    visit.page.get_by_role("button", name="Runbook").first.click()
    visit.see("docs/howto/runbook.md#")
    visit.page.keyboard.press("Escape")
    for title in (
        "Hit rate by object kind",
        "Hit rate by serving state",
        "lcp against usable",
        "Why tokens were no hit",
        "Recovery failure rate",
        "Tier I/O latency, p50 and p99",
        "Fragmentation by page class",
        "Mode",
    ):
        visit.see_chart(title)
    expect(visit.page.locator(".js-plotly-plot .main-svg").first).to_be_visible()
    visit.see("degrades above 20%")
    visit.see("evicted cap")
    visit.see("control plane up")
    visit.see("data as of")
    visit.shoot("overview")


def test_what_needs_attention_leads_to_the_page_where_something_can_be_done(visit):
    visit.enter("operator")
    visit.see("The breaker of tier disk is open")
    visit.page.locator(".st-key-attention").get_by_role("link", name="Memory").first.click()
    visit.page.wait_for_url("**/memory**engine=gpu-b**")
    visit.see_chart("Slabs by page class")


def test_every_page_shows_what_is_there(visit):
    visit.enter("operator", "prefixes")
    for name, texts in {
        "Prefixes": ("60 of 60 prefixes", "Prefix families by bytes held"),
        "Validations": ("From lcp to usable, by cause", "How the five validations ended", "Last failed validations"),
        "Memory": ("Bytes in use by tier", "Pick an engine"),
        "Fleet": ("3 engines", "Hit rate by engine", "1 open gap"),
        "Caps and mode": ("Refused: cap_gpu_bytes", "Review the change", "Revisions"),
        "Policies": ("degrade", "Last decisions", "Dry run"),
        "Alerts": ("damaged prefixes", "Acknowledge"),
        "Audit": ("Commands",),
    }.items():
        visit.open(name)
        for text in texts:
            visit.see(text)
        visit.shoot(name.split()[0].lower())


def test_a_link_to_a_page_leads_there_over_the_sign_in(visit):
    visit.page.goto(f"{visit.deck.address}/fleet?group=chat")
    visit.page.get_by_label("Token").fill(visit.deck.tokens["viewer"])
    visit.page.get_by_role("button", name="Sign in").click()
    visit.see("2 engines")
    assert "group=chat" in visit.page.url


def test_a_group_of_engines_is_a_filter_that_stays(visit):
    visit.enter("viewer", "fleet", "?group=batch")
    visit.see("1 engine")
    assert "group=batch" in visit.page.url
    visit.open("Memory")
    visit.see("unreachable: these are its last known numbers.")


def test_filters_are_in_the_address_and_stay_from_page_to_page(visit):
    visit.enter("viewer", "prefixes", f"?engine={LIVE}&range=6h&ns=tenant-a")
    for name in ("Prefixes", "Memory"):
        visit.open(name)
        for part in (f"engine={LIVE}", "range=6h", "ns=tenant-a"):
            assert part in visit.page.url
    visit.page.get_by_text("24h", exact=True).click()
    visit.page.wait_for_url("**range=24h**")


def test_a_viewer_opens_a_prefix_but_cannot_act_on_it(visit):
    visit.enter("viewer", "prefixes")
    visit.pick_row(0)
    visit.see("Open prefix")
    for label in ("Evict", "Warm", "Pin"):
        expect(visit.page.get_by_role("button", name=label)).to_have_count(0)


def test_one_prefix_shows_its_life_and_what_went_wrong(visit):
    visit.enter("operator", "prefixes")
    visit.page.get_by_placeholder("start of an id, part of a namespace, label=value").fill(prefix_id(7)[:10])
    visit.page.keyboard.press("Enter")
    visit.see("1 of 1 prefix")
    visit.settle()
    visit.pick_row(0)
    visit.page.get_by_role("button", name="Open prefix").click()
    visit.see("Objects by kind and tier")
    visit.see_chart("Versions")
    visit.see("✖ QUARANTINED")
    visit.see("Failed validations")
    visit.shoot("prefix")


def test_a_tick_stays_with_its_prefix_while_rows_move_and_goes_with_another_order(visit):
    visit.enter("operator", "prefixes")
    visit.pick_row(1)
    opened = visit.page.get_by_role("button", name="Open prefix")
    expect(opened).to_be_visible()
    ticked = opened.inner_text().split()[-1]
    with _served(visit.deck, {_last_row(visit.deck): 10**12, ticked.strip("…"): 12_345}):
        visit.page.get_by_role("button", name=re.compile("Refresh")).click()
        row = visit.page.get_by_test_id("stDataFrame").first.locator("tr[aria-rowindex='3']")
        expect(row).to_contain_text("12345")  # new values, and still the second row
        expect(opened).to_contain_text(ticked)
        visit.settle()
        visit.choose("Order by", "last changed")
        visit.see("by last changed")
        visit.settle()
        expect(opened).to_have_count(0)


def _last_row(deck: Deck) -> str:
    with deck.store.read() as session:
        return session.scalars(select(m.Prefix.prefix_id).order_by(m.Prefix.tokens_served)).first()


@contextmanager
def _served(deck: Deck, tokens: dict[str, int]) -> Iterator[None]:
    """Other numbers of tokens served, by the start of a prefix's id."""
    with deck.store.write() as session:
        found = [
            session.scalars(select(m.Prefix).where(m.Prefix.prefix_id.startswith(start))).one() for start in tokens
        ]
        before = {prefix.prefix_id: prefix.tokens_served for prefix in found}
        for prefix, count in zip(found, tokens.values(), strict=True):
            prefix.tokens_served = count
    yield
    with deck.store.write() as session:
        for prefix_id_, count in before.items():
            session.execute(update(m.Prefix).where(m.Prefix.prefix_id == prefix_id_).values(tokens_served=count))


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


def test_a_rollback_shows_its_difference(visit):
    visit.enter("operator", "caps")
    visit.pick_row(1, of=visit.page.get_by_test_id("stDataFrame").last)
    visit.page.get_by_role("button", name="Roll back to revision").click()
    expect(visit.page.get_by_role("dialog").get_by_text("as a new revision")).to_be_visible()
    visit.shoot("caps_rollback")


def test_a_policy_says_why_and_is_paused_and_tuned_with_a_reason(visit):
    visit.enter("operator", "policies")
    visit.page.get_by_role("button", name="Why?").first.click()
    dialog = visit.page.get_by_role("dialog")
    expect(dialog.get_by_text("degrade decided hold")).to_be_visible()
    visit.shoot("policy_why")
    dialog.get_by_role("button", name="Close").first.click()
    expect(dialog).to_have_count(0)
    visit.page.get_by_role("button", name="Tune").nth(1).click()
    seconds = dialog.get_by_label("Seconds", exact=True)
    seconds.fill("1800")
    seconds.press("Tab")
    dialog.get_by_label("Reason").fill("less often")
    visit.shoot("policy_tune")
    dialog.get_by_role("button", name="Change", exact=True).click()
    expect(dialog).to_have_count(0)
    visit.settle()
    visit.page.get_by_role("button", name="Pause", exact=True).last.click()
    dialog.get_by_label("Reason").fill("the disk is being replaced")
    dialog.get_by_role("button", name="Pause").click()
    expect(dialog).to_have_count(0)
    with visit.deck.store.read() as session:
        done = session.scalars(select(m.Audit.reason).where(m.Audit.actor == "test operator")).all()
        assert {"less often", "the disk is being replaced"} <= set(done)
        assert session.scalars(select(m.Policy.name).where(m.Policy.every_seconds == 1800)).all() == ["offload-idle"]
        assert session.get_one(m.Policy, "warm-top").paused


def test_an_alert_is_silenced_with_a_reason_until_an_end(visit):
    visit.enter("operator", "alerts")
    visit.page.get_by_role("button", name="Silence").first.click()
    dialog = visit.page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("known, being mended")
    dialog.get_by_role("button", name="Silence").click()
    visit.see("known, being mended")
    visit.shoot("alerts_silenced")
    visit.page.get_by_role("button", name="End it").click()
    dialog.get_by_label("Reason").fill("mended")
    dialog.get_by_role("button", name="End it").click()
    visit.see("Nothing is silenced")


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
        visit.open("Overview")
        visit.shoot("control_plane_down")
    finally:
        visit.deck.start_control_plane()
    visit.see("control plane up")


def test_with_the_database_gone_no_number_is_shown_and_it_looks_different(visit):
    visit.enter("operator")
    tables = ("alembic_version", "prefixes")
    with _renamed(visit.deck, {name: f"{name}_gone" for name in tables}):
        visit.see("control plane: database unreadable")
        visit.open("Prefixes")
        visit.see("The database has another schema")
        visit.shoot("database_unreadable")


@contextmanager
def _renamed(deck: Deck, names: dict[str, str]) -> Iterator[None]:
    """Tables under other names for a while."""
    for there_and_back in (names, {new: old for old, new in names.items()}):
        with deck.store.write() as session:
            for old, new in there_and_back.items():
                session.connection().exec_driver_sql(f"ALTER TABLE {old} RENAME TO {new}")
        if there_and_back is names:
            yield


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
