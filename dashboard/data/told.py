"""Alerts, and who is told of them."""

from __future__ import annotations

from controlplane.clock import utc_now
from controlplane.steering.alerts import receivers
from controlplane.store import queries, queries_alerts
from controlplane.store.query_types import Engines
from dashboard.caching import kept
from dashboard.data.opened import store


@kept()
def alerts(role: str, engine: Engines) -> list[queries.AlertView]:
    """The newest alerts."""
    del role
    with store().read() as session:
        return queries.list_alerts(session, engine_id=engine, limit=200)


@kept(most=8)
def telling(role: str) -> tuple[list[receivers.ReceiverView], list[queries_alerts.SilenceView]]:
    """Who is told of alerts and how that goes, and the silences that hold."""
    del role
    with store().read() as session:
        return receivers.list_receivers(session), queries_alerts.list_silences(session, utc_now())


@kept()
def undelivered(role: str) -> list[queries_alerts.NotificationView]:
    """The newest notifications that failed or still wait, newest first."""
    del role
    with store().read() as session:
        return [
            row
            for status in ("failed", "pending")
            for row in queries_alerts.list_notifications(session, status=status, limit=20)
        ]
