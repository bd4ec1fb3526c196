"""The tables of alerts: rules, their states, silences, and who is told."""

from __future__ import annotations

import datetime as dt
from typing import Any

from sqlalchemy import Float, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from controlplane.store.base import Base, RowId


class AlertRuleRow(Base):
    """A rule: its value above `above` for `for_seconds` fires, and at `resolve_at` or below resolves."""

    __tablename__ = "alert_rules"
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    title: Mapped[str] = mapped_column(String(128))
    kind: Mapped[str] = mapped_column(String(32))
    parameters: Mapped[dict[str, Any]]
    above: Mapped[float] = mapped_column(Float)
    resolve_at: Mapped[float] = mapped_column(Float)
    for_seconds: Mapped[int]
    severity: Mapped[str] = mapped_column(String(16))
    runbook: Mapped[str] = mapped_column(String(256))
    scope: Mapped[dict[str, Any]]
    enabled: Mapped[bool]
    is_default: Mapped[bool]
    changed_at: Mapped[dt.datetime]


class Alert(Base):
    """A rule that is pending, firing or resolved on one subject: an engine, or the control plane itself."""

    __tablename__ = "alerts"
    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    rule: Mapped[str] = mapped_column(String(64))
    engine_id: Mapped[str] = mapped_column(String(64))
    state: Mapped[str] = mapped_column(String(16), index=True)
    severity: Mapped[str] = mapped_column(String(16), default="warning", server_default="warning")
    summary: Mapped[str] = mapped_column(Text)
    runbook: Mapped[str] = mapped_column(String(256), default="", server_default="")
    value: Mapped[float] = mapped_column(Float)
    threshold: Mapped[float] = mapped_column(Float)
    since: Mapped[dt.datetime]
    fired_at: Mapped[dt.datetime | None]
    resolved_at: Mapped[dt.datetime | None]
    acknowledged_by: Mapped[str | None] = mapped_column(String(128))
    acknowledged_at: Mapped[dt.datetime | None]
    acknowledged_reason: Mapped[str | None] = mapped_column(Text)
    silence_id: Mapped[int | None]  # the silence that keeps it quiet now
    notified_at: Mapped[dt.datetime | None]  # when its firing was queued for the receivers


class Silence(Base):
    """Nobody is told of the alerts it matches until it ends. They go on being evaluated and shown."""

    __tablename__ = "silences"
    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    matchers: Mapped[dict[str, Any]]  # of "rule", "engine", "group", "namespace": value; all must match
    created_at: Mapped[dt.datetime]
    until: Mapped[dt.datetime] = mapped_column(index=True)
    actor: Mapped[str] = mapped_column(String(128))
    reason: Mapped[str] = mapped_column(Text)
    removed_at: Mapped[dt.datetime | None]
    removed_by: Mapped[str | None] = mapped_column(String(128))


class Receiver(Base):
    """A webhook that is told of alerts. The secret signs what is sent, so it is kept as it is and never read out."""

    __tablename__ = "receivers"
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    url: Mapped[str] = mapped_column(Text)
    secret: Mapped[str] = mapped_column(String(256))
    least_severity: Mapped[str] = mapped_column(String(16))
    timeout_seconds: Mapped[int]
    enabled: Mapped[bool]
    changed_at: Mapped[dt.datetime]


class Notification(Base):
    """One change of one alert for one receiver: a queue that outlives the process, and the record of delivery."""

    __tablename__ = "notifications"
    id: Mapped[str] = mapped_column(String(36), primary_key=True)  # sent as the idempotency id
    receiver: Mapped[str] = mapped_column(String(64))
    alert_id: Mapped[int]
    state: Mapped[str] = mapped_column(String(16))  # of the alert: firing, resolved
    body: Mapped[dict[str, Any]]
    status: Mapped[str] = mapped_column(String(16))  # pending, delivered, failed, dropped
    attempts: Mapped[int]
    next_at: Mapped[dt.datetime]
    last_error: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[dt.datetime] = mapped_column(index=True)
    ended_at: Mapped[dt.datetime | None]
    __table_args__ = (
        UniqueConstraint("receiver", "alert_id", "state"),
        Index("ix_notifications_due", "status", "next_at"),
    )


class InboundAlert(Base):
    """An alert from outside that asks for a policy: taken once, however often it comes, then run by the leader."""

    __tablename__ = "inbound_alerts"
    key: Mapped[str] = mapped_column(String(64), primary_key=True)  # SHA-256 of what makes it one: see inbound.py
    policy: Mapped[str] = mapped_column(String(64))
    engine_id: Mapped[str | None] = mapped_column(String(64))
    event: Mapped[str] = mapped_column(Text)
    received_at: Mapped[dt.datetime] = mapped_column(index=True)
    deliveries: Mapped[int]
    taken_at: Mapped[dt.datetime | None]
    done_at: Mapped[dt.datetime | None] = mapped_column(index=True)
    outcome: Mapped[dict[str, Any]]
