"""Evaluates every rule on every subject: moves alerts along their states, keeps silences, queues what is to be told."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from controlplane.auth import Role
from controlplane.errors import BadRequest, Conflict, NotFound
from controlplane.steering.alerts import outbox, silences
from controlplane.steering.alerts.health import Health
from controlplane.steering.alerts.readings import CONTROL_PLANE, Scene, read
from controlplane.steering.alerts.rule import AlertRule, rule_of
from controlplane.steering.alerts.state import FIRING, PENDING, RESOLVED, step
from controlplane.steering.deed import Deed
from controlplane.store.models import Alert, AlertRuleRow, Engine, Silence

log = logging.getLogger(__name__)

GONE_AFTER = dt.timedelta(days=1)  # nobody waits for an engine gone for so long


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """An alert that began to fire or was resolved in this evaluation."""

    alert_id: int
    rule: str
    engine_id: str
    state: str
    severity: str
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One evaluation's view of one rule on one subject."""

    rule: AlertRule
    subject: str
    group: str

    @property
    def facets(self) -> silences.Facets:
        """What silences match."""
        namespace = self.rule.scope.namespace or ""
        return silences.Facets(rule=self.rule.name, engine=self.subject, group=self.group, namespace=namespace)


def evaluate(session: Session, now: dt.datetime, health: Health | None = None) -> list[Change]:
    """One pass over all rules; returns what began to fire or was resolved. Bounded by engines x rules."""
    rules = _rules(session)
    engines = _engines(session, now)
    groups = {engine.id: engine.group_name for engine in engines}
    health = health or Health()
    open_alerts = select(Alert).where(Alert.state.in_((PENDING, FIRING)))
    alerts = {(alert.rule, alert.engine_id): alert for alert in session.scalars(open_alerts)}
    quiet = silences.active(session, now)
    changes: list[Change] = []
    seen: set[tuple[str, str]] = set()
    for rule in rules:
        covered = [engine for engine in engines if rule.scope.covers(engine)]
        scene = Scene(engines=covered, health=health, now=now)
        values = read(session, rule.expression, scene, rule.scope.namespace)
        for subject in [*scene.ids, CONTROL_PLANE]:
            key = (rule.name, subject)
            seen.add(key)
            standing = Standing(rule=rule, subject=subject, group=groups.get(subject, ""))
            if subject in values or key in alerts:
                changes += _move(session, standing, alerts.get(key), values.get(subject), quiet, now)
    left = [alert for key, alert in alerts.items() if key not in seen]
    return changes + [change for alert in left for change in _end(session, alert, now)]


def _rules(session: Session) -> list[AlertRule]:
    rules = []
    for row in session.scalars(select(AlertRuleRow).where(AlertRuleRow.enabled.is_(True)).order_by(AlertRuleRow.name)):
        try:
            rules.append(rule_of(row))
        except BadRequest as error:  # written past the write door, or by a newer version
            log.warning("alert rule %s cannot be evaluated: %s", row.name, error)
    return rules


def _engines(session: Session, now: dt.datetime) -> Sequence[Engine]:
    """Those somebody waits for: neither gone for a day, nor gone with a goodbye, nor taken off the lists."""
    query = select(Engine).where(
        Engine.last_seen_at > now - GONE_AFTER, Engine.left_at.is_(None), Engine.forgotten_at.is_(None)
    )
    return session.scalars(query.order_by(Engine.id)).all()


def _move(
    session: Session,
    standing: Standing,
    alert: Alert | None,
    value: float | None,
    quiet: Sequence[Silence],
    now: dt.datetime,
) -> list[Change]:
    rule = standing.rule
    before = alert.state if alert else None
    after = step(before, alert.since if alert else None, value, rule.limits, now)
    if after is None:
        if alert is not None:
            session.delete(alert)
        return []
    if alert is None:
        alert = _begin(session, standing, value or 0.0, now)
        if rule.limits.for_seconds == 0:  # it need not wait, not even for the next evaluation
            after = step(PENDING, now, value, rule.limits, now) or PENDING
    if value is not None:
        alert.value, alert.threshold = value, rule.limits.above
    alert.severity, alert.runbook = rule.severity, rule.link
    if value is not None and after != RESOLVED:
        alert.summary = rule.summary(value)
    changed = after != alert.state
    alert.state = after
    if changed and after == FIRING:
        alert.fired_at = now
    if changed and after == RESOLVED and value is not None:  # an alert without a value is as it was
        alert.resolved_at = now
        alert.summary = f"{rule.title}: over, {rule.said(value)}"
    _tell(session, alert, standing, quiet, now)
    return [_change(alert)] if changed and after in (FIRING, RESOLVED) else []


def _begin(session: Session, standing: Standing, value: float, now: dt.datetime) -> Alert:
    alert = Alert(
        rule=standing.rule.name,
        engine_id=standing.subject,
        state=PENDING,
        severity=standing.rule.severity,
        summary=standing.rule.summary(value),
        runbook=standing.rule.link,
        value=value,
        threshold=standing.rule.limits.above,
        since=now,
    )
    session.add(alert)
    session.flush()
    return alert


def _tell(session: Session, alert: Alert, standing: Standing, quiet: Sequence[Silence], now: dt.datetime) -> None:
    """Queues what receivers have not been told yet. What a silence kept back is told at its end, if it still fires."""
    silence = next((one for one in quiet if silences.matches(one.matchers, standing.facets)), None)
    alert.silence_id = silence.id if silence and alert.state != RESOLVED else None
    namespace = standing.rule.scope.namespace or ""
    if alert.state == FIRING and alert.notified_at is None and silence is None:
        outbox.enqueue(session, alert, now, group=standing.group, namespace=namespace)
        alert.notified_at = now
    elif alert.state == RESOLVED and alert.notified_at is not None:
        outbox.enqueue(session, alert, now, group=standing.group, namespace=namespace)


def _end(session: Session, alert: Alert, now: dt.datetime) -> list[Change]:
    """Ends an alert that nothing is evaluated for any more: its rule was taken away, or its engine has left."""
    if alert.state == PENDING:
        session.delete(alert)
        return []
    alert.state, alert.resolved_at, alert.silence_id = RESOLVED, now, None
    alert.summary = f"{alert.rule}: over, its rule is off or {alert.engine_id} has left"
    if alert.notified_at is not None:
        outbox.enqueue(session, alert, now, group="", namespace="")
    return [_change(alert)]


def _change(alert: Alert) -> Change:
    return Change(
        alert_id=alert.id,
        rule=alert.rule,
        engine_id=alert.engine_id,
        state=alert.state,
        severity=alert.severity,
        summary=alert.summary,
    )


def acknowledge(session: Session, deed: Deed, alert_id: int) -> Alert:
    """Notes who looks after an alert, and why. Raises NotFound, and Conflict when it is over."""
    deed.must_be(Role.OPERATOR)
    alert = session.get(Alert, alert_id)
    if alert is None:
        raise NotFound("alert_unknown", f"There is no alert {alert_id}.", "`kvdeck alert list` shows them.")
    if alert.state == RESOLVED:
        raise Conflict("alert_resolved", f"Alert {alert_id} is already over.", "There is nothing to look after.")
    before = {"acknowledged_by": alert.acknowledged_by}
    alert.acknowledged_by, alert.acknowledged_at = deed.principal.name, deed.now
    alert.acknowledged_reason = deed.reason
    after = {"acknowledged_by": alert.acknowledged_by, "rule": alert.rule, "engine": alert.engine_id}
    deed.record(session, "acknowledge_alert", str(alert_id), before=before, after=after)
    return alert
