"""Batched inserts that meet rows already there, the same on SQLite and Postgres."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from controlplane.store.base import Base

Row = dict[str, Any]


def insert_for(session: Session, model: type[Base]) -> sqlite.Insert | postgresql.Insert:
    """The dialect's INSERT, which knows ON CONFLICT; both have the same methods for it."""
    table = model.__table__
    assert isinstance(table, Table)
    return postgresql.insert(table) if session.get_bind().dialect.name == "postgresql" else sqlite.insert(table)


def insert_new(session: Session, model: type[Base], rows: Sequence[Row], keys: Sequence[str]) -> None:
    """Insert the rows whose key is not there yet; leave the others as they are."""
    if rows:
        session.execute(insert_for(session, model).on_conflict_do_nothing(index_elements=keys), rows)


def add_to(session: Session, model: type[Base], rows: Sequence[Row], keys: Sequence[str], sums: Sequence[str]) -> None:
    """Insert rows; where the key is there already, add the columns in `sums` to it. Keys must differ in `rows`."""
    if not rows:
        return
    statement = insert_for(session, model)
    columns = model.__table__.c
    added = {name: columns[name] + statement.excluded[name] for name in sums}
    session.execute(statement.on_conflict_do_update(index_elements=keys, set_=added), rows)


def replace(session: Session, model: type[Base], rows: Sequence[Row], keys: Sequence[str]) -> None:
    """Insert rows, overwriting all other columns of a row that has the key already. Keys must differ in `rows`."""
    if not rows:
        return
    statement = insert_for(session, model)
    others = {name: statement.excluded[name] for name in rows[0] if name not in keys}
    session.execute(statement.on_conflict_do_update(index_elements=keys, set_=others), rows)


def summed(rows: Iterable[Mapping[str, Any]], keys: Sequence[str], sums: Sequence[str]) -> list[Row]:
    """One row a key, sorted by it (so that two writers lock rows in the same order), the columns in `sums` added up."""
    totals: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = tuple(row[name] for name in keys)
        total = totals.setdefault(key, {**dict(zip(keys, key, strict=True)), **dict.fromkeys(sums, 0)})
        for name in sums:
            total[name] += row[name]
    return [totals[key] for key in sorted(totals)]
