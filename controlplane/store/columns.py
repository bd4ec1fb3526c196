"""Column types shared by every table: aware UTC times kept as integers, JSON documents."""

from __future__ import annotations

import datetime as dt
from typing import Any

from sqlalchemy import BigInteger
from sqlalchemy.types import TypeDecorator

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
MICROSECOND = dt.timedelta(microseconds=1)


def micros(value: dt.datetime) -> int:
    """Microseconds since 1970, as times are stored. Raises ValueError for a naive one."""
    if value.tzinfo is None:
        raise ValueError(f"naive datetime {value!r}: every time in the store is aware UTC")
    return int((value - EPOCH) // MICROSECOND)


class UtcMicros(TypeDecorator[dt.datetime]):
    """An aware UTC datetime, stored as integer microseconds since 1970.

    The same bytes on SQLite and Postgres, exact, sortable and cheap to bucket by minute in SQL.
    """

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> int | None:
        if value is None:
            return None
        return micros(value)

    def process_result_value(self, value: Any, dialect: Any) -> dt.datetime | None:
        return None if value is None else EPOCH + value * MICROSECOND
