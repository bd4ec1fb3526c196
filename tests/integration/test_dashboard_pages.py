"""The dashboard's pages in a real Chromium, over a real control plane: how one comes in, what they show, how they look.

A missing Chromium fails: a skipped look is no look. No console error and no request off the machine is let pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser_support import STEP_MS
from dashboard_seed_series import GONE, LIVE, prefix_id
from dashboard_stage import HEIGHT, WIDTHS, Deck, Visit
from playwright.sync_api import Locator, expect
from sqlalchemy import select, update

from controlplane.store import models as m

# uvicorn's websocket support is imported lazily and warns about itself; Streamlit is another process.
pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def deck(tmp_path_factory) -> Iterator[Deck]:
    made = Deck(tmp_path_factory.mktemp("deck"))
    yield made
    made.close()


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
    visit.shoot("runbook_dialog")
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


def test_rows_are_ticked_by_keyboard_alone_also_after_they_have_moved(visit):
    visit.enter("operator", "prefixes")
    table = visit.page.get_by_test_id("stDataFrame").first
    opened = visit.page.get_by_role("button", name="Open prefix")
    for tokens in ({}, {_last_row(visit.deck): 10**12}):  # as it was drawn, then with another row on top
        with _served(visit.deck, tokens):
            visit.page.keyboard.press("f")  # reads everything again
            top = table.locator("tr[aria-rowindex='2']")
            for start in tokens:
                expect(top).to_contain_text(start[:8])
            visit.settle()
            _into(visit, table)
            visit.page.keyboard.press("Control+Home")
            visit.page.keyboard.press("Shift+Space")
            expect(top).to_have_attribute("aria-selected", "true")
            expect(opened).to_be_visible()
            visit.settle()
            visit.page.keyboard.press("Shift+Space")
            expect(top).to_have_attribute("aria-selected", "false")
            expect(opened).to_have_count(0)
            visit.settle()


def _into(visit: Visit, table: Locator) -> None:
    """By Tab, from the box before the table."""
    visit.page.get_by_label("Rows", exact=True).focus()
    for _ in range(10):  # the boxes and buttons between them
        visit.page.keyboard.press("Tab")
        if table.locator("canvas").first.evaluate("(canvas) => canvas === document.activeElement"):
            return
    raise AssertionError("no Tab led into the table")


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
    try:
        yield
    finally:
        with deck.store.write() as session:
            for prefix_id_, count in before.items():
                session.execute(update(m.Prefix).where(m.Prefix.prefix_id == prefix_id_).values(tokens_served=count))


# -- as people meet it: at three widths, dark and light, as viewer and operator, and by axe-core's rules --------------

PATHS = (
    "overview", "prefixes", "validations", "memory", "fleet", "caps", "policies", "alerts", "audit",
)  # fmt: skip
ACTS = ("Evict", "Warm", "Pin", "Run now", "Dry run", "Tune", "Acknowledge", "Silence", "Review the change",
        "Roll back", "Act on a selection", "Compact", "Scrub")  # fmt: skip
SERIOUS = ("serious", "critical")
STREAMLITS_OWN: dict[str, str] = {}
"""axe's rules that are broken by Streamlit's own markup, each with the reason it cannot be mended from here."""
WIDER = """() => [document.documentElement, document.querySelector("[data-testid=stMain]")].map(
  (part) => part.scrollWidth - part.clientWidth)"""

STILL = """() => document.getAnimations().every(
  (each) => each.playState !== "running" || each.effect.getComputedTiming().iterations === Infinity)"""


def _go(visit: Visit, path: str) -> None:
    visit.page.get_by_test_id("stSidebarNav").locator(f"a[href$='/{'' if path == 'overview' else path}']").click()
    visit.settle()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("role", "scheme"), [("operator", "light"), ("viewer", "dark")])
def test_every_page_is_sound_at_three_widths_and_by_axe(browser, deck, role, scheme):
    visit = Visit(browser, deck, scheme=scheme)
    found: list[str] = []
    try:
        visit.enter(role)
        visit.page.keyboard.press("p")  # what is being drawn again is faded, and then its contrast is no verdict
        visit.see("refresh is paused")
        for path in PATHS:
            visit.page.set_viewport_size({"width": 1280, "height": 900})
            _go(visit, path)
            found += _broken_rules(visit, path)
            if role == "viewer":
                for label in ACTS:
                    expect(visit.page.get_by_role("button", name=label)).to_have_count(0)
            visit.shoot(f"{path}_{role}")
            for width in WIDTHS:
                visit.page.set_viewport_size({"width": width, "height": HEIGHT})
                visit.settle()
                wide = _too_wide_px(visit)
                if wide > 1:
                    found.append(f"{path} at {width}: {wide} px wider than the window")
    finally:
        visit.leave()
    assert not found, "\n".join(found)


def _too_wide_px(visit: Visit) -> int:
    """How much wider than its window the page is, once the menu at its side has slid to its place."""
    visit.page.wait_for_function(STILL, timeout=STEP_MS)
    return max(visit.page.evaluate(WIDER))


def _broken_rules(visit: Visit, path: str) -> list[str]:
    said = Axe().run(visit.page)
    return [
        f"{path}: {one['id']} ({one['impact']}): {one['help']}: {one['nodes'][0]['html'][:200]} "
        f"{one['nodes'][0].get('failureSummary', '')[:200]}"
        for one in said.response["violations"]
        if one["impact"] in SERIOUS and one["id"] not in STREAMLITS_OWN
    ]
