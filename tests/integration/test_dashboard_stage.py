"""The stage the dashboard's browser tests play on: a control plane, a dashboard, and a tab that takes notes."""

from __future__ import annotations

import datetime as dt
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import uvicorn
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, expect
from test_dashboard_seed import seed

from controlplane.api.app import create_app
from controlplane.settings import Settings
from controlplane.store.session import Store

ROOT = Path(__file__).resolve().parents[2]
SHOTS = ROOT / "tests" / "screenshots"
PATIENCE_MS = 30_000
expect.set_options(timeout=PATIENCE_MS)  # how long a busy machine may take; no test is about that


class Deck:
    """A control plane in a thread and a dashboard in a process, over one SQLite file."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None, **how: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.api_port, self.port = _free_port(), _free_port()
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
        self.deck = deck
        self.context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme=scheme)
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.errors: list[str] = []
        self.strangers: set[str] = set()
        self.page.on("console", self._heard)
        self.page.on("request", lambda request: self._requested(request.url))

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def _requested(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.hostname != "127.0.0.1":
            self.strangers.add(url)

    def sign_in(self, role: str, query: str = "") -> None:
        self.page.goto(f"{self.deck.address}/{query}")
        self.page.get_by_label("Token").fill(self.deck.tokens[role])
        self.page.get_by_role("button", name="Sign in").click()
        self.see("Needs attention")

    def open(self, name: str) -> None:
        self.page.get_by_test_id("stSidebarNav").get_by_text(name, exact=True).click()
        self.page.wait_for_timeout(1500)
        self.settle()

    def settle(self) -> None:
        """Until the script has run and every chart is drawn."""
        expect(self.page.get_by_test_id("stStatusWidget")).to_have_count(0, timeout=PATIENCE_MS)
        expect(self.page.get_by_test_id("stException")).to_have_count(0)

    def see(self, text: str, *, exact: bool = False) -> Locator:
        found = self.page.get_by_text(text, exact=exact).first
        expect(found).to_be_visible(timeout=PATIENCE_MS)
        return found

    def see_chart(self, title: str) -> None:
        self.see(title)
        self.page.locator(".js-plotly-plot .main-svg").first.wait_for()

    def pick_row(self, position: int, of: Locator | None = None) -> None:
        """Tick a row of a table, the first if none is named: it is drawn on a canvas, so by place."""
        canvas = of or self.page.get_by_test_id("stDataFrame").first
        canvas.wait_for()
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        assert box is not None
        self.page.mouse.click(box["x"] + 16, box["y"] + 35 + 35 * position + 17)
        self.page.wait_for_timeout(1000)

    def shoot(self, name: str) -> None:
        """A screenshot of the whole page: Streamlit scrolls inside, so the window grows to its height."""
        self.settle()
        height = self.page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
        self.page.set_viewport_size({"width": 1440, "height": min(max(900, int(height) + 20), 3200)})
        self.page.wait_for_timeout(1200)
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=str(SHOTS / f"{name}.png"))
        self.page.set_viewport_size({"width": 1440, "height": 900})

    def leave(self) -> None:
        self.context.close()
        assert self.errors == []
        assert self.strangers == set()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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


def test_a_free_port_is_free():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", _free_port()))
