"""Engines that have started again: the warm-ups that wait for it run, once a boot, when the snapshot has come."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from controlplane.errors import BadRequest
from controlplane.steering.policies import facts, registry
from controlplane.steering.policies.runner import Ground, Occasion, run_policy
from controlplane.steering.policies.warmup import WarmupRule
from controlplane.store.models import Engine, Policy

BOOTS = "(boots)"  # key in a policy's memory: engine -> the boot it was last seen with; no engine id has brackets


def run_on_starts(ground: Ground, epoch: int) -> list[tuple[str, str]]:
    """Runs the warm-ups that are due for engines with a new boot; returns (policy, engine) of each run.

    The boot is remembered before the run, so that a start is never warmed twice. A boot a policy never saw the like of
    (a new policy, a new engine) is remembered only: there is no history of it.
    """
    with ground.store.read() as session:
        may_start = _due(session, ground)
    if not may_start:
        return []
    with ground.store.write() as session:
        due = _take(session, ground)
    for name, engine_id, boot_id in due:
        event = f"engine {engine_id} has started again, with boot {boot_id}"
        run_policy(ground, name, Occasion(trigger="engine_start", epoch=epoch, event=event, only_engine=engine_id))
    return [(name, engine_id) for name, engine_id, _ in due]


def _due(session: Session, ground: Ground) -> bool:
    engines = _known_engines(session, ground)
    return any(_new_boots(policy, engines) for policy in _waiting(session, ground))


def _take(session: Session, ground: Ground) -> list[tuple[str, str, str]]:
    engines = _known_engines(session, ground)
    due = []
    for waiting in _waiting(session, ground):
        policy = registry.find(session, waiting.name, lock=True)
        seen = dict(policy.memory.get(BOOTS, {}))
        fresh = _new_boots(policy, engines)
        due += [(policy.name, engine.id, engine.boot_id) for engine in fresh if engine.id in seen]
        if fresh:
            policy.memory = {**policy.memory, BOOTS: seen | {engine.id: engine.boot_id for engine in fresh}}
    return due


def _waiting(session: Session, ground: Ground) -> list[Policy]:
    waiting = []
    for policy in session.scalars(select(Policy).where(Policy.kind == "warmup").order_by(Policy.name)):
        try:
            standing = registry.standing_of(policy)
        except BadRequest:  # its scheduled run records that
            continue
        assert isinstance(standing.rule, WarmupRule)
        if standing.rule.on_engine_start and not standing.rests(ground.clock()):
            waiting.append(policy)
    return waiting


def _known_engines(session: Session, ground: Ground) -> list[Engine]:
    """Those whose snapshot has come: before it, the store tells of the boot before."""
    return [engine for engine in facts.live_engines(session, ground.clock()) if not engine.snapshot_wanted]


def _new_boots(policy: Policy, engines: list[Engine]) -> list[Engine]:
    scope = registry.standing_of(policy).scope
    seen = policy.memory.get(BOOTS, {})
    return [engine for engine in engines if scope.covers(engine) and seen.get(engine.id) != engine.boot_id]
