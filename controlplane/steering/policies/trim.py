"""The retention policy: asks the store to forget what is past its time."""

from __future__ import annotations

import datetime as dt
from typing import Any

from controlplane.settings import Settings
from controlplane.steering.policies.proposals import TrimHistory, as_json
from controlplane.store.models import PolicyRun
from controlplane.store.retention import forget_old
from controlplane.store.session import Store


def trim_history(
    store: Store, settings: Settings, name: str, *, trigger: str, dry_run: bool, now: dt.datetime
) -> PolicyRun:
    """One bounded round; recorded if something was forgotten or a person asked. A dry one forgets nothing."""
    deleted = {} if dry_run else {table: rows for table, rows in forget_old(store, settings, now).items() if rows}
    why = "history past its retention" if deleted or dry_run else "nothing is past its retention"
    run = PolicyRun(
        policy=name,
        engine_id=None,
        at=now,
        trigger=trigger,
        dry_run=dry_run,
        inputs=_limits(settings) | {"why": why},
        decision="trim" if deleted or dry_run else "nothing_to_trim",
        proposed=[as_json(TrimHistory(reason=why))] if deleted or dry_run else [],
        did={"deleted_rows": deleted} if deleted else {},
        changed={},
        settled_at=now,
        error=None,
    )
    if deleted or trigger == "manual":
        with store.write() as session:
            session.add(run)
    return run


def _limits(settings: Settings) -> dict[str, Any]:
    return {
        "keep_metric_points_hours": settings.keep_metric_points_hours,
        "keep_rollups_days": settings.keep_rollups_days,
        "keep_history_days": settings.keep_history_days,
        "keep_audit_days": settings.keep_audit_days,
    }
