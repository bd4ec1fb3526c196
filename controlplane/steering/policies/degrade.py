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

from controlplane.steering.limits import MODES
from controlplane.steering.policies.proposals import SetMode, Verdict

MOST_DOUBLINGS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DegradeRule:
    """The parameters of the policy. Rates are shares of recoveries, 0 to 1; evaluations are runs of the policy."""

    window_seconds: int = 60
    minimum_samples: int = 10
    step_down_above: float = 0.2
    step_up_below: float = 0.05
    down_evaluations: int = 3
    up_evaluations: int = 6
    cool_down_seconds: int = 30  # also the shortest hold before a measured step up
    quiet_hold_seconds: int = 180  # the shortest silence before a probe step up
    trial_seconds: int = 300
    longest_hold_seconds: int = 3600
    lowest_mode: str = "bypass"


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
    if facts.held_by_person:
        rested = DegradeMemory(last_step_at=now, last_evidence_at=now, wrong_steps_up=memory.wrong_steps_up)
        return _verdict("held_by_person", f"a person holds mode {facts.mode}", facts, rested)
    memory = _count(rule, facts, memory, now)
    level = MODES.index(facts.mode)
    since_step = now - memory.last_step_at
    if memory.bad_in_a_row >= rule.down_evaluations and since_step >= rule.cool_down_seconds:
        if level < MODES.index(rule.lowest_mode):
            return _step_down(facts, memory, MODES[level + 1], now)
        return _verdict(
            "at_lowest_mode", f"recoveries fail in {facts.mode}, and no lower mode is allowed", facts, memory
        )
    if level > 0 and _may_step_up(rule, facts, memory, now):
        return _step_up(facts, memory, MODES[level - 1], now)
    return _verdict(*_waiting(rule, facts, memory, now), facts, memory)


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


def _step_down(facts: DegradeFacts, memory: DegradeMemory, mode: str, now: float) -> Verdict:
    wrong = memory.wrong_steps_up + (1 if memory.stepped_up_at is not None else 0)
    stepped = DegradeMemory(last_step_at=now, last_evidence_at=now, wrong_steps_up=wrong)
    why = f"{facts.not_recovered} of {facts.samples} recoveries failed or were late: {facts.mode} -> {mode}"
    return _verdict("step_down", why, facts, stepped, SetMode(engine_id=facts.engine_id, mode=mode, reason=why))


def _step_up(facts: DegradeFacts, memory: DegradeMemory, mode: str, now: float) -> Verdict:
    measured = memory.good_in_a_row > 0
    stepped = DegradeMemory(
        last_step_at=now, last_evidence_at=now, stepped_up_at=now, wrong_steps_up=memory.wrong_steps_up
    )
    seen = f"{facts.recovered} of {facts.samples} recoveries worked" if measured else "a quiet hold passed: a probe"
    why = f"{seen}: {facts.mode} -> {mode}"
    decision = "step_up" if measured else "probe_up"
    return _verdict(decision, why, facts, stepped, SetMode(engine_id=facts.engine_id, mode=mode, reason=why))


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
    decision: str, why: str, facts: DegradeFacts, memory: DegradeMemory, proposal: SetMode | None = None
) -> Verdict:
    inputs = {
        "mode": facts.mode,
        "recovered": facts.recovered,
        "not_recovered": facts.not_recovered,
        "failure_rate": facts.failure_rate,
        "bad_in_a_row": memory.bad_in_a_row,
        "good_in_a_row": memory.good_in_a_row,
        "wrong_steps_up": memory.wrong_steps_up,
    }
    return Verdict(
        decision=decision,
        why=why,
        inputs=inputs,
        proposals=(proposal,) if proposal else (),
        memory=asdict(memory),
    )
