"""Moments as a person types them: a time of day, a span from now, or a whole time."""

from __future__ import annotations

import datetime as dt
import re

from controlplane.cli.context import parse_seconds
from controlplane.cli.exits import CliError, Exit
from controlplane.clock import utc_now

TIME_OF_DAY = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
SPAN = re.compile(r"\d+(\.\d+)?[smhd]?")


def moment_of(text: str, *, ahead: bool, now: dt.datetime | None = None) -> dt.datetime:
    """The moment, in UTC. `06:00` and `2h` lie `ahead`, or in the past. Raises CliError.

    A time of day in the past without seconds means the end of that minute: what happened in 03:12 is in.
    """
    now = now or utc_now()
    if found := TIME_OF_DAY.fullmatch(text):
        return _time_of_day(found, text, ahead, now)
    if SPAN.fullmatch(text):
        span = dt.timedelta(seconds=parse_seconds(text))
        return now + span if ahead else now - span
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise _unreadable(text) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)


def _time_of_day(found: re.Match[str], text: str, ahead: bool, now: dt.datetime) -> dt.datetime:
    hour, minute, second = (int(part or 0) for part in found.groups())
    try:
        at = now.astimezone(dt.UTC).replace(hour=hour, minute=minute, second=second, microsecond=0)
    except ValueError:
        raise _unreadable(text) from None
    if ahead:
        return at if at > now else at + dt.timedelta(days=1)
    at = at if at <= now else at - dt.timedelta(days=1)
    whole_minute = found.group(3) is None
    return at + dt.timedelta(seconds=59, microseconds=999_999) if whole_minute else at


def _unreadable(text: str) -> CliError:
    return CliError(f"{text!r} is no moment.", "Write 03:12, 2h or 2026-01-31T03:12:00Z; times are UTC.", Exit.USAGE)
