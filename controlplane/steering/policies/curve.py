"""Curve sampling: ask engines for their curves of hit rate against cap, as often as the policy runs. Pure."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from controlplane.steering.policies.proposals import SampleCurve, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveRule:
    """Asks every engine for its curves of hit rate against cap, and has what they foretold of new caps measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveFacts:
    """What is known of one engine now. `newest` is when its last curve came, None if none did; `samples` of it."""

    engine_id: str
    wanted: bool
    newest: dt.datetime | None
    samples: float


def decide(facts: CurveFacts) -> Verdict:
    """The engine brings its curve with the next heartbeat, unless it was asked already and has not come back yet."""
    inputs = {"newest": None if facts.newest is None else facts.newest.isoformat(), "samples": round(facts.samples)}
    if facts.wanted:
        return Verdict(decision="asked_already", why="the engine has not brought the last one yet", inputs=inputs)
    why = "its curve is due"
    return Verdict(
        decision="asked", why=why, inputs=inputs, proposals=(SampleCurve(engine_id=facts.engine_id, reason=why),)
    )
