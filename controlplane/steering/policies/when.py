"""When a policy runs by itself: every so many seconds, by a cron expression in a time zone, or only on events."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from controlplane.errors import BadRequest

SHORTEST_EVERY_SECONDS = 1
LONGEST_EVERY_SECONDS = 7 * 86_400
FIELDS = ("minute", "hour", "day of month", "month", "day of week")
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
EXAMPLE = "Write five fields as `30 6 * * mon-fri` (minute, hour, day of month, month, day of week)."


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """`every_seconds` or `cron` (read in `time_zone`); with neither, the policy runs on events and by hand only."""

    every_seconds: int | None = None
    cron: str | None = None
    time_zone: str = "UTC"

    @property
    def words(self) -> str:
        """In words."""
        if self.cron is not None:
            return f"{self.cron} ({self.time_zone})"
        return "on events" if self.every_seconds is None else f"every {self.every_seconds} s"

    def trigger(self) -> CronTrigger | IntervalTrigger | None:
        """What APScheduler runs it by; None when time alone does not."""
        if self.cron is not None:
            return cron_trigger(self.cron, self.time_zone)
        return None if self.every_seconds is None else IntervalTrigger(seconds=self.every_seconds, timezone="UTC")

    def next_times(self, now: dt.datetime, count: int = 3) -> list[dt.datetime]:
        """The next moments of a cron expression, in UTC; empty for the others, whose beat starts with the leader."""
        if self.cron is None:
            return []
        trigger, times, before = cron_trigger(self.cron, self.time_zone), [], None
        at = now
        for _ in range(count):
            found = trigger.get_next_fire_time(before, at)
            if found is None:
                break
            times.append(found.astimezone(dt.UTC))
            before, at = found, found + dt.timedelta(microseconds=1)
        return times


def check_when(wanted: Mapping[str, Any], now: dt.datetime) -> When:
    """The wish as a value. Raises BadRequest with the reason: both, out of range, no cron expression, no time zone."""
    when = When(
        every_seconds=wanted.get("every_seconds"),
        cron=wanted.get("cron"),
        time_zone=wanted.get("time_zone") or "UTC",
    )
    if when.every_seconds is not None and when.cron is not None:
        raise BadRequest(
            "policy_when", "every_seconds and cron were both given.", "Give one of them; set the other to null."
        )
    every = when.every_seconds
    if every is not None and not SHORTEST_EVERY_SECONDS <= every <= LONGEST_EVERY_SECONDS:
        raise BadRequest(
            "every_seconds",
            f"every_seconds must be {SHORTEST_EVERY_SECONDS} to {LONGEST_EVERY_SECONDS}, got {every}.",
            "Nothing was changed.",
        )
    check_time_zone(when.time_zone)
    if when.cron is not None and not when.next_times(now, 1):
        raise BadRequest("cron_never", f"The cron expression {when.cron!r} never comes.", "Check day and month.")
    return when


def check_time_zone(name: str) -> ZoneInfo:
    """The zone. Raises BadRequest for a name that is none."""
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):  # ZoneInfoNotFoundError is a KeyError; a folder's name is an OSError
        raise BadRequest(
            "time_zone", f"There is no time zone {name!r}.", "Write UTC, or a name such as Europe/Berlin."
        ) from None


def cron_trigger(expression: str, time_zone: str) -> CronTrigger:
    """The trigger of a five-field expression. Raises BadRequest naming the field that cannot be read, and why."""
    parts = expression.split()
    if len(parts) != len(FIELDS):
        raise BadRequest("cron_invalid", f"The cron expression {expression!r} has {len(parts)} fields, not 5.", EXAMPLE)
    minute, hour, day, month, weekday = parts
    if day != "*" and weekday != "*":
        # In cron either of the two is enough, in APScheduler both must hold: nobody should have to know which.
        raise BadRequest(
            "cron_invalid",
            f"The cron expression {expression!r} restricts the day of the month and the day of the week.",
            "Restrict one of them, and write * for the other.",
        )
    zone = check_time_zone(time_zone)
    chosen = {"minute": minute, "hour": hour, "day": day, "month": month, "day_of_week": _weekdays(weekday, expression)}
    for word, (field, text) in zip(FIELDS, chosen.items(), strict=True):
        try:
            CronTrigger(timezone=zone, **{field: text})
        except (ValueError, TypeError) as error:
            raise BadRequest(
                "cron_invalid", f"The {word} {text!r} of the cron expression cannot be read: {error}.", EXAMPLE
            ) from error
    return CronTrigger(timezone=zone, **chosen)


def _weekdays(text: str, expression: str) -> str:
    """Cron counts days from Sunday, 0 or 7; APScheduler from Monday. So numbers become names, ranges become lists."""
    if text == "*":
        return text
    days: set[int] = set()
    for part in text.lower().split(","):
        span, _, step = part.partition("/")
        first, dash, last = ("0", "-", "6") if span == "*" else span.partition("-")
        low, high = _weekday(first), _weekday(last if dash else first)
        steps_well = not step or (dash and step.isdecimal() and int(step) > 0)
        if low is None or high is None or not steps_well:
            raise BadRequest(
                "cron_invalid",
                f"The day of week {part!r} of the cron expression {expression!r} cannot be read.",
                "Write 0 to 7 (Sunday is 0 and 7), or sun, mon ... sat; ranges and lists of them.",
            )
        last_day = high if low <= high else high + 7  # fri-mon goes over the end of the week
        days |= {day % 7 for day in range(low, last_day + 1, int(step or 1))}
    return ",".join(DAYS[day] for day in sorted(days))


def _weekday(text: str) -> int | None:
    if text in DAYS:
        return DAYS.index(text)
    return int(text) if text.isdecimal() and int(text) <= 7 else None
