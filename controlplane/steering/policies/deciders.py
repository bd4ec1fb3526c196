"""For each kind of policy: read its facts, ask its pure rule."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy.orm import Session

from controlplane.steering.policies import curve, degrade, facts, upkeep, warmup
from controlplane.steering.policies.kinds import Standing
from controlplane.steering.policies.proposals import Verdict

Decider = Callable[[Session, Standing, str, Mapping[str, Any], dt.datetime], Verdict]


def _degrade(
    session: Session, standing: Standing, engine_id: str, kept: Mapping[str, Any], now: dt.datetime
) -> Verdict:
    assert isinstance(standing.rule, degrade.DegradeRule)
    memory = degrade.read_memory(kept)
    mode, held = facts.mode_of(session, engine_id, now)
    seen = facts.recoveries(session, engine_id, degrade.samples_since(standing.rule, memory, now))
    known = degrade.DegradeFacts(
        engine_id=engine_id,
        now=now,
        mode=mode,
        held_by_person=held,
        recovered=seen.recovered,
        not_recovered=seen.not_recovered,
    )
    return degrade.decide(standing.rule, known, memory)


def _warmup(session: Session, standing: Standing, engine_id: str, kept: Mapping[str, Any], now: dt.datetime) -> Verdict:
    assert isinstance(standing.rule, warmup.WarmupRule)
    mode, _ = facts.mode_of(session, engine_id, now)
    candidates = facts.warm_candidates(
        session, engine_id, now, namespace=standing.scope.namespace, labels=standing.rule.labels
    )
    known = warmup.WarmupFacts(
        engine_id=engine_id,
        now=now,
        mode=mode,
        in_flight=facts.has_live_command(session, engine_id, "warm"),
        candidates=candidates,
    )
    return warmup.decide(standing.rule, known, kept)


def _upkeep(
    session: Session, standing: Standing, engine_id: str, _kept: Mapping[str, Any], now: dt.datetime
) -> Verdict:
    match standing.rule:
        case upkeep.CompactRule() as rule:
            in_flight = facts.has_live_command(session, engine_id, "compact")
            ratio = facts.fragmentation(session, engine_id)
            known = upkeep.UpkeepFacts(engine_id=engine_id, in_flight=in_flight, fragmentation=ratio)
            return upkeep.decide_compact(rule, known)
        case upkeep.ScrubRule() as rule:
            in_flight = facts.has_live_command(session, engine_id, "scrub")
            return upkeep.decide_scrub(rule, upkeep.UpkeepFacts(engine_id=engine_id, in_flight=in_flight))
        case upkeep.CompressIdleRule() as rule:
            known = _idle_facts(session, standing, engine_id, "compress", ("FULL",), rule.idle_seconds, now)
            return upkeep.decide_compress(rule, known)
        case upkeep.OffloadIdleRule() as rule:
            states = ("FULL", "COMPRESSED")
            known = _idle_facts(session, standing, engine_id, "offload", states, rule.idle_seconds, now)
            return upkeep.decide_offload(rule, known)
    raise AssertionError(f"{standing.kind} is no upkeep")


def _idle_facts(
    session: Session,
    standing: Standing,
    engine_id: str,
    command: str,
    states: tuple[str, ...],
    idle_seconds: int,
    now: dt.datetime,
) -> upkeep.UpkeepFacts:
    idle = facts.idle_prefixes(
        session,
        engine_id,
        states,
        now - dt.timedelta(seconds=idle_seconds),
        namespace=standing.scope.namespace,
        refused_to=standing.name,
        now=now,
    )
    return upkeep.UpkeepFacts(
        engine_id=engine_id,
        in_flight=facts.has_live_command(session, engine_id, command),
        idle_prefixes=idle,
        backing_off=facts.backing_off(session, engine_id, standing.name, now),
    )


def _curve(
    session: Session, _standing: Standing, engine_id: str, _kept: Mapping[str, Any], _now: dt.datetime
) -> Verdict:
    return curve.decide(facts.curve_facts(session, engine_id))


DECIDERS: Mapping[str, Decider] = {
    "degrade": _degrade,
    "warmup": _warmup,
    "compact": _upkeep,
    "scrub": _upkeep,
    "compress_idle": _upkeep,
    "offload_idle": _upkeep,
    "curve_sampling": _curve,
}
