"""Numbers and names as people read them: units, separators, ages, ids. Pure functions.

What shell and pages word alike is the control plane's (`controlplane.wording`); what only a page says is here.
"""

from __future__ import annotations

import datetime as dt
import math

from controlplane.wording import (
    DASH,
    byte_unit,
    bytes_text,
    count_text,
    moment_text,
    percent_text,
    plural,
    seconds_text,
    short_count_text,
    short_id,
    span_text,
)

__all__ = [
    "DASH",
    "age_text",
    "byte_unit",
    "bytes_text",
    "clock_text",
    "count_text",
    "everywhere",
    "moment_text",
    "parse_bytes",
    "percent_text",
    "plural",
    "seconds_text",
    "short_count_text",
    "short_id",
    "span_text",
]


def age_text(at: dt.datetime | None, now: dt.datetime) -> str:
    """How long ago, in one unit: "12 s ago"."""
    if at is None:
        return "never"
    seconds = max(0.0, (now - at).total_seconds())
    for limit, divisor, unit in ((90.0, 1, "s"), (5400.0, 60, "min"), (172_800.0, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.0f} {unit} ago"
    return f"{seconds / 86_400:.0f} d ago"


def clock_text(at: dt.datetime | None) -> str:
    """A time of day in UTC, to the second."""
    return DASH if at is None else at.astimezone(dt.UTC).strftime("%H:%M:%S UTC")


def everywhere(namespace: str | None) -> str:
    """What stands beside a figure that cannot be cut down to the chosen namespace."""
    return " (all namespaces)" if namespace else ""


def parse_bytes(text: str) -> int | None:
    """Bytes from "12 GiB", "512MiB" or a plain number; an empty text is None (the engine's own default).

    Raises ValueError that says what is accepted.
    """
    cleaned = text.strip().replace(",", "").replace("_", "")
    if not cleaned:
        return None
    number = cleaned.rstrip("BbiIKkMmGgTtPp ")
    unit = cleaned[len(number) :].strip().lower().removesuffix("b").removesuffix("i")
    factors = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4, "p": 1024**5}
    try:
        size = float(number) * factors[unit]
    except (ValueError, KeyError):
        raise ValueError(f"{text!r} is not a size: write a number and a unit, as in 12 GiB or 512 MiB") from None
    if size < 0 or not math.isfinite(size):
        raise ValueError(f"{text!r} is not a size: it must be zero or more")
    return int(size)
