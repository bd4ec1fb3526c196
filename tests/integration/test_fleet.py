"""A hundred engines on one control plane: each is told its own, none another's, and clocks that are off are seen."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from databases import Database
from steering_support import Deck, running_deck
from typer.testing import CliRunner

from controlplane.auth import Role
from controlplane.cli.main import app
from controlplane.host.client import AgentClient

ENGINES = 100
OFF = {7: 3600.0, 8: -90.0}  # engine -> seconds its clock is ahead


@pytest.fixture
def deck(tmp_path: Path, database: Database) -> Iterator[Deck]:
    with running_deck(tmp_path, database) as running:
        yield running


def name(number: int) -> str:
    return f"sim-{number:03d}"


def group(number: int) -> str:
    return "canary" if number % 10 == 0 else "chat"


def live_once(deck: Deck, number: int) -> list[str]:
    """Register, heartbeat, hand a snapshot in, and run what waits; the kinds of commands that were handed out."""
    with closing(AgentClient(deck.url, deck.tokens[Role.ENGINE], name(number))) as client:
        client.register({"boot_id": "b", "model": "toy", "fingerprint": "f", "page_tokens": 64, "group": group(number)})
        sent_at = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=OFF.get(number, 0.0))
        told = client.heartbeat(
            {"boot_id": "b", "observed_revision": 0, "observed": {}, "stats": {}, "sent_at": sent_at.isoformat()}
        )
        if told["snapshot_wanted"]:
            client.snapshot("b", [])
        answer = client.poll(0, 0.0)
        for command in answer["commands"]:
            client.outcome(command["id"], {"status": "succeeded", "outcome": {"by": name(number)}})
        assert told["commands_waiting"] == len(answer["commands"])
        return [command["kind"] for command in answer["commands"]]


def all_live(deck: Deck) -> list[list[str]]:
    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(lambda number: live_once(deck, number), range(ENGINES)))


def test_a_hundred_engines_are_listed_steered_by_group_and_their_clocks_seen(deck: Deck) -> None:
    assert all_live(deck) == [[]] * ENGINES
    headers = {"Authorization": f"Bearer {deck.tokens[Role.OPERATOR]}"}
    body = {"group": "canary", "kind": "compact", "arguments": {}, "reason": "test"}
    batch = httpx.post(f"{deck.url}/v1/batches", json=body, headers=headers)
    assert batch.status_code == 201, batch.text
    assert all_live(deck) == [["compact"] if group(number) == "canary" else [] for number in range(ENGINES)]
    assert all_live(deck) == [[]] * ENGINES  # each ended once
    with deck.client() as client:
        ended = [client.command(command["id"]) for command in batch.json()["commands"]]
        engines = {engine["id"]: engine for engine in client.engines()}
    assert {(command["status"], command["outcome"]["by"] == command["engine_id"]) for command in ended} == {
        ("succeeded", True)
    }
    assert (len(ended), len(engines)) == (10, ENGINES)
    assert not any(engine["snapshot_wanted"] for engine in engines.values())
    ahead = {number: engines[name(number)]["clock_ahead_seconds"] for number in range(ENGINES)}
    assert {number for number, seconds in ahead.items() if abs(seconds) > 60} == set(OFF)
    assert round(ahead[7] / 3600) == 1
    shown = CliRunner().invoke(app, ["status", "--url", deck.url, "--token", deck.tokens[Role.VIEWER]])
    assert "sim-007: its clock is 3," in shown.output, shown.output
    assert "s behind ours" in shown.output
