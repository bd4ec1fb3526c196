"""What the pages ask finds its rows of the history by an index: no query reads all of it, however long it grows."""

from __future__ import annotations

from typing import Any

import pytest
from databases import Database
from sqlalchemy import Connection, event

from benchmarks.deck.pages import reads
from benchmarks.deck.seed import seed
from controlplane.store.queries_prefixes import list_prefixes
from controlplane.store.query_types import STATES

VERSIONS = 5_000
GROWING = ("prefix_versions", "request_records", "audit", "validation_failures", "metric_points")
"""Tables with a row for each thing that happened. What is held now is summed up from all of `prefixes`, which is as
long as what engines hold."""


def whole_reads(connection: Connection, statement: str, parameters: Any) -> list[str]:
    """The steps of the plan that read all of a growing table, though only a part was asked for."""
    if connection.dialect.name == "sqlite":
        plan = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)]
        found = [step for step in plan if step.startswith("SCAN ") and "USING" not in step]
        if "LIMIT" in statement and "WHERE" not in statement and not any("TEMP B-TREE" in step for step in plan):
            found = []  # in the order of its rows, and only the first of them
    else:
        connection.exec_driver_sql("SET enable_seqscan = off")  # so that one that is left has no index it could use
        plan = [row[0] for row in connection.exec_driver_sql(f"EXPLAIN {statement}", parameters)]
        found = [step for step in plan if "Seq Scan on" in step]
    return [step for step in found if set(step.split()) & set(GROWING)]


def test_no_page_reads_a_growing_table_from_end_to_end(database: Database) -> None:
    store = database.open()
    seed(store, VERSIONS, minutes=60)
    asked: dict[str, tuple[str, Any]] = {}
    page = ""

    def note(_c: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: bool) -> None:
        if statement.lstrip().upper().startswith(("SELECT", "WITH")):
            asked.setdefault(statement, (page, parameters))

    event.listen(store.engine, "before_cursor_execute", note)
    for page, read in reads().items():  # noqa: B007  the listener reads it
        with store.read() as session:
            read(session)
    event.remove(store.engine, "before_cursor_execute", note)
    assert len(asked) > 40
    with store.engine.connect() as connection:
        found = {statement: whole_reads(connection, statement, how) for statement, (_, how) in asked.items()}
    store.dispose()
    assert [f"{asked[s][0]}: {steps}\n{s}" for s, steps in found.items() if steps] == []


@pytest.mark.parametrize("statement", ["SELECT * FROM prefix_versions WHERE reason = 'x'"])
def test_a_query_that_does_is_found(database: Database, statement: str) -> None:
    store = database.open()
    with store.engine.connect() as connection:
        assert whole_reads(connection, statement, ())
    store.dispose()


@pytest.mark.parametrize("engine", [None, "engine-1"])
def test_the_beginning_of_an_id_finds_those_prefixes_by_their_key(database: Database, engine: str | None) -> None:
    store = database.open()
    seed(store, 5000, minutes=1)
    asked: list[tuple[str, Any]] = []
    with store.read() as session:
        every = [row.prefix_id for row in list_prefixes(session, engine_id=engine, states=STATES, limit=1000).rows]
        event.listen(store.engine, "before_cursor_execute", lambda _c, _k, text, how, *_: asked.append((text, how)))
        for start in ("7", every[0][:3], every[1][:31], every[2].upper(), "f" * 32):
            found = list_prefixes(session, engine_id=engine, states=STATES, id_start=start, limit=1000)
            mine = sorted(each for each in every if each.startswith(start.lower()))
            assert sorted(row.prefix_id for row in found.rows) == mine
            assert found.total == len(mine)
        for none in ("xyz", "7%", "_", "7" * 33):
            assert list_prefixes(session, engine_id=engine, id_start=none).total == 0
    with store.engine.connect() as connection:
        if database.kind == "sqlite":
            plan = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {asked[0][0]}", asked[0][1])]
            assert any("prefix_id>? AND prefix_id<?" in step for step in plan), plan
    store.dispose()
