"""Keep how far an engine's clock is ahead; index what every engine asks every few seconds"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("engines", schema=None) as batch_op:
        batch_op.add_column(sa.Column("clock_ahead_seconds", sa.Float(), nullable=True))
    op.drop_index("ix_commands_engine_id", "commands")
    op.create_index("ix_commands_due", "commands", ["engine_id", "status"])
    op.drop_index("ix_desired_state_engine_id", "desired_state")
    op.drop_index("ix_desired_state_group_name", "desired_state")
    op.create_index("ix_desired_state_scope", "desired_state", ["engine_id", "group_name", "revision"])
