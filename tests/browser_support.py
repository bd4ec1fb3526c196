"""A Chromium for tests, and what people do in it. A missing one fails: a skipped look is no look."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Locator, Page, TimeoutError, expect, sync_playwright

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
ROW_PX, MARK_PX = 35, 16  # a row's height; the middle of the box to tick
MOST_CLICKS = 5
STEP_MS = 5_000


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser, headless, that asks nobody but our own servers."""
    path = shutil.which("chromium")
    assert path, "chromium is not installed: the dashboard cannot be looked at"
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield opened
        opened.close()


def pick_row(table: Locator, position: int) -> None:
    """Ticks a row of a table, counted from the top, and makes sure that it is ticked.

    The table is drawn on a canvas, so a row is met where it stands; its rows are elements for screen readers, which
    tell whether it is there and ticked. A click while the table is drawn again is lost, and then made again. (That
    Shift+Space does it too, after rows have moved as well, is a test of its own in test_dashboard_pages.)
    """
    row = table.locator(f"tr[aria-rowindex='{position + 2}']")  # from 1, after the header
    table.scroll_into_view_if_needed()
    row.wait_for(state="attached")
    for attempt in range(MOST_CLICKS):
        box = table.locator("canvas").first.bounding_box()
        assert box is not None
        table.page.mouse.click(box["x"] + MARK_PX, box["y"] + ROW_PX * (position + 1.5))
        try:
            expect(row).to_have_attribute("aria-selected", "true", timeout=STEP_MS)
            return
        except AssertionError:
            if attempt == MOST_CLICKS - 1:
                raise


def choose(page: Page, label: str, option: str, *, settle: Callable[[], None]) -> None:
    """One of a list that opens. It shuts when the page scrolls or is drawn again, and is then opened again."""
    box, wanted = page.get_by_label(label, exact=True), page.get_by_role("option", name=option)
    box.scroll_into_view_if_needed()
    for attempt in range(MOST_CLICKS):
        settle()
        box.click()
        try:
            wanted.click(timeout=STEP_MS)
            break
        except TimeoutError:
            if attempt == MOST_CLICKS - 1:
                raise
    settle()
