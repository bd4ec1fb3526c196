"""Numbers and names as people read them: units, separators, ages, ids. Pure functions."""

from __future__ import annotations

import datetime as dt
import math

DASH = "–"
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def bytes_text(value: float | None) -> str:
    """Bytes in binary units with at most one decimal: 1,536 is "1.5 KiB"."""
    if value is None or not math.isfinite(value):
        return DASH
    size, unit = float(value), 0
    while abs(size) >= 1024 and unit < len(_BYTE_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:,.0f} B" if unit == 0 else f"{size:,.1f} {_BYTE_UNITS[unit]}"


def count_text(value: float | None) -> str:
    """A whole number with thousands separators."""
    return DASH if value is None or not math.isfinite(value) else f"{value:,.0f}"


def percent_text(ratio: float | None, decimals: int = 1) -> str:
    """A ratio (0 to 1) as percent; an unknown ratio is a dash, never 0%."""
    return DASH if ratio is None or not math.isfinite(ratio) else f"{ratio * 100:.{decimals}f}%"


def seconds_text(seconds: float | None) -> str:
    """A duration in the unit that suits it: us, ms, s, min, h or d."""
    if seconds is None or not math.isfinite(seconds):
        return DASH
    for limit, divisor, unit in ((1e-3, 1e-6, "µs"), (1.0, 1e-3, "ms"), (120.0, 1.0, "s"), (7200.0, 60.0, "min")):
        if abs(seconds) < limit:
            return f"{seconds / divisor:,.3g} {unit}"
    return f"{seconds / 3600:,.1f} h" if seconds < 172_800 else f"{seconds / 86_400:,.1f} d"


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


def moment_text(at: dt.datetime | None) -> str:
    """A date and time in UTC, to the second."""
    return DASH if at is None else at.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%S")


def short_id(identifier: str | None, length: int = 12) -> str:
    """The start of a long id; the whole of a short one."""
    if not identifier:
        return DASH
    return identifier if len(identifier) <= length else identifier[:length] + "…"


def everywhere(namespace: str | None) -> str:
    """What stands beside a figure that cannot be cut down to the chosen namespace."""
    return " (all namespaces)" if namespace else ""


def plural(count: int, noun: str, many: str | None = None) -> str:
    """ "1 prefix", "1,234 prefixes"."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


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
