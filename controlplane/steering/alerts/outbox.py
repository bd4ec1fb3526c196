"""The queue of what receivers are to be told. It is rows of the store, written with the alert's own change.

So a restart loses nothing, and a change is queued for a receiver once: (receiver, alert, state) is a unique key.
"""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from controlplane.steering.alerts.rule import SEVERITIES
from controlplane.steering.alerts.state import FIRING, RESOLVED
from controlplane.store.models import Alert, Notification, Receiver

MOST_PENDING = 1000  # a receiver: one that is down for long must not fill the store
PENDING, DELIVERED, FAILED, DROPPED = "pending", "delivered", "failed", "dropped"


def enqueue(session: Session, alert: Alert, now: dt.datetime, *, group: str, namespace: str) -> int:
    """Queues the alert's state for every receiver that should hear of it; returns for how many.

    A resolution goes only to whoever was to be told of the firing.
    """
    queued = 0
    told = _told(session, alert) if alert.state == RESOLVED else None
    for receiver in session.scalars(select(Receiver).where(Receiver.enabled.is_(True)).order_by(Receiver.name)):
        severe_enough = SEVERITIES.index(alert.severity) >= SEVERITIES.index(receiver.least_severity)
        wanted = receiver.name in told if told is not None else severe_enough
        if wanted:
            session.add(_notification(session, receiver.name, alert, now, group=group, namespace=namespace))
            queued += 1
    return queued


def _told(session: Session, alert: Alert) -> set[str]:
    query = select(Notification.receiver).where(
        Notification.alert_id == alert.id, Notification.state == FIRING, Notification.status != DROPPED
    )
    return set(session.scalars(query))


def _notification(
    session: Session, receiver: str, alert: Alert, now: dt.datetime, *, group: str, namespace: str
) -> Notification:
    waiting = select(func.count()).where(Notification.receiver == receiver, Notification.status == PENDING)
    full = (session.scalar(waiting) or 0) >= MOST_PENDING
    notification_id = str(uuid.uuid4())
    return Notification(
        id=notification_id,
        receiver=receiver,
        alert_id=alert.id,
        state=alert.state,
        body=_body(notification_id, alert, group=group, namespace=namespace),
        status=DROPPED if full else PENDING,
        attempts=0,
        next_at=now,
        last_error=f"{MOST_PENDING} notifications waited already" if full else None,
        created_at=now,
        ended_at=now if full else None,
    )


def _body(notification_id: str, alert: Alert, *, group: str, namespace: str) -> dict[str, Any]:
    return {
        "version": "1",
        "id": notification_id,
        "alert": alert.id,
        "rule": alert.rule,
        "state": alert.state,
        "severity": alert.severity,
        "engine": alert.engine_id,
        "group": group or None,
        "namespace": namespace or None,
        "summary": alert.summary,
        "value": alert.value,
        "threshold": alert.threshold,
        "since": alert.since.isoformat(),
        "fired_at": alert.fired_at.isoformat() if alert.fired_at else None,
        "resolved_at": alert.resolved_at.isoformat() if alert.resolved_at else None,
        "runbook": alert.runbook,
    }
