"""Numbers as people read them: units, separators. One wording for shell, API sentences and pages. Pure functions."""

from __future__ import annotations

import datetime as dt
import math

DASH = "–"
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SPANS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def bytes_text(value: float | None) -> str:
    """Bytes in binary units with at most one decimal: 1,536 is "1.5 KiB"."""
    if value is None or not math.isfinite(value):
        return DASH
    size, unit = float(value), 0
    while abs(size) >= 1024 and unit < len(_BYTE_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:,.0f} B" if unit == 0 else f"{size:,.1f} {_BYTE_UNITS[unit]}"


def byte_unit(largest: float) -> tuple[int, str]:
    """The binary unit that suits a column whose largest value this is: how many bytes it is, and its name."""
    power = 0
    while largest >= 1024 ** (power + 1) and power < len(_BYTE_UNITS) - 1:
        power += 1
    return 1024**power, _BYTE_UNITS[power]


def count_text(value: float | None) -> str:
    """A whole number with thousands separators."""
    return DASH if value is None or not math.isfinite(value) else f"{value:,.0f}"


def short_count_text(value: float) -> str:
    """A count for a tick of an axis, with an SI prefix: 1,500,000 is "1.5M", 10^12 is "1T"."""
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def percent_text(ratio: float | None, decimals: int = 1) -> str:
    """A ratio (0 to 1) as percent; an unknown ratio is a dash, never 0%."""
    return DASH if ratio is None or not math.isfinite(ratio) else f"{ratio * 100:.{decimals}f}%"


def seconds_text(seconds: float | None) -> str:
    """A measured duration in the unit that suits it, rounded: us, ms, s, min, h or d."""
    if seconds is None or not math.isfinite(seconds):
        return DASH
    for limit, divisor, unit in ((1e-3, 1e-6, "µs"), (1.0, 1e-3, "ms"), (120.0, 1.0, "s"), (7200.0, 60.0, "min")):
        if abs(seconds) < limit:
            return f"{seconds / divisor:,.3g} {unit}"
    return f"{seconds / 3600:,.1f} h" if seconds < 172_800 else f"{seconds / 86_400:,.1f} d"


def span_text(seconds: int) -> str:
    """A length of time that somebody set, exact: 5,400 is "1 h 30 min"."""
    parts = []
    for size, unit in _SPANS:
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count:,} {unit}")
    return " ".join(parts) or "0 s"


def moment_text(at: dt.datetime | None) -> str:
    """A date and time in UTC, to the second."""
    return DASH if at is None else at.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%S")


def short_id(identifier: str | None, length: int = 12) -> str:
    """The start of a long id; the whole of a short one."""
    if not identifier:
        return DASH
    return identifier if len(identifier) <= length else identifier[:length] + "…"


def plural(count: int, noun: str, many: str | None = None) -> str:
    """ "1 prefix", "1,234 prefixes"."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"
