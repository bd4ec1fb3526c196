"""What is watched and who is told: alert rules, silences, notifications."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from controlplane.errors import NotFound
from controlplane.store.models import Alert, AlertRuleRow, InboundAlert, Notification, Silence
from controlplane.store.queries_steering import AlertView
from controlplane.store.query_types import view


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRuleView:
    """One rule: above `above` for `for_seconds` it fires, at `resolve_at` or below it resolves."""

    name: str
    title: str
    kind: str
    parameters: dict[str, Any]
    above: float
    resolve_at: float
    for_seconds: int
    severity: str
    runbook: str
    scope: dict[str, Any]
    enabled: bool
    is_default: bool
    changed_at: dt.datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceView:
    """One silence. `holds`: whether it keeps anything quiet at the time of the read."""

    id: int
    matchers: dict[str, Any]
    created_at: dt.datetime
    until: dt.datetime
    actor: str
    reason: str
    removed_at: dt.datetime | None
    removed_by: str | None
    holds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationView:
    """One change of an alert for one receiver, and how far it got: pending, delivered, failed, dropped."""

    id: str
    receiver: str
    alert_id: int
    state: str
    status: str
    attempts: int
    next_at: dt.datetime
    last_error: str | None
    created_at: dt.datetime
    ended_at: dt.datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InboundView:
    """An alert that asked for a policy, how often it was delivered, and what came of it."""

    key: str
    policy: str
    engine_id: str | None
    event: str
    received_at: dt.datetime
    deliveries: int
    taken_at: dt.datetime | None
    done_at: dt.datetime | None
    outcome: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertDetail:
    """One alert, the rule it is of (None: removed since), and who was told."""

    alert: AlertView
    rule: AlertRuleView | None
    notifications: list[NotificationView]


def get_alert(session: Session, alert_id: int) -> AlertDetail:
    """One alert. Raises NotFound."""
    alert = session.get(Alert, alert_id)
    if alert is None:
        raise NotFound("alert_unknown", f"There is no alert {alert_id}.", "`kvdeck alert list --all` shows them.")
    rule = session.get(AlertRuleRow, alert.rule)
    return AlertDetail(
        alert=view(AlertView, alert),
        rule=view(AlertRuleView, rule) if rule else None,
        notifications=list_notifications(session, alert_id=alert_id),
    )


def list_alert_rules(session: Session) -> list[AlertRuleView]:
    """All rules, by name."""
    return [view(AlertRuleView, row) for row in session.scalars(select(AlertRuleRow).order_by(AlertRuleRow.name))]


def list_silences(
    session: Session, now: dt.datetime, *, everything: bool = False, limit: int = 100
) -> list[SilenceView]:
    """Silences that hold, newest first; `everything`: also those that are over."""
    query = select(Silence).order_by(Silence.id.desc()).limit(limit)
    if not everything:
        query = query.where(Silence.until > now, Silence.removed_at.is_(None))
    return [silence_view(row, now) for row in session.scalars(query)]


def silence_view(row: Silence, now: dt.datetime) -> SilenceView:
    """A silence as it is at `now`."""
    return view(SilenceView, row, holds=row.removed_at is None and row.until > now)


def list_notifications(
    session: Session,
    *,
    receiver: str | None = None,
    status: str | None = None,
    alert_id: int | None = None,
    limit: int = 100,
) -> list[NotificationView]:
    """Notifications, newest first."""
    query = select(Notification).order_by(Notification.created_at.desc(), Notification.id).limit(limit)
    wanted = ((Notification.receiver, receiver), (Notification.status, status), (Notification.alert_id, alert_id))
    for column, value in wanted:
        if value is not None:
            query = query.where(column == value)
    return [view(NotificationView, row) for row in session.scalars(query)]


def list_inbound(session: Session, *, limit: int = 100) -> list[InboundView]:
    """Alerts that asked for policies, newest first."""
    query = select(InboundAlert).order_by(InboundAlert.received_at.desc(), InboundAlert.key).limit(limit)
    return [view(InboundView, row) for row in session.scalars(query)]
