"""The stage the dashboard's browser tests play on: a control plane, a dashboard, and a tab that takes notes.

With SHOOT=1 in the environment the tests leave screenshots in tests/screenshots/ (git-ignored): of every page and state
they come by, at each width, light and dark. That takes some ten minutes more, so only who wants to look asks for it.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import uvicorn
from browser_support import choose, pick_row
from dashboard_seed import seed
from databases import free_port
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, expect

from controlplane.api.app import create_app
from controlplane.settings import Settings
from controlplane.store.session import Store

ROOT = Path(__file__).resolve().parents[2]
SHOTS = ROOT / "tests" / "screenshots"
SHOOT = bool(os.environ.get("SHOOT"))
WIDTHS, HEIGHT, SCHEMES = (390, 1280, 1920), 900, ("light", "dark")
PATIENCE_MS = 30_000
DRAWN = """() => document.querySelector("[data-testid=stApp][data-test-script-state=notRunning]") !== null
  && document.querySelector("[data-testid=stSkeleton], [data-stale=true]") === null"""
expect.set_options(timeout=PATIENCE_MS)  # how long a busy machine may take; no test is about that


class Deck:
    """A control plane in a thread and a dashboard in a process, over one SQLite file."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None, **how: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.api_port, self.port = free_port(), free_port()
        url = f"sqlite:///{folder / 'kvdeck.sqlite3'}"
        self.tokens = seed(url, dt.datetime.now(dt.UTC), **how)
        self.environment = {
            "KVDECK_DATABASE_URL": url,
            "KVDECK_DATA_DIR": str(folder),
            "KVDECK_API_PORT": str(self.api_port),
            "KVDECK_DASHBOARD_PORT": str(self.port),
            "KVDECK_ENGINE_STALE_SECONDS": "600",
            "KVDECK_ENGINE_UNREACHABLE_SECONDS": "3600",
            **(environment or {}),
        }
        self.settings = Settings.from_environment(self.environment)
        self.store = Store(url)
        self._log = (folder / "streamlit.log").open("wb")
        self.start_control_plane()
        arguments = f"--server.address 127.0.0.1 --server.port {self.port}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dashboard", *arguments.split()],
            cwd=ROOT,
            env={**os.environ, **self.environment, "KVDECK_URL": self.settings.api_url},
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        _wait_for(f"{self.address}/_stcore/health")

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start_control_plane(self) -> None:
        app = create_app(self.settings, self.store)
        self._server = uvicorn.Server(
            uvicorn.Config(app, host="127.0.0.1", port=self.api_port, log_level="warning", ws="none")
        )
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        _wait_for(f"http://127.0.0.1:{self.api_port}/healthz")

    def stop_control_plane(self) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=20)
        assert not self._thread.is_alive()

    def close(self) -> None:
        if self._thread.is_alive():
            self.stop_control_plane()
        self._process.terminate()
        self._process.wait(timeout=20)
        self._log.close()
        self.store.dispose()


class Visit:
    """One tab that remembers what must not happen: console errors and requests to other hosts."""

    def __init__(self, browser: Browser, deck: Deck, *, scheme: str = "light") -> None:
        self.deck, self.scheme = deck, scheme
        size = {"width": 1440, "height": HEIGHT}
        self.context = browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.errors: list[str] = []
        self.strangers: set[str] = set()
        self.page.on("console", self._heard)
        self.page.on("request", lambda request: self._requested(request.url))

    def _heard(self, message: ConsoleMessage) -> None:
        # Streamlit looks for its server below the path of the page first.
        if message.type == "error" and not re.search(r"/\w+/_stcore/", message.location.get("url", "")):
            self.errors.append(message.text)

    def _requested(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.hostname != "127.0.0.1":
            self.strangers.add(url)

    def sign_in(self, role: str, query: str = "") -> None:
        """By the form, as a person does; on the first page then."""
        self.page.goto(f"{self.deck.address}/{query}")
        self.page.get_by_label("Token").fill(self.deck.tokens[role])
        self.page.get_by_role("button", name="Sign in").click()
        self.see("Needs attention")

    def enter(self, role: str, path: str = "", query: str = "") -> None:
        """On a page at once, signed in, as a tab is after a reload."""
        kept = json.dumps(self.deck.tokens[role])
        self.context.add_init_script(
            f"sessionStorage.getItem('kvdeck.session') ?? sessionStorage.setItem('kvdeck.session', {kept})"
        )
        self.page.goto(f"{self.deck.address}/{path}{query}")
        self.see("Signed in as")
        self.settle()

    def open(self, name: str) -> None:
        """Another page, by the menu."""
        self.page.get_by_test_id("stSidebarNav").get_by_text(name, exact=True).click()
        heading = "Needs attention" if name == "Overview" else name
        expect(self.page.get_by_test_id("stHeading").filter(has_text=heading).first).to_be_visible()
        self.settle()

    def settle(self) -> None:
        """Until the script has run, and all it said is drawn: nothing is grey or faded."""
        self.page.wait_for_timeout(150)  # what was just clicked reaches the script
        self.page.wait_for_function(DRAWN, timeout=PATIENCE_MS)
        expect(self.page.get_by_test_id("stException")).to_have_count(0)

    def see(self, text: str, *, exact: bool = False) -> Locator:
        found = self.page.get_by_text(text, exact=exact).first
        expect(found).to_be_visible(timeout=PATIENCE_MS)
        return found

    def see_chart(self, title: str) -> None:
        self.see(title)
        self.page.locator(".js-plotly-plot .main-svg").first.wait_for()

    def choose(self, label: str, option: str) -> None:
        """One of a list that opens."""
        choose(self.page, label, option, settle=self.settle)

    def pick_row(self, position: int, of: Locator | None = None) -> None:
        """Tick a row of a table, the first table if none is named, and be sure of it."""
        self.settle()
        pick_row(of or self.page.get_by_test_id("stDataFrame").first, position)
        self.settle()

    def shoot(self, name: str) -> None:
        """If SHOOT is set, pictures of the whole page as it stands: at each width, light and dark."""
        self.settle()
        if not SHOOT:
            return
        before = self.page.viewport_size
        SHOTS.mkdir(parents=True, exist_ok=True)
        for scheme in SCHEMES:
            self.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            for width in WIDTHS:
                self._shoot(f"{name}_{width}_{scheme}", width)
        self.page.emulate_media(color_scheme=self.scheme, reduced_motion="reduce")
        self.page.set_viewport_size(before)

    def _shoot(self, name: str, width: int) -> None:
        """The page scrolls inside, so the window grows to its height."""
        self.page.set_viewport_size({"width": width, "height": HEIGHT})
        self.page.wait_for_timeout(500)  # what is drawn depends on the width, and so does how high it is
        height = self.page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
        self.page.set_viewport_size({"width": width, "height": min(max(HEIGHT, int(height) + 20), 4200)})
        self.page.wait_for_timeout(900)
        self.page.screenshot(path=str(SHOTS / f"{name}.png"))

    def leave(self) -> None:
        self.context.close()
        assert self.errors == []
        assert self.strangers == set()


def _wait_for(url: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with urlopen(url, timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"{url} did not answer within {seconds:.0f} s")
