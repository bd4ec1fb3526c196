"""Time as the control plane sees it: aware UTC, injected wherever a rule depends on it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

Clock = Callable[[], dt.datetime]


def utc_now() -> dt.datetime:
    """The wall clock, aware, in UTC."""
    return dt.datetime.now(dt.UTC)


def floor_minute(at: dt.datetime) -> dt.datetime:
    """The start of the minute `at` lies in: the key of every per-minute rollup."""
    return at.replace(second=0, microsecond=0)


def floor_hour(at: dt.datetime) -> dt.datetime:
    """The start of the hour a time lies in, by UTC."""
    return at.astimezone(dt.UTC).replace(minute=0, second=0, microsecond=0)
