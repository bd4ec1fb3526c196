"""The degradation rule: when it steps, when it waits, and that it does not flap."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest

from controlplane.steering.policies.degrade import (
    DegradeFacts,
    DegradeMemory,
    DegradeRule,
    decide,
    hold_seconds,
    read_memory,
    samples_since,
)
from controlplane.steering.policies.proposals import SetMode, Verdict

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
RULE = DegradeRule()
EVERY_SECONDS = 10


class Simulated:
    """One engine under the policy: the tests say how its recoveries go, the mode follows the proposals."""

    def __init__(self, rule: DegradeRule = RULE, mode: str = "normal") -> None:
        self.rule, self.mode, self.memory = rule, mode, DegradeMemory()
        self.now = START
        self.modes = [mode]

    def evaluate(self, recovered: int = 0, failed: int = 0, *, held: bool = False) -> Verdict:
        """One run of the policy, ten seconds after the one before."""
        self.now += dt.timedelta(seconds=EVERY_SECONDS)
        facts = DegradeFacts(
            engine_id="e",
            now=self.now,
            mode=self.mode,
            held_by_person=held,
            recovered=recovered,
            not_recovered=failed,
        )
        verdict = decide(self.rule, facts, self.memory)
        self.memory = read_memory(verdict.memory)
        for proposal in verdict.proposals:
            assert isinstance(proposal, SetMode)
            self.mode = proposal.mode
            self.modes.append(proposal.mode)
        return verdict

    def run(self, times: int, recovered: int = 0, failed: int = 0, *, held: bool = False) -> list[str]:
        """Several runs alike; their decisions."""
        return [self.evaluate(recovered, failed, held=held).decision for _ in range(times)]


def degraded(mode: str = "no_disk") -> Simulated:
    """An engine that the policy itself has stepped down."""
    engine = Simulated()
    while engine.mode != mode:
        engine.run(1, failed=50)
    return engine


def test_steps_down_after_enough_bad_evaluations_in_a_row() -> None:
    engine = Simulated()
    assert engine.run(3, recovered=10, failed=10) == ["failing", "failing", "step_down"]
    assert engine.mode == "no_disk"


def test_one_good_evaluation_breaks_the_row_of_bad_ones() -> None:
    engine = Simulated()
    engine.run(2, failed=20)
    engine.run(1, recovered=20)
    assert "step_down" not in engine.run(2, failed=20)


def test_silence_breaks_the_row_of_bad_ones() -> None:
    engine = Simulated()
    engine.run(2, failed=20)
    engine.run(1)
    assert "step_down" not in engine.run(2, failed=20)


def test_too_few_samples_never_step_down_however_bad() -> None:
    assert set(Simulated().run(100, failed=RULE.minimum_samples - 1)) == {"too_few_samples"}


def test_a_rate_between_the_limits_neither_steps_down_nor_up() -> None:
    engine = Simulated()
    assert set(engine.run(50, recovered=90, failed=10)) == {"between_limits"}
    engine = degraded()
    engine.run(100, recovered=90, failed=10)
    assert engine.mode == "no_disk"


@pytest.mark.parametrize(("recovered", "failed"), [(80, 20), (95, 5)])
def test_the_limits_themselves_are_between(recovered: int, failed: int) -> None:
    assert set(Simulated().run(10, recovered, failed)) == {"between_limits"}


def test_cool_down_holds_the_second_step_down_back() -> None:
    rule = replace(RULE, cool_down_seconds=300)
    engine = Simulated(rule)
    engine.run(3, failed=50)
    decisions = engine.run(29, failed=50)
    assert "step_down" not in decisions
    assert engine.evaluate(failed=50).decision == "step_down"
    assert engine.mode == "resident_only"


def test_walks_the_whole_ladder_down_one_rung_at_a_time() -> None:
    engine = Simulated()
    engine.run(100, failed=50)
    assert engine.modes == ["normal", "no_disk", "resident_only", "full_only", "bypass"]
    assert engine.evaluate(failed=50).decision == "at_lowest_mode"


def test_does_not_go_below_the_lowest_mode_allowed() -> None:
    engine = Simulated(replace(RULE, lowest_mode="no_disk"))
    engine.run(100, failed=50)
    assert engine.mode == "no_disk"


def test_steps_up_after_enough_good_evaluations() -> None:
    engine = degraded()
    decisions = engine.run(6, recovered=100)
    assert decisions[-1] == "step_up"
    assert engine.mode == "normal"


def test_probes_up_after_a_quiet_hold_without_any_samples() -> None:
    engine = degraded()
    runs = RULE.quiet_hold_seconds // EVERY_SECONDS
    assert set(engine.run(runs - 1)) == {"quiet"}
    assert engine.evaluate().decision == "probe_up"
    assert engine.mode == "normal"


def test_too_few_samples_to_judge_count_as_quiet() -> None:
    engine = degraded()
    runs = RULE.quiet_hold_seconds // EVERY_SECONDS
    assert engine.run(runs, recovered=1, failed=2)[-1] == "probe_up"


def test_evidence_starts_the_quiet_hold_again() -> None:
    engine = degraded()
    runs = RULE.quiet_hold_seconds // EVERY_SECONDS
    engine.run(runs - 1)
    engine.run(1, recovered=90, failed=10)
    assert set(engine.run(runs - 1)) == {"quiet"}


def test_never_steps_above_normal() -> None:
    engine = Simulated()
    engine.run(500, recovered=100)
    engine.run(500)
    assert engine.modes == ["normal"]


def test_a_step_up_that_was_wrong_doubles_the_hold() -> None:
    engine = degraded()
    engine.run(RULE.quiet_hold_seconds // EVERY_SECONDS)
    engine.run(3, failed=50)
    assert engine.mode == "no_disk"
    assert engine.memory.wrong_steps_up == 1
    assert hold_seconds(RULE.quiet_hold_seconds, RULE, engine.memory) == 2 * RULE.quiet_hold_seconds


def test_a_disk_that_stays_broken_is_probed_ever_less_often() -> None:
    engine = Simulated()
    for _ in range(6 * 360):  # six hours
        engine.evaluate(failed=50 if engine.mode == "normal" else 0)
    steps = len(engine.modes) - 1
    # Without the doubling there would be a probe every 210 seconds: about 200 steps.
    assert steps <= 22
    assert engine.mode == "no_disk"


def test_good_host_restores_do_not_make_a_broken_disk_flap() -> None:
    engine = Simulated()
    for _ in range(6 * 360):
        if engine.mode == "normal":
            engine.evaluate(recovered=50, failed=50)
        else:
            engine.evaluate(recovered=50)
    assert len(engine.modes) - 1 <= 24


def test_the_hold_never_grows_beyond_its_limit() -> None:
    memory = DegradeMemory(wrong_steps_up=1000)
    assert hold_seconds(RULE.quiet_hold_seconds, RULE, memory) == RULE.longest_hold_seconds


def test_a_step_up_that_stands_sets_the_holds_back() -> None:
    engine = degraded()
    engine.run(RULE.quiet_hold_seconds // EVERY_SECONDS)
    engine.run(3, failed=50)
    engine.run(2 * RULE.quiet_hold_seconds // EVERY_SECONDS)
    assert engine.mode == "normal"
    engine.run(RULE.trial_seconds // EVERY_SECONDS, recovered=100)
    assert engine.memory.wrong_steps_up == 0
    assert engine.memory.stepped_up_at is None


def test_a_healed_disk_comes_back_to_normal_and_stays() -> None:
    engine = degraded("bypass")
    for _ in range(720):  # two hours
        engine.evaluate(recovered=100 if engine.mode in ("normal", "no_disk") else 0)
    assert engine.mode == "normal"
    assert engine.modes[-5:] == ["bypass", "full_only", "resident_only", "no_disk", "normal"]


def test_a_person_who_holds_the_mode_is_never_overruled() -> None:
    engine = Simulated(mode="normal")
    assert set(engine.run(100, failed=50, held=True)) == {"held_by_person"}
    assert engine.mode == "normal"


def test_counting_starts_afresh_when_the_hold_ends() -> None:
    engine = Simulated()
    engine.run(100, failed=50, held=True)
    assert engine.run(3, failed=50) == ["failing", "failing", "step_down"]


def test_only_samples_since_the_last_step_are_asked_for() -> None:
    engine = degraded()
    assert samples_since(RULE, engine.memory, engine.now) == engine.now
    later = engine.now + dt.timedelta(hours=1)
    assert samples_since(RULE, engine.memory, later) == later - dt.timedelta(seconds=RULE.window_seconds)


def test_memory_survives_the_store_and_unknown_keys() -> None:
    engine = degraded()
    kept = dict(engine.evaluate().memory) | {"recorded": {"decision": "quiet"}}
    assert read_memory(kept) == engine.memory


def test_a_verdict_carries_what_it_was_made_from() -> None:
    verdict = Simulated().evaluate(recovered=30, failed=10)
    assert verdict.inputs["failure_rate"] == pytest.approx(0.25)
    assert verdict.inputs["recovered"] == 30
    assert verdict.why
