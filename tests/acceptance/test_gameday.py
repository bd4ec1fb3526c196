"""`kvdeck gameday` on a real deck: every incident is injected, seen, acted upon and over, with 0 wrong bytes."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_support import KVDECK, PATIENCE_SECONDS, Up, environment, kvdeck, wait_for

from controlplane.api.client import ControlPlaneClient

DECK = ("--no-dashboard", "--rate", "12", "--game-days")


@pytest.fixture(scope="module")
def deck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with Up(tmp_path_factory.mktemp("gameday") / "var", *DECK) as up:
        yield up


def client_of(deck: Up) -> ControlPlaneClient:
    return ControlPlaneClient(deck.url, (deck.data_dir / "operator.token").read_text().strip(), timeout_seconds=60.0)


def engine_of(deck: Up) -> dict[str, Any]:
    with client_of(deck) as client:
        (engine,) = client.engines()
    found: dict[str, Any] = engine
    return found


def settings_of(deck: Up) -> list[Any]:
    """What a game day changes for its time."""
    with client_of(deck) as client:
        policies = {row["name"]: (row["parameters"], row["every_seconds"], row["paused"]) for row in client.policies()}
        rules = [{key: value for key, value in row.items() if key != "changed_at"} for row in client.rules()]
    return [policies, rules]


def play(deck: Up, name: str) -> dict[str, Any]:
    done = subprocess.run(
        [*KVDECK, "gameday", name, "--data-dir", str(deck.data_dir), "--json"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("name", "leaves"),
    [
        ("corrupt-disk", "quarantined_files"),
        ("slow-disk", ""),
        ("memory-squeeze", ""),
        ("control-plane-down", ""),
        ("lost-prefixes", ""),  # last: it ends the engine's counters
    ],
)
def test_a_game_day_recovers_without_a_hand_and_without_a_wrong_byte(deck: Up, name: str, leaves: str) -> None:
    before = settings_of(deck)
    found = play(deck, name)
    assert found["missed"] == []
    assert (found["wrong_bytes"], found["verified_bytes"] > 0) == (0, True)
    phases = {event["phase"] for event in found["events"]}
    assert {"injected", "detected", "acted", "over", "recovered"} <= phases
    if leaves:
        assert found[leaves] > 0
    engine = engine_of(deck)
    assert engine["observed"]["mode"] == "normal"
    assert settings_of(deck) == before
    assert not (deck.data_dir / "gameday.json").exists()
    tokens = json.loads(deck.kvdeck("token", "list", "--json").stdout)
    assert all(token["state"] == "ended" for token in tokens if token["name"].startswith("gameday:"))
    with client_of(deck) as client:
        audit = [row for row in client.audit(limit=100) if name in row["reason"]]
    assert {row["role"] for row in audit if row["action"] in ("fault", "begin_outage")} == {"admin"}


@pytest.mark.timeout(400)
def test_ctrl_c_withdraws_the_fault_and_puts_the_caps_back(deck: Up) -> None:
    running = subprocess.Popen(
        [*KVDECK, "gameday", "slow-disk", "--data-dir", str(deck.data_dir)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        wait_for(lambda: engine_of(deck)["stats"].get("faults", {}).get("armed"), "the fault")
        running.send_signal(signal.SIGINT)
        said, _ = running.communicate(timeout=PATIENCE_SECONDS)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 130, said
    assert "Withdrawn" in said

    def is_well() -> bool:
        engine = engine_of(deck)
        return not engine["stats"]["faults"]["armed"] and engine["observed"]["cap_gpu_bytes"] is None

    wait_for(is_well, "the end of the fault and the old caps")


def test_faults_and_outages_are_for_admins_alone(deck: Up) -> None:
    secret = (deck.data_dir / "operator.token").read_text().strip()
    for name in ("slow-disk", "control-plane-down"):
        done = deck.kvdeck("gameday", name, "--token", secret)
        assert done.returncode == 4, done.stdout + done.stderr
        assert "this needs admin" in done.stderr
    assert engine_of(deck)["stats"]["faults"]["armed"] == 0


def test_the_list_says_what_each_one_shows() -> None:
    rows = json.loads(kvdeck("gameday", "list", "--json").stdout)
    assert [row["name"] for row in rows] == [
        "corrupt-disk", "slow-disk", "memory-squeeze", "lost-prefixes", "control-plane-down",
    ]  # fmt: skip
    assert all(row["shows"] and row["incident"] for row in rows)
    unknown = kvdeck("gameday", "meteor")
    assert (unknown.returncode, "corrupt-disk" in unknown.stderr) == (2, True)


def test_a_deck_that_does_not_allow_it_is_left_alone(tmp_path: Path) -> None:
    with Up(tmp_path / "var", "--no-dashboard") as up:
        for name in ("slow-disk", "lost-prefixes"):
            done = kvdeck("gameday", name, "--data-dir", str(up.data_dir))
            assert done.returncode == 1, done.stdout + done.stderr
            assert "--game-days" in done.stderr
        assert "faults" not in engine_of(up)["stats"]
    alone = kvdeck("gameday", "slow-disk", "--data-dir", str(tmp_path / "empty"))
    assert (alone.returncode, "token" in alone.stderr) == (4, True)
