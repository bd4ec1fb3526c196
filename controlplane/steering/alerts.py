"""Alert rules as data, and the evaluation that moves an alert pending -> firing -> resolved."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from controlplane.auth import Role
from controlplane.errors import Conflict, NotFound
from controlplane.steering.deed import Deed
from controlplane.steering.policies import facts
from controlplane.store.models import Alert, Engine, HistoryGap

PENDING, FIRING, RESOLVED = "pending", "firing", "resolved"
RATE_WINDOW = dt.timedelta(minutes=2)
RATE_MINIMUM_SAMPLES = 5
DROPPED_WINDOW = dt.timedelta(minutes=5)
GONE_AFTER = dt.timedelta(days=1)

Read = Callable[[Session, Engine, dt.datetime], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRule:
    """Fires when the value stays above `threshold` for `for_seconds`, resolves at `clear_at` or below.

    `read` gives the value now, or None when nothing can be said: then the alert stays as it is.
    """

    name: str
    title: str
    threshold: float
    clear_at: float
    for_seconds: int
    unit: str
    read: Read


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """An alert that began to fire or was resolved in this evaluation."""

    rule: str
    engine_id: str
    state: str
    summary: str


def _recovery_failure_rate(session: Session, engine: Engine, now: dt.datetime) -> float | None:
    seen = facts.recoveries(session, engine.id, now - RATE_WINDOW)
    tried = seen.recovered + seen.not_recovered
    if tried == 0:
        return 0.0  # nothing is recovered, so nothing fails: a degraded mode ends the alert
    return seen.not_recovered / tried if tried >= RATE_MINIMUM_SAMPLES else None


def _silent_seconds(_session: Session, engine: Engine, now: dt.datetime) -> float | None:
    if engine.left_at is not None:
        return 0.0  # it said goodbye
    silent = max(0.0, (now - engine.last_seen_at).total_seconds())
    return silent if silent < GONE_AFTER.total_seconds() else 0.0  # nobody waits for an engine gone for a day


def _open_gaps(session: Session, engine: Engine, _now: dt.datetime) -> float | None:
    query = select(func.count()).where(HistoryGap.engine_id == engine.id, HistoryGap.closed_at.is_(None))
    return float(session.scalar(query) or 0)


def _dropped(session: Session, engine: Engine, now: dt.datetime) -> float | None:
    return sum(facts.growth_by_series(session, engine.id, "kvcache.telemetry.dropped", now - DROPPED_WINDOW).values())


def _fragmentation(session: Session, engine: Engine, _now: dt.datetime) -> float | None:
    return facts.fragmentation(session, engine.id)


RULES = (
    AlertRule(
        name="recovery_failure_rate",
        title="Recoveries fail",
        threshold=0.2,
        clear_at=0.05,
        for_seconds=20,
        unit="of recoveries in 2 minutes",
        read=_recovery_failure_rate,
    ),
    AlertRule(
        name="engine_silent",
        title="Engine is silent",
        threshold=15,
        clear_at=10,
        for_seconds=15,  # after a restart of the whole deck, its engines need a moment to speak again
        unit="s since its last word",
        read=_silent_seconds,
    ),
    AlertRule(
        name="history_gaps_open",
        title="History has gaps",
        threshold=0,
        clear_at=0,
        for_seconds=30,
        unit="gaps no snapshot has closed",
        read=_open_gaps,
    ),
    AlertRule(
        name="telemetry_dropped",
        title="Telemetry is dropped",
        threshold=0,
        clear_at=0,
        for_seconds=0,
        unit="records in 5 minutes",
        read=_dropped,
    ),
    AlertRule(
        name="fragmentation_high",
        title="Memory is fragmented",
        threshold=0.5,
        clear_at=0.4,
        for_seconds=300,
        unit="of the bytes of used slabs are free",
        read=_fragmentation,
    ),
)


def evaluate(session: Session, now: dt.datetime, rules: tuple[AlertRule, ...] = RULES) -> list[Change]:
    """Moves every alert of every engine; returns what began to fire or was resolved. Bounded by engines x rules."""
    standing = {
        (alert.rule, alert.engine_id): alert
        for alert in session.scalars(select(Alert).where(Alert.state.in_((PENDING, FIRING))))
    }
    changes = []
    for engine in session.scalars(select(Engine)):
        for rule in rules:
            value = rule.read(session, engine, now)
            if value is None:
                continue
            change = _move(session, rule, engine.id, standing.get((rule.name, engine.id)), value, now)
            changes += [change] if change else []
    return changes


def _move(
    session: Session, rule: AlertRule, engine_id: str, alert: Alert | None, value: float, now: dt.datetime
) -> Change | None:
    summary = f"{rule.title}: {value:.3g} {rule.unit}"
    if alert is None:
        if value <= rule.threshold:
            return None
        alert = Alert(
            rule=rule.name,
            engine_id=engine_id,
            state=PENDING,
            summary=summary,
            value=value,
            threshold=rule.threshold,
            since=now,
        )
        session.add(alert)
    alert.value = value
    if alert.state == PENDING:
        return _move_pending(session, rule, alert, summary, now)
    if value > rule.clear_at:
        alert.summary = summary
        return None
    alert.state, alert.resolved_at = RESOLVED, now
    return Change(rule=rule.name, engine_id=engine_id, state=RESOLVED, summary=f"{rule.title}: over, {value:.3g}")


def _move_pending(session: Session, rule: AlertRule, alert: Alert, summary: str, now: dt.datetime) -> Change | None:
    if alert.value <= rule.threshold:
        # It never fired, so nobody was told: nothing to keep.
        session.flush()
        session.delete(alert)
        return None
    alert.summary = summary
    if (now - alert.since).total_seconds() < rule.for_seconds:
        return None
    alert.state, alert.fired_at = FIRING, now
    return Change(rule=rule.name, engine_id=alert.engine_id, state=FIRING, summary=summary)


def acknowledge(session: Session, deed: Deed, alert_id: int) -> Alert:
    """Notes who looks after an alert. Raises NotFound, and Conflict when it is over."""
    deed.must_be(Role.OPERATOR)
    alert = session.get(Alert, alert_id)
    if alert is None:
        raise NotFound("alert_unknown", f"There is no alert {alert_id}.", "`kvdeck alert list` shows them.")
    if alert.state == RESOLVED:
        raise Conflict("alert_resolved", f"Alert {alert_id} is already over.", "There is nothing to look after.")
    before = {"acknowledged_by": alert.acknowledged_by}
    alert.acknowledged_by = deed.principal.name
    deed.record(session, "acknowledge_alert", str(alert_id), before=before, after=_after(alert))
    return alert


def _after(alert: Alert) -> dict[str, Any]:
    return {"acknowledged_by": alert.acknowledged_by, "rule": alert.rule, "engine": alert.engine_id}
