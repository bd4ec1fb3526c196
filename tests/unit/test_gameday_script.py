"""Game days: the scripts are sound, signs say what they mean, and a run puts everything back whatever happens."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest

from controlplane.errors import Conflict, Unavailable
from controlplane.steering.alerts.defaults import DEFAULT_RULES
from controlplane.steering.alerts.rule import check_rule
from controlplane.steering.command_kinds import check_arguments
from controlplane.steering.policies.kinds import DEFAULTS, read_rule
from controlplane.workload.gameday import GAME_DAYS, FaultIncident, Phase, Step
from controlplane.workload.gameday_result import Event
from controlplane.workload.gameday_run import Run
from controlplane.workload.gameday_signs import (
    AlertFires,
    AnotherBoot,
    CommandEnded,
    Grew,
    HistoryWhole,
    HitRateBack,
    ModeIs,
    NoAnswer,
    PolicyDecided,
    Reading,
    Scene,
    instead,
    look,
)
from engine.memory.drill import read_plan

BEGAN = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
DAYS = list(GAME_DAYS.values())


def after(seconds: float) -> dt.datetime:
    return BEGAN + dt.timedelta(seconds=seconds)


def reading(seconds: float = 0, *, boot: str = "a", mode: str = "normal", told: int = 0, **more: Any) -> Reading:
    rows = {key: more.pop(key) for key in ("alerts", "runs", "commands", "torn") if key in more}
    engine = {
        "id": "local", "boot_id": boot, "health": "live", "registered_at": after(seconds).isoformat(),
        "open_gaps": more.pop("gaps", 0), "snapshot_wanted": False, "observed": {"mode": mode}, "stats": more,
    }  # fmt: skip
    return Reading(at=after(seconds), engine=engine, told_requests=told, **rows)


def scene(now: Reading, start: Reading | None = None, **more: Any) -> Scene:
    start = start or reading(-1)
    return Scene(began_at=BEGAN, start=start, base=start, now=now, **more)


# -- the scripts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("day", DAYS, ids=lambda day: day.name)
def test_a_script_detects_acts_and_recovers(day: Any) -> None:
    assert {step.phase for step in day.steps} == {Phase.DETECTED, Phase.ACTED, Phase.RECOVERED}
    assert all(step.after_end for step in day.steps if step.phase is Phase.RECOVERED)
    assert any(isinstance(step.sign, HitRateBack) for step in day.steps)


@pytest.mark.parametrize("day", [day for day in DAYS if isinstance(day.incident, FaultIncident)], ids=lambda d: d.name)
def test_a_script_s_faults_are_ones_an_engine_takes(day: Any) -> None:
    plan = [line.as_json() for line in day.incident.plan]
    assert check_arguments("fault", {"plan": plan, "lasts_s": day.incident.lasting(10).longest_seconds})
    assert len(read_plan(plan)) == len(plan)


@pytest.mark.parametrize("day", DAYS, ids=lambda day: day.name)
def test_a_script_tunes_what_there_is_to_what_is_allowed(day: Any) -> None:
    policies = {standing.name: standing.kind for standing in DEFAULTS}
    rules = {rule.name: rule for rule in DEFAULT_RULES}
    for tuning in day.tunings:
        if tuning.of == "policy":
            read_rule(policies[tuning.name], tuning.changes["parameters"])
            continue
        if tuning.of == "new rule":
            assert check_rule(tuning.name, tuning.changes)
            continue
        columns = rules[tuning.name].columns()
        parameters = {**columns["parameters"], **tuning.changes.get("parameters", {})}
        check_rule(tuning.name, {**columns, **tuning.changes, "parameters": parameters})


# -- signs ------------------------------------------------------------------------------------------------------------


def alert(rule: str, fired: float | None, engine: str = "local") -> dict[str, Any]:
    fired_at = None if fired is None else after(fired).isoformat()
    return {
        "id": 7, "rule": rule, "engine_id": engine, "fired_at": fired_at, "summary": "it burns", "state": "firing",
        "value": 5.0,
    }  # fmt: skip


def test_an_alert_counts_from_the_moment_it_fired_and_only_since_the_incident() -> None:
    sign = AlertFires(rules=("burns",))
    assert look(sign, scene(reading(9, alerts=[alert("burns", -5), alert("burns", None), alert("other", 3)]))) is None
    assert look(sign, scene(reading(9, alerts=[alert("burns", 3, engine="another")]))) is None
    seen = look(sign, scene(reading(9, alerts=[alert("burns", 7), alert("burns", 3)])))
    assert seen is not None
    assert seen.at == after(3)


def test_an_alert_that_fired_already_counts_when_it_rises() -> None:
    sign = AlertFires(rules=("burns",), rise=3)
    start = reading(-1, alerts=[alert("burns", -20)])
    for value, rises in ((7.9, False), (8.0, True)):
        now = reading(9, alerts=[{**alert("burns", -20), "value": value}])
        assert (look(sign, scene(now, start)) is not None) is rises
    assert look(sign, scene(reading(9, alerts=[{**alert("burns", -20), "id": 8, "value": 99.0}]), start)) is None


def test_a_dry_run_of_a_policy_is_no_act() -> None:
    sign = PolicyDecided(policy="degrade", decisions=("step_down",))
    run = {
        "policy": "degrade", "engine_id": "local", "decision": "step_down", "at": after(4).isoformat(),
        "dry_run": True, "inputs": {"why": "they fail"},
    }  # fmt: skip
    assert look(sign, scene(reading(9, runs=[run]))) is None
    seen = look(sign, scene(reading(9, runs=[{**run, "dry_run": False}])))
    assert seen is not None
    assert "they fail" in seen.text


def test_a_command_of_a_person_or_without_effect_is_no_act_of_a_policy() -> None:
    sign = CommandEnded(kind="warm", counts="warmed")
    done = {
        "kind": "warm", "engine_id": "local", "status": "succeeded", "actor": "policy:warm-up",
        "created_at": after(-2).isoformat(), "finished_at": after(5).isoformat(), "outcome": {"warmed": 3},
    }  # fmt: skip
    for change in ({"actor": "ops"}, {"outcome": {"warmed": 0}}, {"finished_at": after(-2).isoformat()}):
        assert look(sign, scene(reading(9, commands=[{**done, **change}]))) is None
    seen = look(sign, scene(reading(9, commands=[done])))
    assert seen is not None
    assert seen.at == after(5)


def test_growth_counts_from_0_after_a_restart() -> None:
    sign = Grew(path=("recoveries", "ok"), least=5, unit="restores")
    start = reading(-1, recoveries={"ok": 100})
    assert look(sign, scene(reading(1, recoveries={"ok": 104}), start)) is None
    assert look(sign, scene(reading(1, recoveries={"ok": 105}), start)) is not None
    assert look(sign, scene(reading(1, boot="b", recoveries={"ok": 5}), start)) is not None
    assert look(replace(sign, same_boot=True), scene(reading(1, boot="b", recoveries={"ok": 5}), start)) is None


def test_modes_boots_and_silence_are_seen() -> None:
    assert look(ModeIs(mode="normal"), scene(reading(1, mode="no_disk"))) is None
    assert look(ModeIs(mode="normal"), scene(reading(1))) is not None
    assert look(AnotherBoot(), scene(reading(1))) is None
    assert look(AnotherBoot(), scene(reading(1, boot="b"))) is not None
    silent = Reading(at=after(1))
    assert look(NoAnswer(), scene(silent)) is not None
    assert look(ModeIs(mode="normal"), scene(silent)) is None


def test_a_hit_rate_is_back_at_its_share_and_never_without_a_measurement() -> None:
    sign = HitRateBack(share=0.9)
    assert look(sign, scene(reading(1), hit_before=0.8, hit_now=0.71)) is None
    assert look(sign, scene(reading(1), hit_before=0.8, hit_now=None)) is None
    assert look(sign, scene(reading(1), hit_before=0.8, hit_now=0.72)) is not None


@pytest.mark.parametrize(
    ("now", "whole"),
    [
        (reading(60, requests=500, told=480), True),
        (reading(60, requests=500, told=380), False),  # what was said during the outage is lost, or on its way
        (reading(60, requests=500, told=620), False),  # and told twice
        (reading(60, requests=500, told=480, gaps=1), False),
        (reading(60, requests=500, told=480, torn=["ab" * 16]), False),
        (reading(60, requests=500, told=480, boot="b"), False),
    ],
)
def test_a_history_is_whole_when_all_was_told_once(now: Reading, whole: bool) -> None:
    start = reading(-1, requests=100, told=90)
    seen = look(HistoryWhole(slack_seconds=5), scene(now, start, requests_a_second=8))
    assert (seen is not None) is whole


# -- runs -------------------------------------------------------------------------------------------------------------


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


def test_what_did_not_show_is_told_with_what_did_instead() -> None:
    decided = PolicyDecided(policy="warm-up", decisions=("warm",))
    ran: dict[str, Any] = {
        "policy": "warm-up",
        "decision": "in_flight",
        "at": "09:00",
        "error": None,
        "inputs": {"why": "one runs"},
    }
    for now, said in (
        (reading(9, runs=[{**ran, "policy": "degrade"}]), "warm-up decided nothing"),
        (reading(9, runs=[ran, {**ran, "decision": "warm"}]), "warm-up decided in_flight at 09:00: one runs"),
        (reading(9, runs=[{**ran, "error": "it broke"}]), "warm-up decided in_flight at 09:00: it broke"),
        (Reading(at=after(9)), "the API does not answer"),
    ):
        assert instead(decided, now) == said
    ended = CommandEnded(kind="warm", counts="warmed")
    assert instead(ended, reading(9)) == "no warm"
    expired = {"kind": "warm", "status": "expired", "outcome": {"reason": "engine_silent"}}
    assert "expired: {'reason': 'engine_silent'}" in instead(ended, reading(9, commands=[expired]))
    assert instead(HistoryWhole(slack_seconds=1), reading(9, gaps=2, torn=["a"])) == "2 gaps are open, 1 prefixes torn"


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
