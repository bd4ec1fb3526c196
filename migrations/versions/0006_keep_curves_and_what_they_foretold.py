"""Keep curves, and what they foretold of caps"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from controlplane.store import columns

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("engines", schema=None) as batch_op:
        batch_op.add_column(sa.Column("curve_wanted", sa.Boolean(), nullable=False, server_default=sa.false()))
    with op.batch_alter_table("engines", schema=None) as batch_op:
        batch_op.alter_column("curve_wanted", existing_type=sa.Boolean(), server_default=None)
    op.create_table(
        "curves",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("engine_id", sa.String(length=64), nullable=False),
        sa.Column("boot_id", sa.String(length=64), nullable=False),
        sa.Column("at", columns.UtcMicros(), nullable=False),
        sa.Column("samples", sa.Float(), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_curves")),
    )
    with op.batch_alter_table("curves", schema=None) as batch_op:
        batch_op.create_index("ix_curves_engine", ["engine_id", "at"], unique=False)
    op.create_table(
        "cap_predictions",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("engine_id", sa.String(length=64), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("namespace", sa.String(length=128), nullable=False),
        sa.Column("at", columns.UtcMicros(), nullable=False),
        sa.Column("caps", sa.JSON(), nullable=False),
        sa.Column("caps_before", sa.JSON(), nullable=False),
        sa.Column("samples", sa.Float(), nullable=False),
        sa.Column("before_ratio", sa.Float(), nullable=True),
        sa.Column("predicted_ratio", sa.Float(), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("measured_ratio", sa.Float(), nullable=True),
        sa.Column("measured_requests", sa.BigInteger(), nullable=False),
        sa.Column("measured_from", columns.UtcMicros(), nullable=False),
        sa.Column("measured_until", columns.UtcMicros(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_cap_predictions")),
        sa.UniqueConstraint("engine_id", "at", "namespace", name=op.f("uq_cap_predictions_engine_id")),
    )


def downgrade() -> None:
    op.drop_table("cap_predictions")
    with op.batch_alter_table("curves", schema=None) as batch_op:
        batch_op.drop_index("ix_curves_engine")
    op.drop_table("curves")
    with op.batch_alter_table("engines", schema=None) as batch_op:
        batch_op.drop_column("curve_wanted")
