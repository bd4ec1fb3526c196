"""Let the database itself refuse to change the audit, and to forget of it what retention has not let go

Whoever rebuilds the table in a later migration (`batch_alter_table` on SQLite) must create the triggers again:
`guard_audit` does.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from controlplane.store import columns

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

REFUSAL = "the audit is append-only"
SQLITE = (
    f"CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, '{REFUSAL}'); END",
    "CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit "
    "WHEN OLD.at >= coalesce((SELECT max(before) FROM audit_floor), 0) "
    f"BEGIN SELECT RAISE(ABORT, '{REFUSAL}'); END",
)
POSTGRES = (
    "CREATE FUNCTION audit_guard() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
    "IF TG_OP = 'DELETE' AND OLD.at < coalesce((SELECT max(before) FROM audit_floor), 0) THEN RETURN OLD; END IF; "
    f"RAISE EXCEPTION '{REFUSAL}'; END $$",
    "CREATE TRIGGER audit_no_change BEFORE UPDATE OR DELETE ON audit FOR EACH ROW EXECUTE FUNCTION audit_guard()",
    "CREATE TRIGGER audit_no_truncate BEFORE TRUNCATE ON audit FOR EACH STATEMENT EXECUTE FUNCTION audit_guard()",
)
SQLITE_DOWN = ("DROP TRIGGER audit_no_update", "DROP TRIGGER audit_no_delete")
POSTGRES_DOWN = (
    "DROP TRIGGER audit_no_truncate ON audit",
    "DROP TRIGGER audit_no_change ON audit",
    "DROP FUNCTION audit_guard()",
)


def upgrade() -> None:
    op.create_table(
        "audit_floor",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("before", columns.UtcMicros(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    guard_audit()


def guard_audit() -> None:
    """The triggers, on an audit table that has none."""
    _run(SQLITE, POSTGRES)


def downgrade() -> None:
    _run(SQLITE_DOWN, POSTGRES_DOWN)
    op.drop_table("audit_floor")


def _run(sqlite: tuple[str, ...], postgres: tuple[str, ...]) -> None:
    for statement in sqlite if op.get_bind().dialect.name == "sqlite" else postgres:
        op.execute(statement)
