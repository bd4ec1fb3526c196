"""Takes the README's pictures: a deck runs for a while, then every page is shot in light and dark.

    python docs/screenshots.py [--minutes 6] [--width 1440] [--into docs/images]

`make screenshots` runs it. The deck is a real one of its own (`kvdeck up` in a folder that is thrown away): an engine
with a live workload, some changes of caps and an evict, so that the charts have marks.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
# As they stand in the navigation: dashboard/app.py.
PAGES = ("overview", "prefixes", "validations", "memory", "fleet", "caps", "policies", "alerts", "audit")
DEEDS = (
    ("cap", "--prefixes", "400", "--reason", "room for the next model"),
    ("cap", "--prefixes", "600", "--reason", "the curve is still steep here"),
)
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
PATIENCE_MS = 120_000
# What there is of a page, or nothing while a run goes on or something is stale.
LOOK = """
() => {
  const app = document.querySelector('[data-testid="stApp"]'), main = document.querySelector('[data-testid="stMain"]');
  const runs = app.getAttribute('data-test-script-state') !== 'notRunning';
  const busy = runs || document.querySelector('[data-stale="true"]');
  return busy ? '' : `${main.scrollHeight} ${document.querySelectorAll('.js-plotly-plot .main-svg').length}`;
}
"""
TALLEST = 2400


@contextmanager
def deck(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """`kvdeck up` on free ports -> its one-time link, and the environment of its own commands."""
    environment = os.environ | {"KVDECK_DATA_DIR": str(folder), "PYTHONPATH": str(ROOT)}
    environment |= {name: str(_free_port()) for name in ("KVDECK_API_PORT", "KVDECK_DASHBOARD_PORT")}
    process = subprocess.Popen(
        [sys.executable, "-m", "controlplane.cli.main", "up"],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        yield _link_of(process), environment
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)


def _link_of(process: subprocess.Popen[str]) -> str:
    said = []
    for line in process.stdout or ():
        said.append(line)
        if found := re.search(r"http://\S+\?token=\S+", line):
            return found.group(0)
    raise SystemExit(f"the deck did not start: {''.join(said)[-800:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def live_a_little(environment: dict[str, str], minutes: float) -> None:
    """The workload runs; what a person would do is done between, so that there are marks."""
    pause = minutes * 60 / (len(DEEDS) + 1)
    for deed in DEEDS:
        time.sleep(pause)
        command = [sys.executable, "-m", "controlplane.cli.main", *deed]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.stderr.write(f"kvdeck {deed[0]}: {done.stderr.strip() or done.stdout.strip()}\n")
    time.sleep(pause)


def shoot(browser: Browser, link: str, into: Path, width: int) -> None:
    """Every page in both schemes. The link works once: the tab that used it is kept for all shots."""
    page = browser.new_context(viewport={"width": width, "height": 900}).new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(link)
    page.get_by_text("Needs attention").first.wait_for()
    page.get_by_text("15m", exact=True).first.click()
    settle(page, looks=1)
    page.keyboard.press("p")  # else a busy machine draws again for ever, and nothing is ever still
    page.get_by_text("refresh is paused").first.wait_for()
    navigation = page.get_by_test_id("stSidebarNavLink")
    for name in PAGES:
        navigation.nth(PAGES.index(name)).click()
        page.wait_for_timeout(2000)
        settle(page)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.wait_for_timeout(1500)
            path = into / (f"{name}.png" if scheme == "light" else f"{name}-dark.png")
            _whole(page, path, width)
            sys.stdout.write(f"{path}\n")


def settle(page: Page, looks: int = 2) -> None:
    """Until no run goes on, nothing is a leftover of the page before, and so many looks a second apart are alike."""
    deadline, before, alike = time.monotonic() + PATIENCE_MS / 1000, "", 0
    while time.monotonic() < deadline:
        now = str(page.evaluate(LOOK))
        alike = alike + 1 if now and now == before else int(bool(now))
        if alike >= looks:
            return
        before = now
        page.wait_for_timeout(1000)
    raise SystemExit(f"{page.url} was not drawn within {PATIENCE_MS / 1000:.0f} s")


def _whole(page: Page, path: Path, width: int) -> None:
    """Streamlit scrolls inside, so the window grows to the page's height."""
    height = int(page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight"))
    page.set_viewport_size({"width": width, "height": min(max(900, height + 20), TALLEST)})
    page.wait_for_timeout(1500)
    page.screenshot(path=str(path), timeout=PATIENCE_MS)
    page.set_viewport_size({"width": width, "height": 900})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=6.0, help="how long the deck runs before the first picture")
    parser.add_argument("--width", type=int, default=1440)
    parser.add_argument("--into", type=Path, default=ROOT / "docs" / "images")
    a = parser.parse_args()
    chromium = shutil.which("chromium")
    if not chromium:
        raise SystemExit("Chromium is not installed: install the package 'chromium' and run this again")
    a.into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kvdeck-screenshots-") as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        with deck(Path(folder)) as (link, environment):
            live_a_little(environment, a.minutes)
            shoot(browser, link, a.into, a.width)
        browser.close()


if __name__ == "__main__":
    main()
