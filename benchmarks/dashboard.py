"""The dashboard: first useful paint, refresh, and memory a session, in a real browser over a large store.

    python -m benchmarks.dashboard [--engines 100] [--versions 5000000] [--minutes 240] [--sessions 1,5]

One dashboard process and one control plane on a SQLite store of their own; every session is a tab of a headless
Chromium of its own, signed in by a one-time link. First useful paint: from the navigation, in a browser that has none
of our files, to the list of what needs attention; then to the numbers and the first chart, and the same once it has the
files. Refresh: a full run of the Overview, from the click to the end of the run, in one tab while the others refresh by
themselves. The reads are measured without the dashboard's caches. Browsers need more than the server: 20 of them want a
machine of more than two cores.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from playwright.sync_api import Browser, Page, sync_playwright
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from benchmarks.deck.databases import sqlite_url
from benchmarks.deck.seed import seed, seed_losses
from benchmarks.harness import ROOT, machine, print_table, told
from controlplane.auth import Role, issue_token
from controlplane.store import Store
from dashboard import control, data
from dashboard.session import Filters

PAINT_TARGET_S, REFRESH_TARGET_MS, READ_TARGET_MS = 2.0, 500, 500
PATIENCE_MS = 180_000
WHOLE_RUN = ForwardMsg.FINISHED_SUCCESSFULLY
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")


def reads(engine_minutes: int) -> dict[str, Callable[[], object]]:
    """What a page reads, by name, each with the arguments of a fleet's page."""
    return {
        "engines": lambda: data.engines("viewer"),
        "findings (every 15 s)": lambda: data.findings("viewer", Filters()),
        "overview": lambda: data.overview("viewer", None, None, engine_minutes),
        "charts": lambda: data.charts("viewer", None, None, engine_minutes),
        "why not a hit": lambda: data.why_miss("viewer", None, None, engine_minutes),
        "validations": lambda: data.validations("viewer", None, engine_minutes),
        "families (every 30 s)": lambda: data.prefix_families("viewer", None, None),
        "prefixes by bytes": lambda: data.prefixes("viewer", None, None, (), "", "bytes", 200),
    }


def measure_reads(rounds: int, longest: int) -> list[list[object]]:
    """Rows of the table: the median and the worst of each read, over 15 minutes and over all that there is."""
    lines: list[list[object]] = []
    for minutes in sorted({15, min(longest, 24 * 60)}):
        for name, read in reads(minutes).items():
            took = []
            for _ in range(rounds):
                data.clear()
                began = time.perf_counter()
                read()
                took.append((time.perf_counter() - began) * 1000)
            lines.append([f"read {name}, {minutes} min, ms", f"< {READ_TARGET_MS}", _of(took)])
    return lines


def _of(values: list[float]) -> str:
    return f"{statistics.median(values):,.0f} / {max(values):,.0f}"


@contextmanager
def served(url: str, folder: Path, environment: dict[str, str]) -> Iterator[tuple[str, int]]:
    """A control plane and a dashboard as processes -> the dashboard's address and its process id."""
    ports = {name: _free_port() for name in ("KVDECK_API_PORT", "KVDECK_DASHBOARD_PORT")}
    own = os.environ | environment | {name: str(port) for name, port in ports.items()} | {"PYTHONPATH": str(ROOT)}
    address = f"http://127.0.0.1:{ports['KVDECK_DASHBOARD_PORT']}"
    api = [sys.executable, "-m", "controlplane.cli.main", "serve", "--no-link"]
    pages = [
        sys.executable,
        "-m",
        "dashboard",
        "--server.address",
        "127.0.0.1",
        "--server.port",
        address.rsplit(":")[-1],
    ]
    with (folder / "served.log").open("wb") as log:
        running = [
            subprocess.Popen(command, cwd=ROOT, env=own, stdout=log, stderr=subprocess.STDOUT)
            for command in (api, pages)
        ]
        try:
            _wait(f"http://127.0.0.1:{ports['KVDECK_API_PORT']}/healthz")
            _wait(f"{address}/_stcore/health")
            yield address, running[1].pid
        finally:
            for process in running:
                process.terminate()
            for process in running:
                process.wait(timeout=60)


def measure_sessions(
    browser: Browser, address: str, pid: int, links: Iterator[str], count: int, rounds: int
) -> list[list[object]]:
    """Rows of the table for so many sessions at once; they are closed again."""
    before = _rss_bytes(pid)
    pages: list[Page] = []
    ends: list[float] = []
    paints: list[float] = []
    whole: list[float] = []
    again: list[float] = []
    for _ in range(count):
        page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        page.set_default_timeout(PATIENCE_MS)
        if not pages:
            _note_ends(page, ends)
        began = time.perf_counter()
        page.goto(f"{address}/?token={next(links)}")
        page.get_by_text("Needs attention").first.wait_for()
        paints.append(time.perf_counter() - began)
        _wait_for_all(page)
        whole.append(time.perf_counter() - began)
        began = time.perf_counter()
        page.goto(address)
        _wait_for_all(page)
        again.append(time.perf_counter() - began)
        pages.append(page)
    pages[0].wait_for_timeout(6_000)  # everybody refreshes once
    refreshes = [_refresh_ms(pages[0], ends, "Resume" if number % 2 else "Pause") for number in range(rounds)]
    held = (_rss_bytes(pid) - before) / count
    for page in pages:
        page.context.close()
    return [
        [f"{count} sessions: first useful paint, s", f"< {PAINT_TARGET_S:g}", _seconds(paints)],
        [f"{count} sessions: numbers and first chart, new browser, s", "-", _seconds(whole)],
        [f"{count} sessions: numbers and first chart, it has the files, s", "-", _seconds(again)],
        [f"{count} sessions: refresh, ms", f"< {REFRESH_TARGET_MS}", _of(refreshes)],
        [f"{count} sessions: memory a session, MiB", "-", f"{held / 2**20:,.1f}"],
    ]  # fmt: skip


def _wait_for_all(page: Page) -> None:
    page.get_by_text("Needs attention").first.wait_for()
    page.get_by_test_id("stMetricValue").first.wait_for()
    page.locator(".js-plotly-plot .main-svg").first.wait_for()


def _seconds(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} / {max(values):.2f}"


def _note_ends(page: Page, ends: list[float]) -> None:
    """Note when each whole run of the script ends, by what the server says; parts that refresh alone do not count."""

    def received(frame: str | bytes) -> None:
        message = ForwardMsg.FromString(frame) if isinstance(frame, bytes) else ForwardMsg()
        if message.WhichOneof("type") == "script_finished" and message.script_finished == WHOLE_RUN:
            ends.append(time.perf_counter())

    page.on("websocket", lambda socket: socket.on("framereceived", received))


def _refresh_ms(page: Page, ends: list[float], button: str) -> float:
    before, began = len(ends), time.perf_counter()
    page.get_by_role("button", name=button).first.click()
    while len(ends) == before:
        page.wait_for_timeout(5)
        if time.perf_counter() - began > PATIENCE_MS / 1000:
            raise SystemExit(f"no run ended after a click on {button}")
    return (ends[before] - began) * 1000


def _rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(url: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if httpx.get(url, timeout=2, trust_env=False).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.2)
    raise SystemExit(f"{url} did not answer within {seconds:.0f} s")


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
        "--sessions", default="1,5", help="how many at once, comma-separated, as 1,5,20; empty: reads alone"
    )
    parser.add_argument("--rounds", type=int, default=3)
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
            links = _links(store, sum(counts))
            with served(url, folder, environment) as (address, pid), sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
                for count in counts:
                    lines += told(measure_sessions(browser, address, pid, links, count, a.rounds))
                browser.close()
        store.dispose()
    columns = [("what", str), ("target", str), ("median / worst", str)]
    title = f"dashboard, {a.engines} engines, {a.versions:,} versions, {a.minutes:,} minutes of rollups; {machine()}"
    print_table(title, columns, lines)


if __name__ == "__main__":
    main()
