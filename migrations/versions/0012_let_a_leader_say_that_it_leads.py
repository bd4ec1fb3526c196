"""Let a leader say that it leads, so that a quiet one is not taken for a missing one"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from controlplane.store import columns

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("leaderships", sa.Column("seen_at", columns.UtcMicros(), nullable=True))
