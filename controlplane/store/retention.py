"""Forgets what is old, in bounded steps: each step is one short transaction, so writers never wait long for it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, exists, or_, select, tuple_
from sqlalchemy.engine import CursorResult
from sqlalchemy.orm import Session

from controlplane.clock import floor_hour
from controlplane.settings import Settings
from controlplane.store.base import Base
from controlplane.store.models import (
    Alert,
    Audit,
    AuditFloor,
    CapPrediction,
    Command,
    CurveSample,
    HistoryGap,
    InboundAlert,
    LossHour,
    LossRollup,
    MetricHour,
    MetricPoint,
    MetricRollup,
    Notification,
    PolicyRefusal,
    PolicyRun,
    Prefix,
    PrefixVersion,
    RequestHour,
    RequestRecord,
    RequestRollup,
    Silence,
    Token,
    ValidationFailure,
    ValidationHour,
    ValidationRollup,
)
from controlplane.store.session import Store

STEP_ROWS = 2000
FLOOR_ID = 1
UNSEEN_KEPT = dt.timedelta(days=1)  # prefixes of version 0, whose first transition never came
REFUSALS_KEPT = dt.timedelta(days=2)  # after their back-off: refused again within that, it doubles
SESSION_TOKENS_KEPT = dt.timedelta(days=7)  # after their end, so that "this token ended" can still be said


@dataclass(frozen=True, slots=True)
class Rule:
    """Which rows of a table are forgotten. `lets_go_before`: the audit's floor, which must rise first."""

    model: type[Base]
    condition: ColumnElement[bool]
    lets_go_before: dt.datetime | None = None

    @property
    def table(self) -> str:
        """The table's name."""
        return str(self.model.__tablename__)


def rules(settings: Settings, now: dt.datetime) -> list[Rule]:
    """What is forgotten at `now`. The newest version of a prefix that is still held stays, however old."""
    points = now - dt.timedelta(hours=settings.keep_metric_points_hours)
    requests = now - dt.timedelta(hours=settings.keep_requests_hours)
    rollups = now - dt.timedelta(days=settings.keep_rollups_days)
    hours = floor_hour(rollups)  # an hour stays as long as its last minute does
    history = now - dt.timedelta(days=settings.keep_history_days)
    audit = now - dt.timedelta(days=settings.keep_audit_days)
    return [
        Rule(MetricPoint, MetricPoint.at < points),
        Rule(RequestRecord, RequestRecord.at < requests),
        Rule(MetricRollup, MetricRollup.minute < rollups),
        Rule(RequestRollup, RequestRollup.minute < rollups),
        Rule(LossRollup, LossRollup.minute < rollups),
        Rule(ValidationRollup, ValidationRollup.minute < rollups),
        Rule(ValidationFailure, ValidationFailure.at < history),
        Rule(MetricHour, MetricHour.hour < hours),
        Rule(RequestHour, RequestHour.hour < hours),
        Rule(LossHour, LossHour.hour < hours),
        Rule(ValidationHour, ValidationHour.hour < hours),
        Rule(PrefixVersion, and_(PrefixVersion.at < history, ~_is_what_a_prefix_is_now())),
        Rule(HistoryGap, HistoryGap.closed_at < history),
        Rule(Prefix, _gone(history, now)),
        Rule(PolicyRun, PolicyRun.at < history),
        Rule(PolicyRefusal, PolicyRefusal.until < now - REFUSALS_KEPT),
        Rule(CurveSample, CurveSample.at < now - dt.timedelta(days=settings.keep_curves_days)),
        Rule(CapPrediction, CapPrediction.at < audit),
        Rule(Command, Command.finished_at < audit),
        Rule(Alert, Alert.resolved_at < audit),
        Rule(Silence, Silence.until < audit),
        Rule(Notification, Notification.ended_at < history),
        Rule(InboundAlert, InboundAlert.done_at < history),
        Rule(Audit, Audit.at < audit, lets_go_before=audit),
        Rule(Token, Token.expires_at < now - SESSION_TOKENS_KEPT),
    ]


def forget_old(
    store: Store, settings: Settings, now: dt.datetime, *, step_rows: int = STEP_ROWS, most_steps: int = 200
) -> dict[str, int]:
    """Delete what is older than the settings keep; rows deleted by table. Stops after `most_steps` transactions."""
    deleted: dict[str, int] = {}
    steps = 0
    for rule in rules(settings, now):
        while steps < most_steps:
            steps += 1
            with store.write_beside() as session:
                count = forget_step(session, rule, step_rows)
            deleted[rule.table] = deleted.get(rule.table, 0) + count
            if count < step_rows:
                break
    return deleted


def forget_step(session: Session, rule: Rule, rows: int) -> int:
    """Delete at most `rows` rows of one rule; how many it were."""
    if rule.lets_go_before is not None:
        _raise_audit_floor(session, rule.lets_go_before)
    keys: Sequence[Any] = list(rule.model.__table__.primary_key)
    chosen = select(*keys).where(rule.condition).limit(rows)
    key = keys[0] if len(keys) == 1 else tuple_(*keys)
    statement = delete(rule.model).where(key.in_(chosen)).execution_options(synchronize_session=False)
    result = session.execute(statement)
    return result.rowcount if isinstance(result, CursorResult) else 0


def _raise_audit_floor(session: Session, before: dt.datetime) -> None:
    floor = session.get(AuditFloor, FLOOR_ID)
    if floor is None:
        session.add(AuditFloor(id=FLOOR_ID, before=before))
    elif floor.before < before:
        floor.before = before
    session.flush()


def _is_what_a_prefix_is_now() -> ColumnElement[bool]:
    return exists().where(
        Prefix.engine_id == PrefixVersion.engine_id,
        Prefix.prefix_id == PrefixVersion.prefix_id,
        Prefix.life == PrefixVersion.life,
        Prefix.version == PrefixVersion.version,
        Prefix.state != "EVICTED",
    )


def _gone(history: dt.datetime, now: dt.datetime) -> ColumnElement[bool]:
    evicted = and_(Prefix.state == "EVICTED", Prefix.changed_at < history)
    return or_(evicted, and_(Prefix.version == 0, Prefix.served_at < now - UNSEEN_KEPT))
