"""Every page as people meet it: at three widths, dark and light, as viewer and operator, and by axe-core's rules.

Screenshots go to tests/screenshots/ (git-ignored). No console error and no request off the machine is let pass.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser_support import chromium
from playwright.sync_api import Browser, expect
from test_dashboard_stage import SHOTS, Deck, Visit

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore::DeprecationWarning")]
PAGES = (
    "overview", "prefixes", "validations", "memory", "fleet", "caps", "policies", "alerts", "audit",
)  # fmt: skip
ACTS = ("Evict", "Warm", "Pin", "Run now", "Dry run", "Tune", "Acknowledge", "Silence", "Review the change",
        "Roll back", "Act on a selection", "Compact", "Scrub")  # fmt: skip
SERIOUS = ("serious", "critical")
STREAMLITS_OWN: dict[str, str] = {}
"""axe's rules that are broken by Streamlit's own markup, each with the reason it cannot be mended from here."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def deck(tmp_path_factory) -> Iterator[Deck]:
    made = Deck(tmp_path_factory.mktemp("deck"))
    yield made
    made.close()


def _go(visit: Visit, path: str) -> None:
    visit.page.get_by_test_id("stSidebarNav").locator(f"a[href$='/{'' if path == 'overview' else path}']").click()
    visit.page.wait_for_timeout(700)
    visit.settle()
    expect(visit.page.locator("[data-stale=true]")).to_have_count(0)


@pytest.mark.parametrize(("role", "scheme"), [("operator", "light"), ("viewer", "dark")])
def test_every_page_is_sound_at_three_widths_and_by_axe(browser, deck, role, scheme):
    visit = Visit(browser, deck, scheme=scheme)
    found: list[str] = []
    try:
        visit.sign_in(role)
        visit.settle()
        visit.page.keyboard.press("p")  # what is being drawn again is faded, and then its contrast is no verdict
        visit.see("refresh is paused")
        for path in PAGES:
            visit.page.set_viewport_size({"width": 1280, "height": 900})
            _go(visit, path)
            found += _broken_rules(visit, path)
            if role == "viewer":
                for label in ACTS:
                    expect(visit.page.get_by_role("button", name=label)).to_have_count(0)
            for width in (390, 1280, 1920):
                _shoot(visit, f"{path}_{role}_{scheme}_{width}", width)
                wide = visit.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
                if wide > 0:
                    found.append(f"{path} at {width}: {wide} px wider than the window")
    finally:
        visit.leave()
    assert not found, "\n".join(found)


def _broken_rules(visit: Visit, path: str) -> list[str]:
    said = Axe().run(visit.page)
    return [
        f"{path}: {one['id']} ({one['impact']}): {one['help']}: {one['nodes'][0]['html'][:200]} "
        f"{one['nodes'][0].get('failureSummary', '')[:200]}"
        for one in said.response["violations"]
        if one["impact"] in SERIOUS and one["id"] not in STREAMLITS_OWN
    ]


def _shoot(visit: Visit, name: str, width: int) -> None:
    visit.page.set_viewport_size({"width": width, "height": 900})
    visit.page.wait_for_timeout(500)
    height = visit.page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
    visit.page.set_viewport_size({"width": width, "height": min(max(900, int(height) + 20), 3200)})
    visit.page.wait_for_timeout(400)
    SHOTS.mkdir(parents=True, exist_ok=True)
    visit.page.screenshot(path=str(SHOTS / f"{name}.png"))
