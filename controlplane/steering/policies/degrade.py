"""When to step down the ladder of modes because recoveries fail, and when to dare a step up. Pure functions.

The rule, once for each evaluation of one engine:

1. A person holds the mode: do nothing. The end of the hold counts as a step.
2. Only recoveries since the last step count, and at most those of the last `window_seconds`. At least `minimum_samples`
   of them are evidence; fewer are silence, which confirms nothing and breaks every row.
3. `down_evaluations` bad in a row (rate above `step_down_above`) and `cool_down_seconds` since the last step: down.
4. `up_evaluations` good in a row (rate below `step_up_below`) and the hold has passed: up. Rates between the two limits
   break both rows (hysteresis).
5. Lower modes make no recoveries, so nothing can be measured there: silence for the whole quiet hold is a probe step
   up.
6. What must not flap: a step down within `trial_seconds` of a step up says that the step up was wrong, and doubles both
   holds, up to `longest_hold_seconds`. A step up that stands for its trial sets them back.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from controlplane.steering.limits import LADDER
from controlplane.steering.parameters import Choice, Number, Whole, knob
from controlplane.steering.policies.proposals import SetMode, Verdict

MOST_DOUBLINGS = 16


DAY_SECONDS = 86_400


def _seconds(default: int, meaning: str, least: int = 0) -> Any:
    return knob(default, Whole(least=least, most=DAY_SECONDS, unit="seconds", meaning=meaning))


def _count_of(default: int, unit: str, meaning: str) -> Any:
    return knob(default, Whole(least=1, most=1_000_000, unit=unit, meaning=meaning))


def _rate(default: float, meaning: str) -> Any:
    return knob(default, Number(least=0, most=1, unit="as a share of recoveries", meaning=meaning))


@dataclass(frozen=True, slots=True, kw_only=True)
class DegradeRule:
    """Steps down the ladder of modes while recoveries fail, and up again. An evaluation is one run of the policy."""

    window_seconds: int = _seconds(60, "Only recoveries of the last so many seconds count.", least=1)
    minimum_samples: int = _count_of(10, "recoveries", "Fewer are silence: they confirm nothing and break every row.")
    step_down_above: float = _rate(0.2, "A failure rate above this is bad.")
    step_up_below: float = _rate(0.05, "A failure rate below this is good; between the two it is neither.")
    down_evaluations: int = _count_of(3, "evaluations", "So many bad ones in a row step down.")
    up_evaluations: int = _count_of(6, "evaluations", "So many good ones in a row step up.")
    cool_down_seconds: int = _seconds(30, "The shortest time between steps, and before a measured step up.")
    quiet_hold_seconds: int = _seconds(180, "The shortest silence before a probe step up.")
    trial_seconds: int = _seconds(300, "A step down so soon after a step up says that the step up was wrong.")
    longest_hold_seconds: int = _seconds(3600, "Wrong steps up double the holds, up to this.")
    lowest_mode: str = knob("bypass", Choice(of=LADDER[1:], meaning="Never lower than this."))

    def problems(self) -> list[str]:
        """What is wrong with the parameters together."""
        if self.step_up_below <= self.step_down_above:
            return []
        return ["step_up_below must not be above step_down_above, or the policy would flap"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DegradeFacts:
    """What is known of one engine now. Samples are recoveries since `samples_since(...)`."""

    engine_id: str
    now: dt.datetime
    mode: str  # desired, as it counts now
    held_by_person: bool
    recovered: int
    not_recovered: int  # failed and late

    @property
    def samples(self) -> int:
        """All recoveries tried."""
        return self.recovered + self.not_recovered

    @property
    def failure_rate(self) -> float | None:
        """Failed and late over all; None without any."""
        return self.not_recovered / self.samples if self.samples else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DegradeMemory:
    """What is remembered of one engine between runs. Times are Unix seconds."""

    bad_in_a_row: int = 0
    good_in_a_row: int = 0
    last_step_at: float = 0.0
    last_evidence_at: float = 0.0  # also set by a step: silence is counted from there
    stepped_up_at: float | None = None  # the step up that is on trial
    wrong_steps_up: int = 0


def read_memory(kept: Mapping[str, Any]) -> DegradeMemory:
    """The memory as `policies.memory` keeps it; keys of other versions are ignored."""
    known = {field.name for field in fields(DegradeMemory)}
    return DegradeMemory(**{key: value for key, value in kept.items() if key in known})


def samples_since(rule: DegradeRule, memory: DegradeMemory, now: dt.datetime) -> dt.datetime:
    """Recoveries before this moment say nothing of the mode that is on now, or are too old."""
    return max(now - dt.timedelta(seconds=rule.window_seconds), dt.datetime.fromtimestamp(memory.last_step_at, dt.UTC))


def decide(rule: DegradeRule, facts: DegradeFacts, memory: DegradeMemory) -> Verdict:
    """One evaluation. The verdict carries at most one `SetMode`, one rung away, and the memory for the next run."""
    now = facts.now.timestamp()
    memory = _forgive(rule, memory, now)
    if facts.held_by_person or facts.mode not in LADDER:  # a drain is a person's, held or not
        rested = DegradeMemory(last_step_at=now, last_evidence_at=now, wrong_steps_up=memory.wrong_steps_up)
        return _verdict("held_by_person", f"a person holds mode {facts.mode}", rule, facts, memory, rested)
    memory = _count(rule, facts, memory, now)
    level = LADDER.index(facts.mode)
    since_step = now - memory.last_step_at
    if memory.bad_in_a_row >= rule.down_evaluations and since_step >= rule.cool_down_seconds:
        if level < LADDER.index(rule.lowest_mode):
            return _step_down(rule, facts, memory, LADDER[level + 1], now)
        why = f"recoveries fail in {facts.mode}, and no lower mode is allowed"
        return _verdict("at_lowest_mode", why, rule, facts, memory, memory)
    if level > 0 and _may_step_up(rule, facts, memory, now):
        return _step_up(rule, facts, memory, LADDER[level - 1], now)
    decision, why = _waiting(rule, facts, memory, now)
    return _verdict(decision, why, rule, facts, memory, memory)


def hold_seconds(shortest: int, rule: DegradeRule, memory: DegradeMemory) -> float:
    """A hold after the doublings for steps up that were wrong."""
    return float(min(shortest * 2 ** min(memory.wrong_steps_up, MOST_DOUBLINGS), rule.longest_hold_seconds))


def _forgive(rule: DegradeRule, memory: DegradeMemory, now: float) -> DegradeMemory:
    if memory.stepped_up_at is None or now - memory.stepped_up_at < rule.trial_seconds:
        return memory
    return replace(memory, stepped_up_at=None, wrong_steps_up=0)


def _count(rule: DegradeRule, facts: DegradeFacts, memory: DegradeMemory, now: float) -> DegradeMemory:
    rate = facts.failure_rate
    if rate is None or facts.samples < rule.minimum_samples:
        first_look = memory.last_evidence_at == 0.0
        return replace(
            memory, bad_in_a_row=0, good_in_a_row=0, last_evidence_at=now if first_look else memory.last_evidence_at
        )
    bad, good = rate > rule.step_down_above, rate < rule.step_up_below
    return replace(
        memory,
        bad_in_a_row=memory.bad_in_a_row + 1 if bad else 0,
        good_in_a_row=memory.good_in_a_row + 1 if good else 0,
        last_evidence_at=now,
    )


def _may_step_up(rule: DegradeRule, facts: DegradeFacts, memory: DegradeMemory, now: float) -> bool:
    measured = memory.good_in_a_row >= rule.up_evaluations
    if measured:
        return now - memory.last_step_at >= hold_seconds(rule.cool_down_seconds, rule, memory)
    silent = facts.samples < rule.minimum_samples
    return silent and now - memory.last_evidence_at >= hold_seconds(rule.quiet_hold_seconds, rule, memory)


def _step_down(rule: DegradeRule, facts: DegradeFacts, memory: DegradeMemory, mode: str, now: float) -> Verdict:
    wrong = memory.wrong_steps_up + (1 if memory.stepped_up_at is not None else 0)
    stepped = DegradeMemory(last_step_at=now, last_evidence_at=now, wrong_steps_up=wrong)
    why = f"{facts.not_recovered} of {facts.samples} recoveries failed or were late: {facts.mode} -> {mode}"
    step = SetMode(engine_id=facts.engine_id, mode=mode, reason=why)
    return _verdict("step_down", why, rule, facts, memory, stepped, step)


def _step_up(rule: DegradeRule, facts: DegradeFacts, memory: DegradeMemory, mode: str, now: float) -> Verdict:
    measured = memory.good_in_a_row > 0
    stepped = DegradeMemory(
        last_step_at=now, last_evidence_at=now, stepped_up_at=now, wrong_steps_up=memory.wrong_steps_up
    )
    seen = f"{facts.recovered} of {facts.samples} recoveries worked" if measured else "a quiet hold passed: a probe"
    why = f"{seen}: {facts.mode} -> {mode}"
    decision = "step_up" if measured else "probe_up"
    step = SetMode(engine_id=facts.engine_id, mode=mode, reason=why)
    return _verdict(decision, why, rule, facts, memory, stepped, step)


def _waiting(rule: DegradeRule, facts: DegradeFacts, memory: DegradeMemory, now: float) -> tuple[str, str]:
    if facts.samples < rule.minimum_samples:
        if facts.mode == "normal":
            return "too_few_samples", f"{facts.samples} of at least {rule.minimum_samples} recoveries"
        left = hold_seconds(rule.quiet_hold_seconds, rule, memory) - (now - memory.last_evidence_at)
        return "quiet", f"no evidence in {facts.mode}; a probe step up in {max(left, 0):.0f} s"
    if memory.bad_in_a_row:
        return "failing", f"bad for {memory.bad_in_a_row} evaluations; {rule.down_evaluations} step down"
    if memory.good_in_a_row:
        return "recovering" if facts.mode != "normal" else "well", f"good for {memory.good_in_a_row} evaluations"
    return "between_limits", "neither bad enough to step down nor good enough to step up"


def _verdict(
    decision: str,
    why: str,
    rule: DegradeRule,
    facts: DegradeFacts,
    counted: DegradeMemory,
    memory: DegradeMemory,
    proposal: SetMode | None = None,
) -> Verdict:
    """`counted` is the memory the decision was made from, a step's own memory begins its rows anew."""
    now = facts.now.timestamp()
    inputs = {
        "mode": facts.mode,
        "samples": facts.samples,
        "recovered": facts.recovered,
        "not_recovered": facts.not_recovered,
        "failure_rate": facts.failure_rate,
        "samples_since": samples_since(rule, counted, facts.now).isoformat(),
        "bad_in_a_row": counted.bad_in_a_row,
        "good_in_a_row": counted.good_in_a_row,
        "wrong_steps_up": counted.wrong_steps_up,
        "since_last_step_seconds": round(now - counted.last_step_at, 1) if counted.last_step_at else None,
        "silent_seconds": round(now - counted.last_evidence_at, 1) if counted.last_evidence_at else None,
    }
    return Verdict(
        decision=decision,
        why=why,
        inputs=inputs,
        proposals=(proposal,) if proposal else (),
        memory=asdict(memory),
    )
