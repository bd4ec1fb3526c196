"""Every page as people meet it: at three widths, dark and light, as viewer and operator, and by axe-core's rules.

No console error and no request off the machine is let pass.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser_support import chromium
from dashboard_stage import Deck, Visit
from playwright.sync_api import Browser, expect

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore::DeprecationWarning")]
PAGES = (
    "overview", "prefixes", "validations", "memory", "fleet", "caps", "policies", "alerts", "audit",
)  # fmt: skip
ACTS = ("Evict", "Warm", "Pin", "Run now", "Dry run", "Tune", "Acknowledge", "Silence", "Review the change",
        "Roll back", "Act on a selection", "Compact", "Scrub")  # fmt: skip
SERIOUS = ("serious", "critical")
STREAMLITS_OWN: dict[str, str] = {}
"""axe's rules that are broken by Streamlit's own markup, each with the reason it cannot be mended from here."""
WIDER = """() => [document.documentElement, document.querySelector("[data-testid=stMain]")].map(
  (part) => part.scrollWidth - part.clientWidth)"""


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
    visit.settle()


@pytest.mark.parametrize(("role", "scheme"), [("operator", "light"), ("viewer", "dark")])
def test_every_page_is_sound_at_three_widths_and_by_axe(browser, deck, role, scheme):
    visit = Visit(browser, deck, scheme=scheme)
    found: list[str] = []
    try:
        visit.enter(role)
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
                visit.page.set_viewport_size({"width": width, "height": 900})
                visit.shoot(f"{path}_{role}_{scheme}_{width}")
                wide = max(visit.page.evaluate(WIDER))
                if wide > 1:
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
