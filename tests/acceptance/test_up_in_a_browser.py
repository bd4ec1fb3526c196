"""The newcomer's path on the real thing: `kvdeck up`, the one-time link, an eviction clicked through, and a restart."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from cli_support import Up, wait_for
from playwright.sync_api import Page, expect, sync_playwright

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE_MS = 60_000
pytestmark = pytest.mark.timeout(600)


def leaf(up: Up) -> str | None:
    """A prefix on which nothing builds and which nobody reads any more."""
    rows = json.loads(up.kvdeck("prefixes", "--order", "changed", "--limit", "200", "--json").stdout)["rows"]
    for row in reversed(rows):
        preview = json.loads(up.kvdeck("evict", row["prefix_id"], "--dry-run", "--json").stdout)
        if preview["descendants"] == 0:
            return str(row["prefix_id"])
    return None


def history(up: Up, prefix_id: str) -> list[dict[str, Any]]:
    versions: list[dict[str, Any]] = json.loads(up.kvdeck("explain", prefix_id, "--json").stdout)["versions"]
    return versions


def settle(page: Page) -> None:
    """Until Streamlit has drawn what the last interaction changed."""
    page.wait_for_timeout(500)
    expect(page.get_by_test_id("stStatusWidget")).to_have_count(0, timeout=PATIENCE_MS)


def evict_by_hand(page: Page, prefix_id: str) -> None:
    page.get_by_role("link", name="Prefixes").click()
    expect(page.get_by_role("heading", name="Prefixes")).to_be_visible(timeout=PATIENCE_MS)
    search = page.get_by_role("textbox", name="Search")
    search.fill(prefix_id)
    search.press("Enter")
    expect(page.get_by_text(re.compile(r"^1 of 1 prefix"))).to_be_visible(timeout=PATIENCE_MS)
    grid = page.get_by_test_id("stDataFrame").first
    box = grid.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 18, box["y"] + 35 + 17)
    page.get_by_role("button", name="Evict", exact=True).click(timeout=PATIENCE_MS)
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("Prefixes touched")).to_be_visible(timeout=PATIENCE_MS)
    # The workload goes on: by now something may build on it.
    dialog.get_by_text("Also everything below them in the tree").click()
    settle(page)
    reason = dialog.get_by_label("Reason")
    reason.fill("an acceptance test")
    reason.press("Tab")
    settle(page)  # a click on a button that is being drawn again is lost
    dialog.get_by_role("button", name=re.compile(r"^Evict \d+ prefix")).click()
    expect(dialog.get_by_text(re.compile(r"evicted [1-9]"))).to_be_visible(timeout=PATIENCE_MS)


def test_a_newcomer_evicts_a_prefix_by_hand_and_a_restart_keeps_the_rest(tmp_path: Path) -> None:
    chromium = shutil.which("chromium")
    assert chromium, "chromium is not installed; `make test` installs it"
    with Up(tmp_path / "var", "--rate", "25") as up:
        link = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", up.said)
        assert link, up.said
        prefix_id = wait_for(lambda: leaf(up), "a prefix to evict")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
            page = browser.new_page(viewport={"width": 1440, "height": 1000})
            page.goto(link.group(0))
            evict_by_hand(page, prefix_id)
            browser.close()
        gone = wait_for(lambda: [v for v in history(up, prefix_id) if v["state_to"] == "EVICTED"], "the eviction")
        assert gone[0]["cause"] == "command"
        audit = httpx.get(f"{up.url}/v1/audit", headers=_bearer(up)).json()
        assert any("an acceptance test" in row["reason"] for row in audit)
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
