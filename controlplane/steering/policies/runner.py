"""Runs policies: facts -> verdict -> apply -> record, one transaction an engine, so that a decision is of one moment.

`policy_runs` gets a row when a run acted, was asked for by a person, failed, or decided otherwise than the run before;
and, while nothing changes, one heartbeat row every 15 minutes. So it grows with what happens, not with the clock.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from controlplane.auth import Role
from controlplane.clock import Clock, utc_now
from controlplane.errors import ControlPlaneError
from controlplane.settings import Settings
from controlplane.steering.deed import Deed
from controlplane.steering.leader import newest_epoch
from controlplane.steering.policies import facts, registry
from controlplane.steering.policies.apply import apply
from controlplane.steering.policies.deciders import DECIDERS
from controlplane.steering.policies.proposals import IssueCommand, SetMode, as_json
from controlplane.steering.policies.trim import trim_history
from controlplane.steering.wakeups import WAKEUPS
from controlplane.store.models import Policy, PolicyRun
from controlplane.store.session import Store

log = logging.getLogger(__name__)

HEARTBEAT = dt.timedelta(minutes=15)
RECORD = "recorded"  # key of what was last recorded, beside the policy's own memory of an engine
STEPS = frozenset({"step_down", "step_up", "probe_up"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Occasion:
    """Why a run happens now: `trigger` is schedule, alert or manual; `epoch` fences what it issues."""

    trigger: str
    dry_run: bool = False
    epoch: int | None = None
    event: str = ""  # what the alert or step was, in words
    only_engine: str | None = None


@dataclass(frozen=True, slots=True)
class Ground:
    """What every run stands on."""

    store: Store
    settings: Settings
    clock: Clock = utc_now


def run_policy(ground: Ground, name: str, occasion: Occasion) -> list[dict[str, Any]]:
    """Runs one policy on every live engine; a paused one only by hand. Returns what was decided, engine by engine.

    Raises NotFound for an unknown policy and BadRequest for parameters that cannot be used. One engine's failure is
    recorded as its run and does not keep the others from theirs.
    """
    with ground.store.read() as session:
        standing = registry.standing_of(registry.find(session, name))
        engines = facts.live_engines(session, ground.clock())
    if standing.paused and occasion.trigger != "manual":
        return []
    if standing.kind == "retention":
        return [run_view(_trim(ground, name, occasion))]
    chosen = [engine for engine in engines if occasion.only_engine in (None, engine)]
    runs = [_run_engine(ground, standing, engine, occasion) for engine in chosen]
    if standing.kind == "degrade" and not occasion.dry_run:
        _warm_after_steps(ground, runs, occasion)
    return runs


def run_now(ground: Ground, deed: Deed, name: str, *, dry_run: bool) -> list[dict[str, Any]]:
    """A run that a person asked for; audited unless it is dry."""
    deed.must_be(Role.OPERATOR)
    if not dry_run:
        with ground.store.write() as session:
            registry.find(session, name)
            deed.record(session, "run_policy", name)
    return run_policy(ground, name, Occasion(trigger="manual", dry_run=dry_run))


def run_kind(ground: Ground, kind: str, occasion: Occasion) -> None:
    """Runs every policy of a kind that is not paused."""
    query = select(Policy.name).where(Policy.kind == kind, Policy.paused.is_(False))
    with ground.store.read() as session:
        names = session.scalars(query).all()
    for name in names:
        run_policy(ground, name, occasion)


def _warm_after_steps(ground: Ground, runs: Sequence[Mapping[str, Any]], occasion: Occasion) -> None:
    for run in runs:
        if run["decision"] in STEPS:
            event = f"degrade: {run['inputs'].get('why', run['decision'])}"
            after = Occasion(trigger="alert", epoch=occasion.epoch, event=event, only_engine=run["engine"])
            run_kind(ground, "warmup", after)


def _trim(ground: Ground, name: str, occasion: Occasion) -> PolicyRun:
    return trim_history(
        ground.store,
        ground.settings,
        name,
        trigger=occasion.trigger,
        dry_run=occasion.dry_run,
        now=ground.clock(),
    )


def _run_engine(ground: Ground, standing: registry.Standing, engine_id: str, occasion: Occasion) -> dict[str, Any]:
    now = ground.clock()
    try:
        with ground.store.write() as session:
            run = _decide_and_apply(session, standing, engine_id, occasion, now)
    except ControlPlaneError as error:
        log.warning("policy %s failed on %s: %s", standing.name, engine_id, error)
        return _record_failure(ground.store, standing, engine_id, occasion, str(error), now)
    if run["outcome"]:
        WAKEUPS.notify(engine_id)
    return run


def _decide_and_apply(
    session: Session, standing: registry.Standing, engine_id: str, occasion: Occasion, now: dt.datetime
) -> dict[str, Any]:
    policy = registry.find(session, standing.name)
    kept = dict(policy.memory.get(engine_id, {}))
    verdict = DECIDERS[standing.kind](session, standing, engine_id, kept, now)
    epoch = newest_epoch(session) if occasion.epoch is None else occasion.epoch
    outcome: dict[str, Any] = {}
    if not occasion.dry_run:
        for proposal in verdict.proposals:
            if isinstance(proposal, SetMode | IssueCommand):
                outcome |= apply(session, standing.name, proposal, epoch=epoch, now=now)
    inputs = {**verdict.inputs, "why": verdict.why} | ({"event": occasion.event} if occasion.event else {})
    run = PolicyRun(
        policy=standing.name,
        engine_id=engine_id,
        at=now,
        trigger=occasion.trigger,
        dry_run=occasion.dry_run,
        inputs=inputs,
        decision=verdict.decision,
        proposed=[as_json(proposal) for proposal in verdict.proposals],
        outcome=outcome,
        error=None,
    )
    recorded = _worth_recording(kept.get(RECORD, {}), run, now)
    if recorded:
        session.add(run)
    if not occasion.dry_run:
        last = {"decision": run.decision, "at": now.timestamp()} if recorded else kept.get(RECORD, {})
        _remember(policy, engine_id, {**verdict.memory, RECORD: last})
    return run_view(run)


def _worth_recording(last: Mapping[str, Any], run: PolicyRun, now: dt.datetime) -> bool:
    if run.proposed or run.trigger == "manual" or last.get("decision") != run.decision:
        return True
    return now.timestamp() - float(last.get("at", 0.0)) >= HEARTBEAT.total_seconds()


def _remember(policy: Policy, engine_id: str, memory: dict[str, Any]) -> None:
    # A new dict: SQLAlchemy does not see changes inside a JSON value.
    policy.memory = {**policy.memory, engine_id: memory}


def _record_failure(
    store: Store, standing: registry.Standing, engine_id: str, occasion: Occasion, error: str, now: dt.datetime
) -> dict[str, Any]:
    with store.write() as session:
        policy = registry.find(session, standing.name)
        kept = dict(policy.memory.get(engine_id, {}))
        run = PolicyRun(
            policy=standing.name,
            engine_id=engine_id,
            at=now,
            trigger=occasion.trigger,
            dry_run=occasion.dry_run,
            inputs={"event": occasion.event} if occasion.event else {},
            decision="failed",
            proposed=[],
            outcome={},
            error=error,
        )
        if _worth_recording(kept.get(RECORD, {}), run, now):
            session.add(run)
            _remember(policy, engine_id, {**kept, RECORD: {"decision": "failed", "at": now.timestamp()}})
    return run_view(run)


def run_view(run: PolicyRun) -> dict[str, Any]:
    """A run as JSON."""
    return {
        "policy": run.policy,
        "engine": run.engine_id,
        "at": run.at.isoformat(),
        "trigger": run.trigger,
        "dry_run": run.dry_run,
        "decision": run.decision,
        "inputs": run.inputs,
        "proposed": run.proposed,
        "outcome": run.outcome,
        "error": run.error,
    }
