"""The newcomer's path on the real thing, by the page alone: from the one-time link to the trace; and a restart."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from browser_support import choose, chromium, pick_row
from cli_support import Up, wait_for
from playwright.sync_api import Page, expect

MOST_LOOKS = 6
PATIENCE_MS = 60_000
REASON = "it holds much and served little"
DRAWN = """() => document.querySelector("[data-testid=stApp][data-test-script-state=notRunning]") !== null
  && document.querySelector("[data-testid=stSkeleton], [data-stale=true]") === null"""
EVICTION_IS_MARKED = """() => [...document.querySelectorAll(".js-plotly-plot")].some(
  (plot) => plot.data.some((trace) => trace.name === "evict" && trace.x.length))"""
pytestmark = pytest.mark.timeout(600)


@contextmanager
def tracing_ui() -> Iterator[str]:
    """A page a trace, as a tracing backend has; the template of its address."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"trace {self.path.rpartition('/')[2]}".encode())

        def log_message(self, *_args: Any) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/trace/{{trace_id}}"
        server.shutdown()


def history(up: Up, prefix_id: str) -> list[dict[str, Any]]:
    versions: list[dict[str, Any]] = json.loads(up.kvdeck("explain", prefix_id, "--json").stdout)["versions"]
    return versions


def settle(page: Page) -> None:
    """Until Streamlit has drawn what the last interaction changed."""
    page.wait_for_timeout(500)
    page.wait_for_function(DRAWN, timeout=PATIENCE_MS)


def open_page(page: Page, name: str) -> None:
    page.get_by_role("link", name=name, exact=True).click()
    heading = "Needs attention" if name == "Overview" else name
    expect(page.get_by_test_id("stHeading").filter(has_text=heading).first).to_be_visible(timeout=PATIENCE_MS)
    settle(page)


def stand_still(page: Page) -> None:
    """Refresh is paused, by its key: rows must not move under the hand."""
    page.keyboard.press("p")
    expect(page.get_by_text("refresh is paused")).to_be_visible(timeout=PATIENCE_MS)
    settle(page)


def evict_what_wastes_most(page: Page) -> None:
    open_page(page, "Prefixes")
    stand_still(page)
    choose(page, "Order by", "memory wasted", settle=lambda: settle(page))
    expect(page.get_by_text(re.compile(r"by memory wasted"))).to_be_visible(timeout=PATIENCE_MS)
    settle(page)
    pick_row(page.get_by_test_id("stDataFrame").first, 0)
    page.get_by_role("button", name="Evict", exact=True).click(timeout=PATIENCE_MS)
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("Prefixes touched")).to_be_visible(timeout=PATIENCE_MS)
    # The workload goes on: by now something may build on it.
    dialog.get_by_text("Also everything below them in the tree").click()
    settle(page)
    reason = dialog.get_by_label("Reason")
    reason.fill(REASON)
    reason.press("Tab")
    settle(page)  # a click on a button that is being drawn again is lost
    done, again = dialog.get_by_text(re.compile(r"evicted [1-9]")), dialog.get_by_role("button", name="Look again")
    for _ in range(MOST_LOOKS):  # what was looked at may have moved on under the workload: then look again
        dialog.get_by_role("button", name=re.compile(r"^Evict \d+ prefix")).click()
        expect(done.or_(again).first).to_be_visible(timeout=PATIENCE_MS)
        if done.is_visible():
            return
        again.click()
        settle(page)
    raise AssertionError(f"the prefixes moved on {MOST_LOOKS} times")


def find_who_did_it(page: Page, trace_id: str) -> None:
    """From the mark on the chart to the audit, and from there to the trace."""
    open_page(page, "Overview")
    page.get_by_role("button", name="Resume").click()
    page.locator(".js-plotly-plot .main-svg").first.wait_for(timeout=PATIENCE_MS)
    page.wait_for_function(EVICTION_IS_MARKED, timeout=PATIENCE_MS)
    open_page(page, "Audit")
    search = page.get_by_role("textbox", name="Search", exact=True)
    search.fill(REASON)
    search.press("Enter")
    expect(page.get_by_text(re.compile(r"^1 action\."))).to_be_visible(timeout=PATIENCE_MS)
    settle(page)
    pick_row(page.get_by_test_id("stDataFrame").nth(1), 0)
    person = page.get_by_text(re.compile("^Signed in as")).inner_text().removeprefix("Signed in as ")
    expect(page.get_by_test_id("stMain").get_by_text(f"{person}: evict")).to_be_visible(timeout=PATIENCE_MS)
    with page.expect_popup() as opened:
        page.get_by_role("link", name="Open its trace").click()
    expect(opened.value.get_by_text(f"trace {trace_id}")).to_be_visible(timeout=PATIENCE_MS)


def test_a_newcomer_evicts_a_prefix_by_hand_and_a_restart_keeps_the_rest(tmp_path: Path) -> None:
    with tracing_ui() as trace_url, Up(tmp_path / "var", "--rate", "25", KVDECK_TRACE_URL=trace_url) as up:
        link = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", up.said)
        assert link, up.said
        wait_for(lambda: json.loads(up.kvdeck("prefixes", "--json").stdout)["rows"], "a prefix")
        with chromium() as browser:
            page = browser.new_page(viewport={"width": 1440, "height": 1000}, reduced_motion="reduce")
            page.goto(link.group(0))
            expect(page.get_by_text("Signed in as")).to_be_visible(timeout=PATIENCE_MS)
            evict_what_wastes_most(page)
            done = httpx.get(f"{up.url}/v1/commands", params={"kind": "evict"}, headers=_bearer(up)).json()
            (command,) = [row for row in done if row["reason"] == REASON]
            page.keyboard.press("Escape")
            find_who_did_it(page, command["traceparent"].split("-")[1])
        prefix_id = command["arguments"]["prefix_ids"][0]
        gone = wait_for(lambda: [v for v in history(up, prefix_id) if v["state_to"] == "EVICTED"], "the eviction")
        assert gone[0]["cause"] == "command"
        audit = httpx.get(f"{up.url}/v1/audit", headers=_bearer(up)).json()
        assert any(REASON in row["reason"] for row in audit)
        assert up.stop() == 0
    kept = list((tmp_path / "var" / "engine" / "objects").glob("*.safetensors"))
    assert len(kept) > 20

    with Up(tmp_path / "var", "--rate", "25") as again:
        assert any(v["state_to"] == "EVICTED" for v in history(again, prefix_id))  # yesterday is still known
        adopted = wait_for(
            lambda: [
                row
                for row in json.loads(again.kvdeck("prefixes", "--limit", "200", "--json").stdout)["rows"]
                if row["disk_bytes"] > 0
            ],
            "adopted prefixes",
        )
        assert any(v["cause"] == "adopt" for v in history(again, adopted[0]["prefix_id"]))
        (engine,) = json.loads(again.kvdeck("status", "--json").stdout)["engines"]
        assert engine["stats"]["wrong_bytes"] == 0


def _bearer(up: Up) -> dict[str, str]:
    return {"Authorization": f"Bearer {(up.data_dir / 'operator.token').read_text().strip()}"}
