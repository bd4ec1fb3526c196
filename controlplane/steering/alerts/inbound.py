"""Alerts that start policies, each once: our own, and those from outside as Alertmanager sends them (version 4).

An alert from outside says which policy by its label `kvdeck_policy`, and may say on which engine by `kvdeck_engine`. It
is taken as a row and run by the leader's next sweep: so it needs no leader to be taken, and has the leader's epoch when
it acts.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from controlplane.auth import Role
from controlplane.errors import ControlPlaneError, NotFound, Unavailable
from controlplane.steering.alerts.evaluation import Change
from controlplane.steering.deed import Deed
from controlplane.steering.policies.runner import Ground, Occasion, run_policy
from controlplane.store.models import Engine, InboundAlert, Policy

POLICY_LABEL, ENGINE_LABEL = "kvdeck_policy", "kvdeck_engine"
TAKE_AGAIN_AFTER = dt.timedelta(minutes=2)  # the leader that took it has died, or its database was away
MOST_AT_ONCE = 50
LONGEST_EVENT = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideAlert:
    """One alert of a payload, as far as we look at it."""

    status: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    starts_at: dt.datetime
    fingerprint: str

    @property
    def key(self) -> str:
        """What makes two deliveries one: the same alert, begun at the same moment, for the same policy and engine."""
        who = self.fingerprint or json.dumps(dict(self.labels), sort_keys=True)
        parts = (who, self.starts_at.isoformat(), self.labels.get(POLICY_LABEL), self.labels.get(ENGINE_LABEL))
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @property
    def event(self) -> str:
        """In words, for the record."""
        name = self.labels.get("alertname", "without a name")
        said = self.annotations.get("summary") or self.annotations.get("description") or ""
        return f"outside alert {name}{f': {said}' if said else ''}"[:LONGEST_EVENT]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """What became of a payload: policies that will run, alerts heard before, alerts that ask for nothing, mistakes."""

    will_run: list[str]
    repeated: int
    ignored: int
    refused: list[str]


def accept(session: Session, deed: Deed, alerts: Sequence[OutsideAlert]) -> Accepted:
    """Takes what asks for a policy. Raises NotFound if nothing else was in the payload than policies there are none of.

    A repeated delivery is counted and starts nothing. A resolved alert starts nothing.
    """
    deed.must_be(Role.OPERATOR)
    will_run: list[str] = []
    refused: list[str] = []
    repeated = ignored = 0
    for alert in alerts:
        policy = alert.labels.get(POLICY_LABEL)
        if policy is None or alert.status != "firing":
            ignored += 1
        elif problem := _problem(session, policy, alert.labels.get(ENGINE_LABEL)):
            refused.append(problem)
        elif not _take(session, alert, policy, deed.now):
            repeated += 1
        else:
            will_run.append(policy)
            deed.record(session, "run_policy", policy, after={"event": alert.event})
    if refused and len(refused) == len(alerts):
        raise NotFound(
            "inbound_unknown", " ".join(sorted(set(refused))), f"Correct the labels {POLICY_LABEL} and {ENGINE_LABEL}."
        )
    return Accepted(will_run=will_run, repeated=repeated, ignored=ignored, refused=sorted(set(refused)))


def _problem(session: Session, policy: str, engine: str | None) -> str:
    if session.get(Policy, policy) is None:
        return f"There is no policy {policy!r}."
    if engine is not None and session.get(Engine, engine) is None:
        return f"There is no engine {engine!r}."
    return ""


def _take(session: Session, alert: OutsideAlert, policy: str, now: dt.datetime) -> bool:
    standing = session.get(InboundAlert, alert.key, with_for_update=True)
    if standing is not None:
        standing.deliveries += 1
        return False
    session.add(
        InboundAlert(
            key=alert.key,
            policy=policy,
            engine_id=alert.labels.get(ENGINE_LABEL),
            event=alert.event,
            received_at=now,
            deliveries=1,
            outcome={},
        )
    )
    session.flush()
    return True


def take_change(session: Session, change: Change, now: dt.datetime) -> list[str]:
    """Our own alerts start policies the same way: a warm-up whose `on_alerts` names the rule runs, once a change.

    In the transaction of the change itself, so that neither is there without the other. Returns the policies.
    """
    waiting = []
    for policy in session.scalars(select(Policy).where(Policy.kind == "warmup").order_by(Policy.name)):
        if change.rule not in policy.parameters.get("on_alerts", ()):
            continue
        parts = (change.alert_id, change.state, policy.name)
        session.add(
            InboundAlert(
                key=hashlib.sha256(json.dumps(parts).encode()).hexdigest(),
                policy=policy.name,
                engine_id=change.engine_id,
                event=f"alert {change.rule} is {change.state}: {change.summary}"[:LONGEST_EVENT],
                received_at=now,
                deliveries=1,
                outcome={},
            )
        )
        waiting.append(policy.name)
    return waiting


def run_waiting(ground: Ground, epoch: int) -> int:
    """Runs what was taken and waits, as the leader; returns how many."""
    now = ground.clock()
    waiting = (InboundAlert.done_at.is_(None),)
    free = or_(InboundAlert.taken_at.is_(None), InboundAlert.taken_at <= now - TAKE_AGAIN_AFTER)
    query = select(InboundAlert).where(*waiting, free).order_by(InboundAlert.received_at).limit(MOST_AT_ONCE)
    with ground.store.read() as session:
        if not session.scalars(query).first():
            return 0
    with ground.store.write() as session:
        taken = session.scalars(query.with_for_update(skip_locked=True)).all()
        for row in taken:
            row.taken_at = now
    for row in taken:
        outcome = _run(ground, row, epoch)
        with ground.store.write() as session:
            if (done := session.get(InboundAlert, row.key)) is not None:
                done.done_at, done.outcome = ground.clock(), outcome
    return len(taken)


def _run(ground: Ground, row: InboundAlert, epoch: int) -> dict[str, Any]:
    occasion = Occasion(trigger="alert", epoch=epoch, event=row.event, only_engine=row.engine_id)
    try:
        runs = run_policy(ground, row.policy, occasion)
    except Unavailable:
        raise  # nothing was decided: it stays taken, and is taken again
    except ControlPlaneError as error:
        return {"error": str(error)}
    return {"runs": [{"engine": run["engine"], "decision": run["decision"], "did": run["did"]} for run in runs]}
