"""The dashboard: first useful paint, refresh, and what a session costs, over a large store, with many who look.

    python -m benchmarks.dashboard [--engines 100] [--versions 5000000] [--minutes 240] [--sessions 1,5,20]

One dashboard process and one control plane on a SQLite store of their own. Of the sessions that look at once, one is a
tab of a headless Chromium, which is measured; the others are light sessions (`benchmarks.dashboard_session`): to the
server what a tab is, with nothing drawn, for 20 browsers on two cores would measure each other. All are signed in by
one-time links and look at the Overview, whose parts refresh by themselves every 5 s.

First useful paint: from the navigation, in a browser that has none of our files, to the list of what needs attention;
then to the numbers and the first chart, and the same once it has the files. Refresh by a click: a full run of the page
in the tab while everybody else refreshes. A part's refresh: from its request to the server's word that it ran. The
reads are measured without the dashboard's caches.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, Page, WebSocket, sync_playwright
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from benchmarks.dashboard_serving import Lights, Served, cpu_seconds, rss_bytes, served
from benchmarks.deck.databases import sqlite_url
from benchmarks.deck.seed import seed, seed_losses
from benchmarks.harness import machine, print_table, told
from controlplane.auth import Role, issue_token
from controlplane.store import Store
from dashboard import control, data
from dashboard.data import fleet

PAINT_TARGET_S, REFRESH_TARGET_MS, READ_TARGET_MS = 2.0, 500, 500
PATIENCE_MS = 180_000
WHOLE = ForwardMsg.FINISHED_SUCCESSFULLY
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")


@dataclass(frozen=True, slots=True, kw_only=True)
class Paints:
    """One visit, in seconds since its navigation: what needs attention; all there is; all, with the files at hand."""

    useful_s: float
    whole_s: float
    again_s: float


def reads(minutes: int) -> dict[str, Callable[[], object]]:
    """What a page reads, by name, each with the arguments of a fleet's page and without the cache."""
    return {
        "engines": lambda: data.engines.__wrapped__("viewer"),
        "findings (every 15 s)": lambda: fleet.all_findings.__wrapped__("viewer", None),
        "overview": lambda: data.overview.__wrapped__("viewer", None, None, minutes),
        "charts": lambda: data.charts.__wrapped__("viewer", None, None, minutes),
        "why not a hit": lambda: data.why_miss.__wrapped__("viewer", None, None, minutes),
        "validations": lambda: data.validations.__wrapped__("viewer", None, minutes),
        "families (every 30 s)": lambda: data.prefix_families.__wrapped__("viewer", None, None),
        "prefixes by bytes": lambda: data.prefixes.__wrapped__("viewer", None, None, (), "", "bytes", 200),
    }


def measure_reads(rounds: int, longest: int) -> list[list[object]]:
    """Rows of the table: the median and the worst of each read, over 15 minutes and over all that there is."""
    lines: list[list[object]] = []
    for minutes in sorted({15, min(longest, 24 * 60)}):
        for name, read in reads(minutes).items():
            took = []
            for _ in range(rounds):
                began = time.perf_counter()
                read()
                took.append((time.perf_counter() - began) * 1000)
            lines.append([f"read {name}, {minutes} min, ms", f"< {READ_TARGET_MS}", _of(took)])
    return lines


def _of(values: list[float]) -> str:
    return f"{statistics.median(values):,.0f} / {max(values):,.0f}"


class Tab:
    """The tab that is measured, with what its websocket says of runs: all in milliseconds."""

    def __init__(self, browser: Browser, address: str) -> None:
        self._address = address
        self.page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.ends: list[float] = []
        self.parts_ms: list[float] = []
        self._asked: dict[str, float] = {}
        self.page.on("websocket", self._listen)

    def visit(self, link_token: str) -> Paints:
        """Open the page by a link, and once more by its address."""
        began = time.perf_counter()
        self.page.goto(f"{self._address}/?token={link_token}")
        self.page.get_by_text("Needs attention").first.wait_for()
        useful_s = time.perf_counter() - began
        _wait_for_all(self.page)
        whole_s = time.perf_counter() - began
        began = time.perf_counter()
        self.page.goto(self._address)
        _wait_for_all(self.page)
        return Paints(useful_s=useful_s, whole_s=whole_s, again_s=time.perf_counter() - began)

    def refresh_ms(self, button: str) -> float:
        """From a click to the end of the whole run it makes; parts that refresh alone do not count."""
        before, began = len(self.ends), time.perf_counter()
        self.page.get_by_role("button", name=button).first.click()
        while len(self.ends) == before:
            self.page.wait_for_timeout(5)
            if time.perf_counter() - began > PATIENCE_MS / 1000:
                raise SystemExit(f"no run ended after a click on {button}")
        return (self.ends[before] - began) * 1000

    def _listen(self, socket: WebSocket) -> None:
        socket.on("framesent", self._sent)
        socket.on("framereceived", self._received)

    def _sent(self, frame: str | bytes) -> None:
        fragment_id = BackMsg.FromString(frame).rerun_script.fragment_id if isinstance(frame, bytes) else ""
        if fragment_id:
            self._asked.setdefault(fragment_id, time.perf_counter())

    def _received(self, frame: str | bytes) -> None:
        message = ForwardMsg.FromString(frame) if isinstance(frame, bytes) else ForwardMsg()
        if message.WhichOneof("type") != "script_finished":
            return
        now, ran = time.perf_counter(), message.metadata.run.fragment_ids
        if not ran and message.script_finished == WHOLE:
            self.ends.append(now)
            self._asked.clear()
        self.parts_ms += [(now - self._asked.pop(one)) * 1000 for one in ran if one in self._asked]


def measure_sessions(
    browser: Browser, on: Served, links: Iterator[str], count: int, rounds: int, seconds: float
) -> list[list[object]]:
    """Rows of the table for so many sessions at once; they are closed again."""
    before = rss_bytes(on.pages_pid)
    lights = Lights(on.address, [next(links) for _ in range(count - 1)]) if count > 1 else None
    tab = Tab(browser, on.address)
    paints = [tab.visit(next(links))]
    tab.page.wait_for_timeout(6_000)  # everybody refreshes once
    held = rss_bytes(on.pages_pid)
    tab.parts_ms.clear()
    if lights:
        lights.forget()
    used, began = (cpu_seconds(on.pages_pid), cpu_seconds(on.api_pid)), time.perf_counter()
    tab.page.wait_for_timeout(seconds * 1000)
    took_s = time.perf_counter() - began
    pages_cpu, api_cpu = cpu_seconds(on.pages_pid) - used[0], cpu_seconds(on.api_pid) - used[1]
    parts_ms = list(tab.parts_ms)
    clicks = [tab.refresh_ms("Resume" if number % 2 else "Pause") for number in range(2 * rounds)]
    tab.page.context.close()
    for _ in range(rounds - 1):
        tab = Tab(browser, on.address)
        paints.append(tab.visit(next(links)))
        tab.page.context.close()
    others = [part * 1000 for timed in (lights.end() if lights else []) for part in timed.parts_s]
    who = f"{count} sessions (1 browser + {count - 1} light)"
    return [
        [f"{who}: browser, first useful paint, s", f"< {PAINT_TARGET_S:g}", _seconds(p.useful_s for p in paints)],
        [f"{who}: browser, numbers and first chart, new browser, s", "-", _seconds(p.whole_s for p in paints)],
        [f"{who}: browser, the same, it has the files, s", "-", _seconds(p.again_s for p in paints)],
        [f"{who}: browser, refresh by a click, ms", f"< {REFRESH_TARGET_MS}", _of(clicks)],
        [f"{who}: browser, a part's refresh, ms", f"< {REFRESH_TARGET_MS}", _tail(parts_ms)],
        [f"{who}: light, a part's refresh, ms", f"< {REFRESH_TARGET_MS}", _tail(others)],
        [f"{who}: dashboard, memory, and what each session added, MiB", "-", _memory(before, held, count)],
        [f"{who}: dashboard, share of a core", "-", f"{pages_cpu / took_s:.0%}"],
        [f"{who}: control plane, share of a core", "-", f"{api_cpu / took_s:.0%}"],
    ]


def _wait_for_all(page: Page) -> None:
    page.get_by_text("Needs attention").first.wait_for()
    page.get_by_test_id("stMetricValue").first.wait_for()
    page.locator(".js-plotly-plot .main-svg").first.wait_for()


def _seconds(values: Iterable[float]) -> str:
    known = list(values)
    return f"{statistics.median(known):.2f} / {max(known):.2f}"


def _memory(before: int, held: int, count: int) -> str:
    """What earlier sessions left free is used again: less than nothing may be added."""
    return f"{held / 2**20:,.0f}, {(held - before) / count / 2**20:+.1f}"


def _tail(values_ms: Sequence[float]) -> str:
    """The median and the 95th of a hundred; a dash where there is none."""
    if not values_ms:
        return "-"
    late = sorted(values_ms)[min(len(values_ms) - 1, int(len(values_ms) * 0.95))]
    return f"{statistics.median(values_ms):,.0f} / p95 {late:,.0f} of {len(values_ms):,}"


def _links(store: Store, count: int) -> Iterator[str]:
    with store.write() as session:
        hour = dt.timedelta(hours=1)
        return iter([issue_token(session, "bench", Role.OPERATOR, ttl=hour, one_time=True) for _ in range(count)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", type=int, default=100)
    parser.add_argument("--versions", type=int, default=5_000_000, help="rows of history; a prefix has 25")
    parser.add_argument("--minutes", type=int, default=240, help="of rollups; a day (1440) of 100 engines is 8M rows")
    parser.add_argument(
        "--sessions", default="1,5,20", help="how many look at once, comma-separated; empty: reads alone"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15, help="how long everybody just looks, each time")
    parser.add_argument("--folder", type=Path, help="where the store lies; 5 GB at the default size")
    a = parser.parse_args()
    chromium = shutil.which("chromium")
    if a.sessions and not chromium:
        raise SystemExit("Chromium is not installed: install the package 'chromium', or give --sessions ''")
    with sqlite_url(a.folder) as url:
        folder = Path(url.removeprefix("sqlite:///")).parent
        environment = {"KVDECK_DATABASE_URL": url, "KVDECK_DATA_DIR": str(folder)}
        environment |= {"KVDECK_ENGINE_STALE_SECONDS": "86400", "KVDECK_ENGINE_UNREACHABLE_SECONDS": "90000"}
        os.environ.update(environment)
        control.settings.cache_clear()
        store, began = Store(url), time.monotonic()
        seed(store, a.versions, a.engines, a.minutes)
        seed_losses(store, a.engines, a.minutes)
        size = Path(url.removeprefix("sqlite:///")).stat().st_size / 2**30
        seeded = f"seeded in {time.monotonic() - began:.0f} s, {size:.2f} GiB"
        print(f"{a.versions:,} versions of {a.engines} engines {seeded}", file=sys.stderr, flush=True)
        lines = told(measure_reads(a.rounds, a.minutes))
        counts = [int(count) for count in a.sessions.split(",") if count]
        if counts:
            links = _links(store, sum(counts) + a.rounds * len(counts))
            with served(folder, environment) as on, sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
                for count in counts:
                    lines += told(measure_sessions(browser, on, links, count, a.rounds, a.seconds))
                browser.close()
        store.dispose()
    columns = [("what", str), ("target", str), ("median / worst or p95", str)]
    title = f"dashboard, {a.engines} engines, {a.versions:,} versions, {a.minutes:,} minutes of rollups; {machine()}"
    print_table(title, columns, lines)


if __name__ == "__main__":
    main()
