"""Runs policies: facts -> verdict -> apply -> record, one transaction an engine, so that a decision is of one moment.

`policy_runs` gets a row when a run acted, was asked for by a person, failed, or decided otherwise than the run before;
and, while nothing changes, one heartbeat row every 15 minutes. So it grows with what happens, not with the clock.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from controlplane.auth import Role
from controlplane.clock import Clock, utc_now
from controlplane.errors import BadRequest, ControlPlaneError, Unavailable
from controlplane.settings import Settings
from controlplane.steering.deed import Deed
from controlplane.steering.leader import newest_epoch
from controlplane.steering.policies import boots, facts, registry
from controlplane.steering.policies.apply import apply
from controlplane.steering.policies.deciders import DECIDERS
from controlplane.steering.policies.kinds import OF_THE_STORE, Standing
from controlplane.steering.policies.proposals import QUIET, IssueCommand, SampleCurve, SetMode, Verdict, as_json
from controlplane.steering.policies.settle import settle
from controlplane.steering.policies.trim import trim_history
from controlplane.steering.wakeups import WAKEUPS
from controlplane.store.models import Engine, Policy, PolicyRun
from controlplane.store.session import Store

log = logging.getLogger(__name__)

HEARTBEAT = dt.timedelta(minutes=15)
RECORD = "recorded"  # key of what was last recorded, beside the policy's own memory of an engine
WHOLE = "(policy)"  # in place of an engine in a policy's memory; no engine id has brackets
FAILED = "failed"
ASK_AGAIN = frozenset({"schedule", "engine_start"})
STEPS = frozenset({"step_down", "step_up", "probe_up"})
LONGEST_ERROR = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Occasion:
    """Why a run happens now: `trigger` is schedule, alert, engine_start or manual; `epoch` fences what it issues."""

    trigger: str
    dry_run: bool = False
    epoch: int | None = None
    event: str = ""  # what the alert or step was, in words
    only_engine: str | None = None
    boot_id: str = ""  # of an engine that has started again: remembered with the decision about it


@dataclass(frozen=True, slots=True)
class Ground:
    """What every run stands on."""

    store: Store
    settings: Settings
    clock: Clock = utc_now


def run_policy(ground: Ground, name: str, occasion: Occasion) -> list[dict[str, Any]]:
    """Runs one policy on every live engine of its scope; a paused one only by hand. Returns each engine's decision.

    Raises NotFound for an unknown policy. A rule that fails on one engine is recorded as that engine's run, and
    parameters that cannot be used as the policy's; neither keeps the others from theirs.
    """
    now = ground.clock()
    try:
        with ground.store.read() as session:
            standing = registry.standing_of(registry.find(session, name))
            covered = [engine for engine in facts.live_engines(session, now) if standing.scope.covers(engine)]
            nearer = _nearer(session, standing, covered, now)
    except BadRequest as error:  # a row that somebody wrote past the write door
        return [_record_failure(ground, name, None, occasion, error)]
    if standing.rests(now) and occasion.trigger != "manual":
        return []
    if standing.kind in OF_THE_STORE:
        return [_run_of_the_store(ground, name, occasion)]
    chosen = [engine.id for engine in covered if occasion.only_engine in (None, engine.id)]
    runs = [_run_engine(ground, standing, engine, occasion) for engine in chosen if engine not in nearer]
    runs += [_outranked(ground, standing, engine, nearer[engine], occasion) for engine in chosen if engine in nearer]
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
    return run_policy(ground, name, Occasion(trigger="manual", dry_run=dry_run, event=deed.reason))


def run_on_alert(ground: Ground, rule: str, occasion: Occasion) -> None:
    """Runs every warm-up that waits for this alert rule and is not paused."""
    with ground.store.read() as session:
        policies = session.scalars(select(Policy).where(Policy.kind == "warmup").order_by(Policy.name)).all()
    for policy in policies:
        if rule in policy.parameters.get("on_alerts", ()):
            run_policy(ground, policy.name, occasion)


def _warm_after_steps(ground: Ground, runs: Sequence[Mapping[str, Any]], occasion: Occasion) -> None:
    """A step of the degrade policy is what an alert of the failure rate is about, and does not wait for it."""
    for run in runs:
        if run["decision"] in STEPS:
            event = f"degrade: {run['inputs'].get('why', run['decision'])}"
            after = Occasion(trigger="alert", epoch=occasion.epoch, event=event, only_engine=run["engine"])
            run_on_alert(ground, "recovery_failure_rate", after)


def _nearer(session: Session, standing: Standing, covered: Sequence[Engine], now: dt.datetime) -> dict[str, str]:
    """For each engine that another degrade policy is nearer to: that policy. Two must not pull at one mode."""
    if standing.kind != "degrade":
        return {}
    others = [p for p in session.scalars(select(Policy).where(Policy.kind == "degrade")) if p.name != standing.name]
    rivals = []
    for policy in others:
        try:
            rival = registry.standing_of(policy)
        except BadRequest:  # it cannot run, so it is near to nothing
            continue
        rivals += [] if rival.rests(now) else [rival]
    mine = (-standing.scope.nearness, standing.name)
    found: dict[str, str] = {}
    for engine in covered:
        ranks = sorted((-rival.scope.nearness, rival.name) for rival in rivals if rival.scope.covers(engine))
        if ranks and ranks[0] < mine:
            found[engine.id] = ranks[0][1]
    return found


def _outranked(ground: Ground, standing: Standing, engine_id: str, by: str, occasion: Occasion) -> dict[str, Any]:
    why = f"policy {by} is nearer to this engine, and two must not steer one mode"
    run = _run(standing.name, engine_id, occasion, ground.clock())
    run.inputs, run.decision = {"why": why, "outranked_by": by}, "outranked"
    with ground.store.write() as session:
        _record(session, run)
    return run_view(run)


def _run_of_the_store(ground: Ground, name: str, occasion: Occasion) -> dict[str, Any]:
    try:
        return run_view(
            trim_history(
                ground.store,
                ground.settings,
                name,
                trigger=occasion.trigger,
                dry_run=occasion.dry_run,
                now=ground.clock(),
            )
        )
    except Unavailable:
        raise
    except Exception as error:
        return _record_failure(ground, name, None, occasion, error)


def _run_engine(ground: Ground, standing: Standing, engine_id: str, occasion: Occasion) -> dict[str, Any]:
    now = ground.clock()
    try:
        if occasion.trigger in ASK_AGAIN and (quiet := _decide_in_vain(ground, standing, engine_id, occasion, now)):
            return quiet
        with ground.store.write() as session:
            run = _decide_and_apply(session, standing, engine_id, occasion, now)
            session.flush()
            seen = run_view(run)
    except Unavailable:
        raise  # no decision was made, and none can be recorded
    except Exception as error:
        # A rule is the operator's to tune, and a wrong one may raise anything: it ends this run and no other.
        return _record_failure(ground, standing.name, engine_id, occasion, error)
    if seen["did"]:
        WAKEUPS.notify(engine_id)
    return seen


def _decide_in_vain(
    ground: Ground, standing: Standing, engine_id: str, occasion: Occasion, now: dt.datetime
) -> dict[str, Any] | None:
    """The decision, if nothing is to be done, remembered or recorded: of a hundred engines, that of nearly all, and the
    writers need not wait for it. None: decide again, in the transaction that acts."""
    with ground.store.read() as session:
        kept = registry.find(session, standing.name).memory.get(engine_id, {})
        verdict = DECIDERS[standing.kind](session, standing, engine_id, kept, now)
    run = _run_of(verdict, standing, engine_id, occasion, now)
    news = verdict.proposals or _kept_after(verdict, kept) != kept or _worth_recording(kept.get(RECORD, {}), run)
    ends_a_start = occasion.boot_id and not verdict.waits
    return None if news or ends_a_start else run_view(run)


def _decide_and_apply(
    session: Session, standing: Standing, engine_id: str, occasion: Occasion, now: dt.datetime
) -> PolicyRun:
    policy = registry.find(session, standing.name, lock=True)
    # What was refused a moment ago is not asked for again.
    settle(session, now, PolicyRun.policy == standing.name, PolicyRun.engine_id == engine_id)
    kept = dict(policy.memory.get(engine_id, {}))
    verdict = DECIDERS[standing.kind](session, standing, engine_id, kept, now)
    epoch = newest_epoch(session) if occasion.epoch is None else occasion.epoch
    run = _run_of(verdict, standing, engine_id, occasion, now)
    if occasion.dry_run:
        session.add(run)
        return run
    for proposal in verdict.proposals:
        if isinstance(proposal, SetMode | IssueCommand | SampleCurve):
            did = apply(session, standing.name, proposal, epoch=epoch, now=now)
            run.did = {key: [*run.did.get(key, ()), *did.get(key, ())] for key in {*run.did, *did}}
    run.settled_at = None if run.did else now
    _remember(policy, engine_id, _kept_after(verdict, kept))
    if occasion.boot_id and not verdict.waits:
        boots.remember(policy, engine_id, occasion.boot_id)
    _record(session, run)
    return run


def _kept_after(verdict: Verdict, kept: Mapping[str, Any]) -> dict[str, Any]:
    return {**verdict.memory, RECORD: kept.get(RECORD, {})}


def _run_of(verdict: Verdict, standing: Standing, engine_id: str, occasion: Occasion, now: dt.datetime) -> PolicyRun:
    run = _run(standing.name, engine_id, occasion, now)
    run.inputs |= {**verdict.inputs, "why": verdict.why, "parameters": asdict(standing.rule)}
    run.decision = verdict.decision
    run.proposed = [as_json(proposal) for proposal in verdict.proposals]
    return run


def _run(name: str, engine_id: str | None, occasion: Occasion, now: dt.datetime) -> PolicyRun:
    return PolicyRun(
        policy=name,
        engine_id=engine_id,
        at=now,
        trigger=occasion.trigger,
        dry_run=occasion.dry_run,
        inputs={"event": occasion.event} if occasion.event else {},
        decision="",
        proposed=[],
        did={},
        changed={},
        settled_at=now,
        error=None,
    )


def _record(session: Session, run: PolicyRun) -> None:
    """Adds the run if it says something new, and remembers that it was said."""
    policy = registry.find(session, run.policy, lock=True)
    where = run.engine_id or WHOLE
    kept = dict(policy.memory.get(where, {}))
    if _worth_recording(kept.get(RECORD, {}), run):
        session.add(run)
        if not run.dry_run:
            _remember(policy, where, {**kept, RECORD: {"decision": run.decision, "at": run.at.timestamp()}})


def _worth_recording(last: Mapping[str, Any], run: PolicyRun) -> bool:
    loud = any(one["propose"] not in QUIET for one in run.proposed)
    if loud or run.trigger == "manual" or last.get("decision") != run.decision:
        return True
    return run.at.timestamp() - float(last.get("at", 0.0)) >= HEARTBEAT.total_seconds()


def _remember(policy: Policy, where: str, memory: dict[str, Any]) -> None:
    # A new dict: SQLAlchemy does not see changes inside a JSON value.
    policy.memory = {**policy.memory, where: memory}


def _record_failure(
    ground: Ground, name: str, engine_id: str | None, occasion: Occasion, error: Exception
) -> dict[str, Any]:
    said = str(error) if isinstance(error, ControlPlaneError) else f"{type(error).__name__}: {error}"
    log.warning("policy %s failed on %s: %s", name, engine_id or "the store", said)
    if not isinstance(error, ControlPlaneError):
        log.error("the failure of policy %s is a bug", name, exc_info=error)
    run = _run(name, engine_id, occasion, ground.clock())
    run.decision, run.error = FAILED, said[:LONGEST_ERROR]
    with ground.store.write() as session:
        if engine_id is not None and occasion.boot_id:
            boots.remember(registry.find(session, name, lock=True), engine_id, occasion.boot_id)
        _record(session, run)
    return run_view(run)


def run_view(run: PolicyRun) -> dict[str, Any]:
    """A run as JSON. `id` is None when the run said nothing new and was not recorded."""
    return {
        "id": run.id,
        "policy": run.policy,
        "engine": run.engine_id,
        "at": run.at.isoformat(),
        "trigger": run.trigger,
        "dry_run": run.dry_run,
        "decision": run.decision,
        "inputs": run.inputs,
        "proposed": run.proposed,
        "did": run.did,
        "changed": run.changed,
        "error": run.error,
    }
