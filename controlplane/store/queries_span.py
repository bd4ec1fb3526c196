"""Sums over long ranges: whole hours from the hours, the ends from the minutes. The same sum, of far fewer rows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, select, union_all

from controlplane.clock import floor_hour
from controlplane.store.base import Base
from controlplane.store.query_types import Engines, TimeRange, minutes_in, of_engine

HOUR = dt.timedelta(hours=1)


def named(namespace: str | None) -> dict[str, str]:
    """The `equal` of `over` for rows of one namespace; None: of all."""
    return {} if namespace is None else {"namespace": namespace}


def over(
    minutes: type[Base],
    hours: type[Base],
    columns: Sequence[str],
    window: TimeRange,
    engines: Engines = None,
    **equal: str,
) -> Any:
    """The columns of the rows that together make the range, as a subquery to sum up. `equal`: column -> value.

    `hours` has the columns of `minutes`, with `hour` for `minute`, and sums that minutes of one hour add up to.
    """
    first = floor_hour(window.since - dt.timedelta(microseconds=1)) + HOUR  # of the whole hours in the range
    end = floor_hour(window.until)

    def rows(table: Any, *when: ColumnElement[bool]) -> Select[Any]:
        mine = (table[name] == value for name, value in equal.items())
        return select(*(table[name] for name in columns)).where(*when, *mine, *of_engine(table.engine_id, engines))

    by_minute, by_hour = minutes.__table__.c, hours.__table__.c
    if end <= first:
        return rows(by_minute, minutes_in(by_minute.minute, window)).subquery().c
    parts = [
        rows(by_hour, by_hour.hour >= first, by_hour.hour < end),
        rows(by_minute, minutes_in(by_minute.minute, TimeRange(window.since, first))),
        rows(by_minute, minutes_in(by_minute.minute, TimeRange(end, window.until))),
    ]
    return union_all(*parts).subquery().c
