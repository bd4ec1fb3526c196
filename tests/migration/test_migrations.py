"""The migrations build exactly the tables the code was written for, once, and refuse a newer database."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from databases import KINDS
from sqlalchemy import JSON, Boolean, Float, LargeBinary, MetaData, String, insert, inspect, select, text
from sqlalchemy.schema import CreateTable

import migrations
from controlplane.errors import SchemaMismatch, Unavailable
from controlplane.steering.leader_postgres import AdvisoryLockLeadership
from controlplane.store import Store, current_revision, models, require_current_schema, upgrade
from controlplane.store.migrate import _config, head_revision, revisions


@pytest.fixture(params=KINDS)
def url(request, databases, tmp_path):
    """A database without tables; on SQLite not even its folder is there."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/folder/that/is/not/there/kvdeck.sqlite3"
    return databases.new("postgresql", migrated=False).url


def stamp(url: str, revision: str) -> None:
    store = Store(url)
    with store.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})
    store.dispose()


def test_the_migrated_schema_equals_the_models(url):
    upgrade(url)
    store = Store(url)
    with store.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "render_as_batch": True})
        assert compare_metadata(context, models.Base.metadata) == []
    store.dispose()


def test_alembic_itself_finds_nothing_to_add(url):
    upgrade(url)
    store = Store(url)
    with store.engine.connect() as connection:
        command.check(_config(connection))  # what `alembic check` runs; raises when a model has moved on
    store.dispose()


def test_indexes_and_unique_keys_are_those_of_the_models(url):
    upgrade(url)
    store = Store(url)
    inspector = inspect(store.engine)
    for table in models.Base.metadata.tables.values():
        built = {index["name"] for index in inspector.get_indexes(table.name) if "duplicates_constraint" not in index}
        assert built == {index.name for index in table.indexes}
        unique = {tuple(key["column_names"]) for key in inspector.get_unique_constraints(table.name)}
        wanted = {
            tuple(column.name for column in constraint.columns)
            for constraint in table.constraints
            if type(constraint).__name__ == "UniqueConstraint"
        }
        assert unique == wanted, table.name
    store.dispose()


def test_upgrading_twice_is_upgrading_once(url):
    assert current_revision_of_new(url) is None
    assert upgrade(url) == upgrade(url) == current_revision(url) == head_revision()


def current_revision_of_new(url: str) -> str | None:
    if url.startswith("sqlite"):
        Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True)
    return current_revision(url)


def test_several_processes_may_upgrade_at_once(url):
    code = f"from controlplane.store import upgrade; print(upgrade({url!r}))"
    both = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    answers = [process.communicate(timeout=120) for process in both]
    assert [out.strip() for out, _ in answers] == [head_revision()] * 3, answers


def test_a_newer_database_is_refused_with_what_to_do(url):
    upgrade(url)
    stamp(url, "9999")
    with pytest.raises(SchemaMismatch, match=r"9999.*upgrade this installation"):
        upgrade(url)
    store = Store(url)
    with pytest.raises(SchemaMismatch, match="9999"):
        require_current_schema(store.engine)
    store.dispose()


def test_a_database_without_tables_is_told_to_migrate(tmp_path):
    store = Store(f"sqlite:///{tmp_path}/empty.sqlite3")
    with pytest.raises(SchemaMismatch, match="kvdeck migrate"):
        require_current_schema(store.engine)
    with pytest.raises(SchemaMismatch, match="kvdeck migrate"), store.read() as session:
        session.execute(text("SELECT * FROM engines"))
    store.dispose()


def test_a_database_that_cannot_be_opened_is_unavailable(tmp_path):
    store = Store(f"sqlite:///{tmp_path}/nowhere/kvdeck.sqlite3")
    with pytest.raises(Unavailable, match="KVDECK_DATABASE_URL"), store.read() as session:
        session.execute(text("SELECT 1"))
    store.dispose()


def test_the_migrations_are_a_package_beside_the_code():
    folder = Path(migrations.__file__).parent
    assert (folder / "env.py").is_file()
    assert (folder / "versions" / "__init__.py").is_file()


def test_every_table_can_be_built_on_postgres():
    from sqlalchemy.dialects import postgresql

    for table in models.Base.metadata.sorted_tables:
        assert "CREATE TABLE" in str(CreateTable(table).compile(dialect=postgresql.dialect()))


def a_value(column, number: int):
    """Something that fits a column, however the revision declares it."""
    kind = column["type"]
    if isinstance(kind, JSON):
        return {"kept": number}
    if isinstance(kind, String):
        return f"v{number}"[: kind.length or 8]
    if isinstance(kind, LargeBinary):
        return bytes([number])
    if isinstance(kind, Boolean):
        return True
    if isinstance(kind, Float):
        return number + 0.5
    return number


def fill(url: str) -> dict[str, dict[str, object]]:
    """One row in every table of the revision the database is at; by table, the row as it is read back."""
    store = Store(url)
    found = MetaData()
    found.reflect(store.engine)
    inspector = inspect(store.engine)
    rows = {}
    with store.write() as session:
        for number, table in enumerate(found.sorted_tables, start=1):
            if table.name == "alembic_version":
                continue
            columns = {column["name"]: a_value(column, number) for column in inspector.get_columns(table.name)}
            for key in inspector.get_foreign_keys(table.name):
                for ours, theirs in zip(key["constrained_columns"], key["referred_columns"], strict=True):
                    columns[ours] = rows[key["referred_table"]][theirs]
            session.execute(insert(table).values(columns))
            rows[table.name] = dict(session.execute(select(table)).mappings().one())
    store.dispose()
    return rows


@pytest.mark.parametrize("revision", revisions())
def test_every_earlier_revision_upgrades_with_its_data_kept(url, revision):
    upgrade(url, revision)
    assert current_revision(url) == revision
    rows = fill(url)
    assert upgrade(url) == head_revision()
    store = Store(url)
    after = MetaData()
    after.reflect(store.engine)
    with store.read() as session:
        for name, row in rows.items():
            table = after.tables[name]
            kept = session.execute(select(table)).mappings().first()
            assert kept is not None, name
            still = [column for column in row if column in table.c]  # a later revision may have moved one elsewhere
            assert {column: kept[column] for column in still} == {column: row[column] for column in still}, name
    store.dispose()


def test_a_leader_at_work_does_not_hold_up_the_next_replica_that_starts(databases):
    database = databases.new("postgresql")
    store = database.open()
    leadership = AdvisoryLockLeadership(store)
    assert leadership.try_lead()
    assert upgrade(database.url) == head_revision()
    leadership.release()
    store.dispose()
