"""Give policies schedules, scopes and effects; keep alert rules, silences, receivers and what they are told"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from controlplane.store import columns

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

BATCH_ROWS = 1000


def upgrade() -> None:
    _change_policies()
    _change_alerts()
    _add_tables()


def _change_policies() -> None:
    with op.batch_alter_table("policies", schema=None) as batch_op:
        batch_op.alter_column("every_seconds", existing_type=sa.BigInteger(), nullable=True)
        batch_op.add_column(sa.Column("cron", sa.String(length=128), nullable=True))
        batch_op.add_column(sa.Column("time_zone", sa.String(length=64), server_default="UTC", nullable=False))
        batch_op.add_column(sa.Column("scope", sa.JSON(), server_default="{}", nullable=False))
        batch_op.add_column(sa.Column("paused_until", columns.UtcMicros(), nullable=True))
    with op.batch_alter_table("policy_runs", schema=None) as batch_op:
        batch_op.alter_column("outcome", new_column_name="did", existing_type=sa.JSON(), existing_nullable=False)
        batch_op.add_column(sa.Column("changed", sa.JSON(), server_default="{}", nullable=False))
        batch_op.add_column(sa.Column("settled_at", columns.UtcMicros(), nullable=True))
        batch_op.create_index("ix_policy_runs_settled", ["settled_at"], unique=False)
    op.execute(sa.text("UPDATE policy_runs SET settled_at = at"))
    _rewrite_what_runs_did()


def _rewrite_what_runs_did() -> None:
    """One command or revision a run became lists of them."""
    connection = op.get_bind()
    runs = sa.table("policy_runs", sa.column("id", sa.BigInteger()), sa.column("did", sa.JSON()))
    last = 0
    while True:
        query = sa.select(runs.c.id, runs.c.did).where(runs.c.id > last).order_by(runs.c.id).limit(BATCH_ROWS)
        rows = connection.execute(query).all()
        if not rows:
            return
        for row_id, did in rows:
            rewritten = _did(did or {})
            if rewritten != did:
                connection.execute(sa.update(runs).where(runs.c.id == row_id).values(did=rewritten))
        last = rows[-1][0]


def _did(before: dict[str, Any]) -> dict[str, Any]:
    after = {key: value for key, value in before.items() if key not in ("command", "revision", "trace_id")}
    for one, many in (("command", "commands"), ("revision", "revisions"), ("trace_id", "trace_ids")):
        if one in before:
            after[many] = [before[one]]
    return after


def _change_alerts() -> None:
    with op.batch_alter_table("alerts", schema=None) as batch_op:
        batch_op.add_column(sa.Column("severity", sa.String(length=16), server_default="warning", nullable=False))
        batch_op.add_column(sa.Column("runbook", sa.String(length=256), server_default="", nullable=False))
        batch_op.add_column(sa.Column("acknowledged_at", columns.UtcMicros(), nullable=True))
        batch_op.add_column(sa.Column("acknowledged_reason", sa.Text(), nullable=True))
        batch_op.add_column(sa.Column("silence_id", sa.BigInteger(), nullable=True))
        batch_op.add_column(sa.Column("notified_at", columns.UtcMicros(), nullable=True))
    # Whoever was to be told of these was told, by the version before.
    op.execute(sa.text("UPDATE alerts SET notified_at = fired_at"))


def _add_tables() -> None:
    row_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "policy_refusals",
        sa.Column("policy", sa.String(length=64), nullable=False),
        sa.Column("engine_id", sa.String(length=64), nullable=False),
        sa.Column("prefix_id", sa.String(length=32), nullable=False),
        sa.Column("reason", sa.String(length=64), nullable=False),
        sa.Column("times", sa.BigInteger(), nullable=False),
        sa.Column("at", columns.UtcMicros(), nullable=False),
        sa.Column("until", columns.UtcMicros(), nullable=False),
        sa.PrimaryKeyConstraint("policy", "engine_id", "prefix_id", name=op.f("pk_policy_refusals")),
    )
    with op.batch_alter_table("policy_refusals", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_policy_refusals_until"), ["until"], unique=False)
    op.create_table(
        "alert_rules",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("title", sa.String(length=128), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("parameters", sa.JSON(), nullable=False),
        sa.Column("above", sa.Float(), nullable=False),
        sa.Column("resolve_at", sa.Float(), nullable=False),
        sa.Column("for_seconds", sa.BigInteger(), nullable=False),
        sa.Column("severity", sa.String(length=16), nullable=False),
        sa.Column("runbook", sa.String(length=256), nullable=False),
        sa.Column("scope", sa.JSON(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("is_default", sa.Boolean(), nullable=False),
        sa.Column("changed_at", columns.UtcMicros(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_alert_rules")),
    )
    op.create_table(
        "silences",
        sa.Column("id", row_id, autoincrement=True, nullable=False),
        sa.Column("matchers", sa.JSON(), nullable=False),
        sa.Column("created_at", columns.UtcMicros(), nullable=False),
        sa.Column("until", columns.UtcMicros(), nullable=False),
        sa.Column("actor", sa.String(length=128), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("removed_at", columns.UtcMicros(), nullable=True),
        sa.Column("removed_by", sa.String(length=128), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_silences")),
    )
    with op.batch_alter_table("silences", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_silences_until"), ["until"], unique=False)
    op.create_table(
        "receivers",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("secret", sa.String(length=256), nullable=False),
        sa.Column("least_severity", sa.String(length=16), nullable=False),
        sa.Column("timeout_seconds", sa.BigInteger(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("changed_at", columns.UtcMicros(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_receivers")),
    )
    op.create_table(
        "notifications",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("receiver", sa.String(length=64), nullable=False),
        sa.Column("alert_id", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("next_at", columns.UtcMicros(), nullable=False),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("created_at", columns.UtcMicros(), nullable=False),
        sa.Column("ended_at", columns.UtcMicros(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_notifications")),
        sa.UniqueConstraint("receiver", "alert_id", "state", name=op.f("uq_notifications_receiver")),
    )
    with op.batch_alter_table("notifications", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_notifications_created_at"), ["created_at"], unique=False)
        batch_op.create_index("ix_notifications_due", ["status", "next_at"], unique=False)
    op.create_table(
        "inbound_alerts",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("policy", sa.String(length=64), nullable=False),
        sa.Column("engine_id", sa.String(length=64), nullable=True),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("received_at", columns.UtcMicros(), nullable=False),
        sa.Column("deliveries", sa.BigInteger(), nullable=False),
        sa.Column("taken_at", columns.UtcMicros(), nullable=True),
        sa.Column("done_at", columns.UtcMicros(), nullable=True),
        sa.Column("outcome", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_inbound_alerts")),
    )
    with op.batch_alter_table("inbound_alerts", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_inbound_alerts_received_at"), ["received_at"], unique=False)
        batch_op.create_index(batch_op.f("ix_inbound_alerts_done_at"), ["done_at"], unique=False)
