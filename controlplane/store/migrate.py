"""Builds and checks the schema. The migrations are a package beside this one, so an installed wheel has them too."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine

import migrations
from controlplane.errors import SchemaMismatch
from controlplane.store.session import WRITES, normalise_url, open_engine, translated_errors


def upgrade(url: str, to: str = "head") -> str:
    """Bring the schema to a revision, this code's newest, and return it. One transaction: wholly or not at all.

    Safe to call from several processes at once. Raises SchemaMismatch when the database is newer than this code.
    """
    database = normalise_url(url).database
    if url.startswith("sqlite") and database:
        Path(database).parent.mkdir(parents=True, exist_ok=True)
    # Rebuilding a table under enforced foreign keys would delete the rows that point to it.
    engine = open_engine(url, foreign_keys=False)
    try:
        with translated_errors(), engine.execution_options(**{WRITES: True}).begin() as connection:
            _refuse_newer(_revision(connection))
            command.upgrade(_config(connection), to)
    finally:
        engine.dispose()
    return head_revision() if to == "head" else to


def current_revision(url: str) -> str | None:
    """The revision the database is at; None when it has no kvdeck tables yet."""
    engine = open_engine(url)
    try:
        with translated_errors(), engine.connect() as connection:
            return _revision(connection)
    finally:
        engine.dispose()


def require_current_schema(engine: Engine) -> None:
    """Raise SchemaMismatch, saying what to do, unless the database is at exactly this code's revision."""
    with translated_errors(), engine.connect() as connection:
        revision = _revision(connection)
    _refuse_newer(revision)
    if revision != head_revision():
        raise SchemaMismatch(
            "schema_old",
            f"The database is at revision {revision or 'none'}; this kvdeck needs {head_revision()}.",
            "Run `kvdeck migrate`.",
        )


def head_revision() -> str:
    """The newest revision this code has."""
    head = ScriptDirectory.from_config(_config(None)).get_current_head()
    if head is None:
        raise SchemaMismatch("migrations_missing", "This installation has no migrations.", "Install kvdeck again.")
    return head


def revisions() -> list[str]:
    """Every revision this code has, oldest first."""
    return [script.revision for script in ScriptDirectory.from_config(_config(None)).walk_revisions()][::-1]


def _config(connection: Connection | None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _refuse_newer(revision: str | None) -> None:
    if revision is None:
        return
    if revision not in revisions():
        raise SchemaMismatch(
            "schema_newer",
            f"The database is at revision {revision}; the newest this kvdeck knows is {head_revision()}.",
            "A newer kvdeck has migrated it: upgrade this installation, or point KVDECK_DATABASE_URL elsewhere.",
        )
