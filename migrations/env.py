"""Runs the migrations on the connection that `controlplane.store.migrate` opened."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection, text

from controlplane.store.models import Base

# One upgrade at a time a Postgres database. Not the leader's lock: a leader holds that one for as long as it leads.
UPGRADE_LOCK = 0x6B76_6463_0001


def run(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": UPGRADE_LOCK})
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=connection.dialect.name == "sqlite",
        transactional_ddl=True,
        compare_type=True,
        user_module_prefix="columns.",
    )
    with context.begin_transaction():
        context.run_migrations()


run(context.config.attributes["connection"])
