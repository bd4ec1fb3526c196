"""What every read model shares: time ranges, rates with their counts, rows as frozen values."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from sqlalchemy import ColumnElement

from controlplane.clock import floor_minute

V = TypeVar("V")
Engines = str | Sequence[str] | None
"""One engine, several (a group), or (None) all."""

STATES = ("FULL", "COMPRESSED", "PARTIAL_OFFLOAD", "FULL_RESTORE", "APPROXIMATE", "QUARANTINED", "EVICTED")
"""States a prefix can be in, as the engine's state table has them; a test compares the two."""


@dataclass(frozen=True, slots=True)
class TimeRange:
    """From `since` up to and without `until`, both aware."""

    since: dt.datetime
    until: dt.datetime

    @classmethod
    def last(cls, minutes: float, now: dt.datetime) -> TimeRange:
        """The range of this many minutes that ends now, the current one included."""
        return cls(now - dt.timedelta(minutes=minutes), now + dt.timedelta(microseconds=1))


@dataclass(frozen=True, slots=True)
class Rate:
    """A share with the numbers it was made from. `ratio` is None when there were none: that is not zero."""

    part: int
    whole: int
    ratio: float | None

    @classmethod
    def of(cls, part: float, whole: float) -> Rate:
        """The share of `part` in `whole`, both counts."""
        return cls(round(part), round(whole), part / whole if whole > 0 else None)


def minutes_in(column: Any, window: TimeRange) -> ColumnElement[bool]:
    """Whether a rollup's minute lies in the range; the minute that holds `since` is in."""
    inside: ColumnElement[bool] = (column >= floor_minute(window.since)) & (column < window.until)
    return inside


def inside(column: Any, window: TimeRange) -> ColumnElement[bool]:
    """Whether a time lies in the range."""
    condition: ColumnElement[bool] = (column >= window.since) & (column < window.until)
    return condition


def of_engine(column: Any, engine_id: Engines) -> Sequence[ColumnElement[bool]]:
    """The condition that a row is of this engine, or of one of these; none for all engines."""
    if engine_id is None:
        return ()
    return (column == engine_id if isinstance(engine_id, str) else column.in_(engine_id),)


def view(kind: type[V], row: Any, **more: Any) -> V:
    """A read model from a row with attributes of the same names; `more` gives those the row does not have."""
    names = [field.name for field in fields(kind) if field.name not in more]  # type: ignore[arg-type]
    return kind(**{name: getattr(row, name) for name in names}, **more)
