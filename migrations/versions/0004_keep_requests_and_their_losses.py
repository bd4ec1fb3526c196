"""Keep what requests lost by minute and cause, and each request for a while"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from controlplane.store import columns

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "loss_rollups",
        sa.Column("engine_id", sa.String(length=64), nullable=False),
        sa.Column("minute", columns.UtcMicros(), nullable=False),
        sa.Column("namespace", sa.String(length=128), nullable=False),
        sa.Column("cause", sa.String(length=32), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("engine_id", "minute", "namespace", "cause", name=op.f("pk_loss_rollups")),
    )
    op.create_table(
        "requests",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("engine_id", sa.String(length=64), nullable=False),
        sa.Column("trace_id", sa.String(length=32), nullable=False),
        sa.Column("span_id", sa.String(length=16), nullable=False),
        sa.Column("at", columns.UtcMicros(), nullable=False),
        sa.Column("namespace", sa.String(length=128), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.String(length=64), nullable=False),
        sa.Column("mode", sa.String(length=16), nullable=False),
        sa.Column("prefix_id", sa.String(length=32), nullable=True),
        sa.Column("lost_prefix_id", sa.String(length=32), nullable=True),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("lcp_tokens", sa.BigInteger(), nullable=False),
        sa.Column("usable_tokens", sa.BigInteger(), nullable=False),
        sa.Column("replay_tokens", sa.BigInteger(), nullable=False),
        sa.Column("lost", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_requests")),
    )
    with op.batch_alter_table("requests", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_requests_at"), ["at"], unique=False)
        batch_op.create_index("ix_requests_lost_prefix_id", ["lost_prefix_id", "at"], unique=False)
        batch_op.create_index(batch_op.f("ix_requests_trace_id"), ["trace_id"], unique=False)
