"""Engines that have started again: the warm-ups that wait for it run, once a boot, when the snapshot has come.

A boot is remembered in the transaction of the decision about it (runner.py). So a start is never warmed twice, and none
is lost to a database that was away, to a warm command that the boot before left under way, or to a mode that forbids it
for now: it stays due for `START_LASTS`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from sqlalchemy import select
from sqlalchemy.orm import Session

from controlplane.errors import BadRequest
from controlplane.steering.policies import boots, facts, registry
from controlplane.steering.policies.runner import Ground, Occasion, run_policy
from controlplane.steering.policies.warmup import WarmupRule
from controlplane.store.models import Engine, Policy

START_LASTS = dt.timedelta(minutes=10)


def run_on_starts(ground: Ground, epoch: int) -> list[tuple[str, str]]:
    """Runs the warm-ups that are due for engines with a new boot; returns (policy, engine) of each run.

    A boot a policy never saw the like of (a new policy, a new engine), and one that waited for longer than
    `START_LASTS`, is remembered only.
    """
    with ground.store.read() as session:
        fresh = list(_fresh(session, ground))
    known = [(name, engine_id, boot_id) for name, engine_id, boot_id, is_due in fresh if not is_due]
    if known:
        with ground.store.write() as session:
            for name, engine_id, boot_id in known:
                boots.remember(registry.find(session, name, lock=True), engine_id, boot_id)
    due = [(name, engine_id, boot_id) for name, engine_id, boot_id, is_due in fresh if is_due]
    for name, engine_id, boot_id in due:
        event = f"engine {engine_id} has started again, with boot {boot_id}"
        occasion = Occasion(trigger="engine_start", epoch=epoch, event=event, only_engine=engine_id, boot_id=boot_id)
        run_policy(ground, name, occasion)
    return [(name, engine_id) for name, engine_id, _ in due]


def _fresh(session: Session, ground: Ground) -> Iterator[tuple[str, str, str, bool]]:
    """Boots that a policy does not know yet -> policy, engine, boot, and whether the policy is to run for it."""
    now = ground.clock()
    # Before its snapshot has come, the store tells of the boot before.
    engines = [engine for engine in facts.live_engines(session, now) if not engine.snapshot_wanted]
    for policy in _waiting(session, ground):
        scope = registry.standing_of(policy).scope
        for engine in engines:
            known = boots.of(policy, engine.id)
            if scope.covers(engine) and known != engine.boot_id:
                yield policy.name, engine.id, engine.boot_id, known is not None and _is_recent(engine, now)


def _is_recent(engine: Engine, now: dt.datetime) -> bool:
    return now - engine.registered_at <= START_LASTS


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
