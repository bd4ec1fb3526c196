"""What the API answers during a game day, for the tests of signs and runs."""

from __future__ import annotations

import datetime as dt
from typing import Any

from controlplane.workload.gameday_signs import Reading

BEGAN = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


def after(seconds: float) -> dt.datetime:
    return BEGAN + dt.timedelta(seconds=seconds)


def reading(seconds: float = 0, *, boot: str = "a", mode: str = "normal", told: int = 0, **more: Any) -> Reading:
    rows = {key: more.pop(key) for key in ("alerts", "runs", "commands", "torn") if key in more}
    engine = {
        "id": "local", "boot_id": boot, "health": "live", "registered_at": after(seconds).isoformat(),
        "open_gaps": more.pop("gaps", 0), "snapshot_wanted": False, "observed": {"mode": mode}, "stats": more,
    }  # fmt: skip
    return Reading(at=after(seconds), engine=engine, told_requests=told, **rows)


def alert(rule: str, fired: float | None, engine: str = "local") -> dict[str, Any]:
    fired_at = None if fired is None else after(fired).isoformat()
    return {
        "id": 7, "rule": rule, "engine_id": engine, "fired_at": fired_at, "summary": "it burns", "state": "firing",
        "value": 5.0,
    }  # fmt: skip
