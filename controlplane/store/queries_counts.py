"""How much there is of what people and policies did, by how it stands."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from controlplane.store.models import Alert, Command
from controlplane.store.queries_overview import OPEN_COMMANDS


@dataclass(frozen=True, slots=True, kw_only=True)
class SteeringCounts:
    """Commands by status, alerts by state, and when the oldest command that has not ended was given."""

    commands: dict[str, int]
    alerts: dict[str, int]
    oldest_open_command: dt.datetime | None


def steering_counts(session: Session) -> SteeringCounts:
    """Of all engines, as far as retention keeps them."""
    commands = select(Command.status, func.count()).group_by(Command.status)
    alerts = select(Alert.state, func.count()).group_by(Alert.state)
    oldest = select(func.min(Command.created_at)).where(Command.status.in_(OPEN_COMMANDS))
    return SteeringCounts(
        commands=dict(session.execute(commands).tuples().all()),
        alerts=dict(session.execute(alerts).tuples().all()),
        oldest_open_command=session.scalar(oldest),
    )
