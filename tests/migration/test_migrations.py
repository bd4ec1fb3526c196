"""The migrations build exactly the tables the code was written for, once, and refuse a newer database."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect, text
from sqlalchemy.schema import CreateTable

import migrations
from controlplane.errors import SchemaMismatch, Unavailable
from controlplane.store import Store, current_revision, models, require_current_schema, upgrade
from controlplane.store.migrate import head_revision


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/folder/that/is/not/there/kvdeck.sqlite3"


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


def test_indexes_and_unique_keys_are_those_of_the_models(url):
    upgrade(url)
    store = Store(url)
    inspector = inspect(store.engine)
    for table in models.Base.metadata.tables.values():
        assert {index["name"] for index in inspector.get_indexes(table.name)} == {index.name for index in table.indexes}
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
