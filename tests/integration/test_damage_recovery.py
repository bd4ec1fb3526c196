"""Files are damaged under a running deck: caught, quarantined, shown, never served; the deck recovers by itself."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_support import Live, live_engine, prompt
from steering_support import Deck, running_deck, wait_for

from controlplane.store import queries
from engine.memory.quarantine import quarantined

PROMPTS = 60
PATIENCE_S = 120.0


@pytest.fixture
def deck(tmp_path: Path) -> Iterator[Deck]:
    with running_deck(tmp_path / "deck_home", with_scheduler=True) as found:
        yield found


def damage_files(folder: Path) -> dict[str, str]:
    """Flip a bit in every other object file and cut the rest of the chosen ones short; what was done, by file name."""
    done = {}
    for i, path in enumerate(sorted((folder / "objects").glob("*.safetensors"))):
        size = path.stat().st_size
        if i % 4 == 3:
            os.truncate(path, size * 2 // 3)
            done[path.name] = "cut"
        elif i % 2 == 0:
            with open(path, "r+b") as file:
                file.seek(size - size // 3)
                byte = file.read(1)[0]
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte ^ 0x10]))
            done[path.name] = "flipped"
    return done


def tighten_policies(deck: Deck) -> None:
    """The shipped rules with times that fit a test."""
    with deck.client() as client:
        rule = {
            "window_seconds": 60, "minimum_samples": 4, "down_evaluations": 1, "up_evaluations": 1,
            "cool_down_seconds": 1, "quiet_hold_seconds": 3, "trial_seconds": 5, "longest_hold_seconds": 8,
        }  # fmt: skip
        client.change_policy("degrade", reason="test", parameters=rule, every_seconds=1)
        client.change_policy("warm-up", reason="test", every_seconds=2)


def drive_until(live: Live, deck: Deck, condition: str, numbers: list[int]) -> list[str]:
    """Serve the prompts in turn until the engine runs in a mode that fits; the modes seen on the way."""
    modes: list[str] = []
    deadline, turn = time.monotonic() + PATIENCE_S, 0
    while time.monotonic() < deadline:
        live.serve(prompt(numbers[turn % len(numbers)]))
        turn += 1
        mode = live.engine.observed()["mode"]
        if not modes or modes[-1] != mode:
            modes.append(mode)
        if (mode == "normal") == (condition == "normal"):
            return modes
        time.sleep(0.02)
    raise AssertionError(f"the mode never became {condition}; seen: {modes}, {live.engine.stats()['recoveries']}")


def test_damaged_objects_are_caught_shown_and_never_served_and_the_deck_recovers(deck: Deck, tmp_path: Path) -> None:
    folder = tmp_path / "engine_home"
    numbers = list(range(PROMPTS))
    with live_engine(deck, folder) as live:
        wait_registered(deck)
        tighten_policies(deck)
        for number in numbers:
            live.serve(prompt(number))
        damaged = damage_files(folder)
        assert len(damaged) > 20

        assert drive_until(live, deck, "degraded", numbers)[-1] == "no_disk"
        aside = {item.file for item in quarantined(folder / "quarantine")}
        assert aside
        assert aside <= set(damaged)

        assert drive_until(live, deck, "normal", numbers)[-1] == "normal"
        for number in numbers:  # everything was computed again where it was damaged, and is served again
            live.serve(prompt(number))
        assert live.serve(prompt(numbers[-1])).usable_tokens > 0
        assert live.wrong_bytes == 0
        assert live.verified_bytes > 1_000_000
        assert live.engine.check() == []  # at once, though the warm-up policy may be in the middle of a restore
        live.engine.flush_telemetry()
        assert_told(deck, len(aside))


def wait_registered(deck: Deck) -> None:
    def registered() -> bool:
        with deck.client() as client:
            return any(row["id"] == "live" for row in client.engines())

    wait_for(registered, "the engine to register")


def assert_told(deck: Deck, at_least: int) -> None:
    """The store, which the dashboard reads, knows of the damage and of what the policies did about it."""

    def failures() -> int:
        with deck.store.read() as session:
            return len([f for f in queries.list_failures(session, limit=500) if f.reason == "checksum_mismatch"])

    wait_for(lambda: failures() >= 4, "failed validations in the store")

    def causes() -> set[str]:
        from sqlalchemy import select

        from controlplane.store.models import PrefixVersion

        with deck.store.read() as session:
            return set(session.scalars(select(PrefixVersion.cause).where(PrefixVersion.state_to == "QUARANTINED")))

    wait_for(lambda: "corruption" in causes(), "quarantined prefixes in the history")
    with deck.client() as client:
        decisions = [run["decision"] for run in client.policy_runs(policy="degrade", limit=200)]
        assert "step_down" in decisions
        assert {"probe_up", "step_up"} & set(decisions)
        warm = [run["decision"] for run in client.policy_runs(policy="warm-up", limit=200)]
        assert "warm" in warm
        assert any(c["kind"] == "warm" and c["status"] == "succeeded" for c in client.commands(limit=200))
    assert at_least > 0
