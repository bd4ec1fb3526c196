"""Index what pages order by; remember up to where an engine's spans were counted"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from controlplane.store import columns

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

# (table, index, columns): what the pages and retention order or cut by
INDEXES = (
    ("prefixes", "ix_prefixes_most_served", ["tokens_served"]),
    ("prefixes", "ix_prefixes_changed", ["changed_at"]),
    ("prefix_versions", "ix_prefix_versions_state", ["state_to", "at"]),
    ("validation_failures", "ix_validation_failures_latest", ["at"]),
    ("metric_rollups", "ix_metric_rollups_name", ["name", "minute"]),
    ("request_rollups", "ix_request_rollups_minute", ["minute"]),
    ("validation_rollups", "ix_validation_rollups_minute", ["minute"]),
    ("metric_points", "ix_metric_points_at", ["at"]),
    ("audit", "ix_audit_at", ["at"]),
    ("audit", "ix_audit_action", ["action", "id"]),
)


def upgrade() -> None:
    for table, index, over in INDEXES:
        op.create_index(index, table, over)
    with op.batch_alter_table("engines", schema=None) as batch_op:
        batch_op.add_column(sa.Column("counted_until", columns.UtcMicros(), nullable=True))
