"""Game days: the scripts are sound, and signs say what they mean."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from gameday_support import BEGAN, after, alert, reading

from controlplane.steering.alerts.defaults import DEFAULT_RULES
from controlplane.steering.alerts.rule import check_rule
from controlplane.steering.command_kinds import check_arguments
from controlplane.steering.policies.kinds import DEFAULTS, read_rule
from controlplane.workload.gameday import GAME_DAYS, FaultIncident, Phase
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

DAYS = list(GAME_DAYS.values())


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
