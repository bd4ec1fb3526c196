"""A game day's run: what it waits for, what it tells, and that it puts everything back whatever happens."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest
from gameday_support import after, alert, reading

from controlplane.errors import Conflict, Unavailable
from controlplane.workload.gameday import GAME_DAYS, Phase, Step
from controlplane.workload.gameday_result import Event
from controlplane.workload.gameday_run import Run
from controlplane.workload.gameday_signs import (
    AlertFires,
    HitRateBack,
    ModeIs,
    Reading,
)


class FakeDeck:
    """A deck that serves ten requests a second, 80% from the cache, half of that during the fault."""

    def __init__(self, *, heals: bool = True, wrong: int = 0, order: str = "succeeded", verified: int = 1000) -> None:
        self.seconds = 0.0
        self.heals = heals
        self.wrong = wrong
        self.order = order
        self.verified = verified
        self.done: list[str] = []
        self.noticed_after = 4.0
        self.begun: float | None = None
        self.ended = 0.0
        self.stats = {"requests": 0, "prompt_tokens": 0, "usable_tokens": 0, "verified_bytes": 0, "wrong_bytes": 0}
        self.interrupt_at: float | None = None
        self.away = 0

    @property
    def broken(self) -> bool:
        if self.begun is None:
            return False
        return not self.heals or self.seconds < self.ended + 3

    def clock(self) -> dt.datetime:
        return after(self.seconds)

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        if self.interrupt_at is not None and self.seconds >= self.interrupt_at:
            self.interrupt_at = None
            raise KeyboardInterrupt
        self.stats["requests"] += round(10 * seconds)
        self.stats["prompt_tokens"] += round(1000 * seconds)
        self.stats["usable_tokens"] += round((400 if self.broken else 800) * seconds)
        self.stats["verified_bytes"] += self.verified
        self.stats["wrong_bytes"] += self.wrong if self.broken else 0

    def read(self, *, history: bool = False) -> Reading:
        files = 3 if self.begun is not None else 0
        figures = {**self.stats, "io": {"disk": {"quarantined_files": files, "quarantined_bytes": 4096 * files}}}
        fired = self.begun is not None and self.seconds > self.begun + self.noticed_after
        rows = [alert("burns", (self.begun or 0) + self.noticed_after)] if fired else []
        return reading(self.seconds, alerts=rows, mode="no_disk" if self.broken else "normal", **figures)

    def cap_gpu(self, share: float) -> dict[str, Any]:
        self.done.append(f"cap {share}")
        return {"of": "caps"}

    def tune(self, tuning: Any) -> dict[str, Any]:
        self.done.append(f"tune {tuning.name}")
        return {"of": tuning.of, "name": tuning.name}

    def put_back(self, undo: dict[str, Any]) -> None:
        if self.away:
            self.away -= 1
            raise Unavailable("down", "The control plane is away.", "")
        self.done.append(f"undo {undo.get('name', 'caps')}")

    def begin(self, incident: Any) -> str:
        self.begun, self.ended = self.seconds, self.seconds + incident.longest_seconds
        self.done.append("begin")
        return "c1"

    def command(self, command_id: str) -> dict[str, Any]:
        return {"status": self.order, "outcome": {"reason": "no faults here"}}

    def withdraw(self, incident: Any) -> str:
        self.ended = min(self.ended, self.seconds)
        self.done.append("withdraw")
        return "c2"


class Notes:
    """A journal in memory."""

    def __init__(self) -> None:
        self.kept: list[list[dict[str, Any]]] = []

    def note(self, undo: Any) -> None:
        self.kept.append(list(undo))


DAY = replace(
    GAME_DAYS["slow-disk"],
    ready=(),
    steps=(
        Step(phase=Phase.DETECTED, what="alert", sign=AlertFires(rules=("burns",)), within_seconds=20),
        Step(phase=Phase.RECOVERED, what="mode", sign=ModeIs(mode="normal"), within_seconds=30, after_end=True),
        Step(phase=Phase.RECOVERED, what="hits", sign=HitRateBack(share=0.9), within_seconds=60, after_end=True),
    ),
)
PUT_BACK = ["undo gameday_recoveries_fail", "undo degrade", "undo caps"]


def run(deck: FakeDeck, notes: Notes | None = None, **more: Any) -> Run:
    said: list[Event] = []
    return Run(DAY, deck, notes or Notes(), clock=deck.clock, sleep=deck.sleep, say=said.append, **more)


def test_a_deck_that_recovers_goes_well_and_everything_is_put_back() -> None:
    deck, notes = FakeDeck(), Notes()
    result = run(deck, notes).go()
    assert result.went_well
    assert not result.missed
    assert [event.phase for event in result.events if event.offset_seconds is not None] == [
        "injected", "detected", "over", "recovered", "recovered",
    ]  # fmt: skip
    assert result.hit_rate.before == pytest.approx(0.8)
    assert result.hit_rate.lowest == pytest.approx(0.4)
    assert result.hit_rate.after is not None
    assert result.hit_rate.after >= 0.72
    assert (result.quarantined_files, result.quarantined_bytes) == (3, 12288)
    assert deck.done[-3:] == PUT_BACK
    assert notes.kept[-1] == []
    detected = next(event for event in result.events if event.phase == "detected")
    assert detected.offset_seconds == pytest.approx(4)


@pytest.mark.parametrize(("noticed_after", "over_after"), [(4, 12), (30, 31), (65, 60)])
def test_a_fault_lasts_until_it_was_noticed_at_least_12_and_at_most_60_seconds(
    noticed_after: float, over_after: float
) -> None:
    deck = FakeDeck()
    deck.noticed_after = noticed_after
    day = replace(DAY, steps=(replace(DAY.steps[0], within_seconds=70), *DAY.steps[1:]))
    result = Run(day, deck, Notes(), clock=deck.clock, sleep=deck.sleep, say=lambda _: None).go()
    assert result.went_well
    (over,) = [event.offset_seconds for event in result.events if event.phase == Phase.OVER]
    assert over == pytest.approx(over_after, abs=1.5)
    assert deck.done.count("withdraw") == 1


def test_with_its_own_windows_a_fault_waits_longer_to_be_noticed() -> None:
    assert GAME_DAYS["slow-disk"].incident.lasting(10).longest_seconds == 600
    assert GAME_DAYS["lost-prefixes"].incident.lasting(10).longest_seconds == 12


def test_a_deck_that_does_not_recover_in_time_is_said_to_have_missed_it_and_is_put_back() -> None:
    deck = FakeDeck(heals=False)
    result = run(deck).go()
    assert result.missed == ["recovered: mode", "recovered: hits"]
    assert any("MISSED: mode, not within 30 s (mode no_disk)" in event.text for event in result.events)
    assert not result.went_well
    assert deck.done[-3:] == PUT_BACK


def test_one_wrong_byte_is_a_failure_and_so_is_nothing_verified() -> None:
    assert not run(FakeDeck(wrong=1)).go().went_well
    idle = run(FakeDeck(verified=0)).go()
    assert not idle.missed
    assert not idle.went_well


def test_an_interrupt_withdraws_the_fault_and_puts_everything_back() -> None:
    deck = FakeDeck()
    deck.interrupt_at = 20.0
    going = run(deck)
    with pytest.raises(KeyboardInterrupt):
        going.go()
    assert deck.done[-4:] == ["withdraw", *PUT_BACK]
    assert not going.result.went_well


def test_an_engine_that_refuses_the_fault_ends_the_game_day_with_its_reason() -> None:
    deck = FakeDeck(order="refused")
    with pytest.raises(Conflict, match="no faults here"):
        run(deck).go()
    assert deck.done[-3:] == PUT_BACK


def test_what_cannot_be_put_back_now_is_tried_again() -> None:
    deck, notes = FakeDeck(), Notes()
    deck.away = 5
    assert run(deck, notes).go().went_well
    assert deck.done[-3:] == PUT_BACK
    assert notes.kept[-1] == []


def test_with_its_own_windows_no_policy_is_touched_and_the_deck_gets_longer() -> None:
    deck = FakeDeck()
    assert run(deck, own_windows=True).go().went_well
    assert not [what for what in deck.done if what.startswith("tune")]
