"""Thousands of rows in one go, past SQLAlchemy's row-by-row work, which would cost more than the database does.

SQLite gets the compiled statement and plain tuples. Postgres gets the rows by COPY into a temporary table, and one
INSERT ... SELECT from there: a statement a row, even in a pipeline, is several times slower.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import Connection, Table, column, select, table, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from controlplane.store.base import Base

Insert = sqlite.Insert | postgresql.Insert
Stored = tuple[Any, ...]  # values as the database has them: times in microseconds, documents as JSON text


@dataclass(frozen=True, slots=True)
class BulkInsert:
    """An INSERT of many rows, made once. `settle` adds what happens to a row whose key is there already."""

    model: type[Base]
    columns: tuple[str, ...]
    settle: Callable[[Any], Any]

    def run(self, session: Session, rows: Sequence[Stored]) -> None:
        """Insert rows of the values of `columns`, in their order. No two may have one key."""
        if not rows:
            return
        connection = session.connection()
        if connection.dialect.name == "postgresql":
            _copy_and_insert(self, connection, rows)
        else:
            connection.exec_driver_sql(_sqlite_statement(self), list(rows))


def _table(bulk: BulkInsert) -> Table:
    return cast(Table, bulk.model.__table__)


@functools.cache
def _sqlite_statement(bulk: BulkInsert) -> str:
    statement = bulk.settle(sqlite.insert(_table(bulk)))
    compiled = statement.compile(dialect=sqlite.dialect(), column_keys=list(bulk.columns))
    if compiled.positiontup != list(bulk.columns):
        raise ValueError(f"the columns of {_table(bulk).name} must be given in its order: {compiled.positiontup}")
    return str(compiled)


def _copy_and_insert(bulk: BulkInsert, connection: Connection, rows: Sequence[Stored]) -> None:
    names = ", ".join(f'"{name}"' for name in bulk.columns)
    waiting = f"incoming_{_table(bulk).name}"
    connection.execute(
        text(f"CREATE TEMP TABLE IF NOT EXISTS {waiting} AS SELECT {names} FROM {_table(bulk).name} WITH NO DATA")
    )
    driver: Any = connection.connection.driver_connection
    with driver.cursor() as cursor, cursor.copy(f"COPY {waiting} ({names}) FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)
    connection.execute(_postgres_statement(bulk))
    connection.execute(text(f"TRUNCATE {waiting}"))


@functools.cache
def _postgres_statement(bulk: BulkInsert) -> Any:
    waiting = table(f"incoming_{_table(bulk).name}", *(column(name) for name in bulk.columns))
    insert = postgresql.insert(_table(bulk)).from_select(bulk.columns, select(waiting))
    return bulk.settle(insert)
