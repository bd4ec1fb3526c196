"""Name groups, labels and batches; bind engine tokens"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from controlplane.store import columns

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("engines", schema=None) as batch_op:
        batch_op.add_column(sa.Column("group_name", sa.String(length=64), server_default="", nullable=False))
        batch_op.add_column(sa.Column("said", sa.JSON(), server_default="{}", nullable=False))
        batch_op.add_column(sa.Column("placed", sa.JSON(), server_default="{}", nullable=False))
        batch_op.add_column(sa.Column("left_at", columns.UtcMicros(), nullable=True))
        batch_op.add_column(sa.Column("forgotten_at", columns.UtcMicros(), nullable=True))

    op.create_table(
        "prefix_labels",
        sa.Column("prefix_id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.String(length=128), nullable=False),
        sa.Column("actor", sa.String(length=128), nullable=False),
        sa.Column("at", columns.UtcMicros(), nullable=False),
        sa.PrimaryKeyConstraint("prefix_id", "name", name=op.f("pk_prefix_labels")),
    )
    with op.batch_alter_table("prefix_labels", schema=None) as batch_op:
        batch_op.create_index("ix_prefix_labels_value", ["name", "value"], unique=False)

    with op.batch_alter_table("desired_state", schema=None) as batch_op:
        batch_op.add_column(sa.Column("group_name", sa.String(length=64), nullable=True))
        batch_op.create_index(batch_op.f("ix_desired_state_group_name"), ["group_name"], unique=False)

    with op.batch_alter_table("commands", schema=None) as batch_op:
        batch_op.add_column(sa.Column("batch_id", sa.String(length=36), nullable=True))
        batch_op.add_column(sa.Column("selection", sa.JSON(), nullable=True))
        batch_op.add_column(sa.Column("cancel_requested_at", columns.UtcMicros(), nullable=True))
        batch_op.create_index(batch_op.f("ix_commands_batch_id"), ["batch_id"], unique=False)

    with op.batch_alter_table("tokens", schema=None) as batch_op:
        batch_op.add_column(sa.Column("engine_id", sa.String(length=64), nullable=True))
    # Tokens from before spoke for any engine, and hosts that share one must not fall silent at the upgrade.
    op.execute(sa.text("UPDATE tokens SET engine_id = '*' WHERE role = 'engine'"))
