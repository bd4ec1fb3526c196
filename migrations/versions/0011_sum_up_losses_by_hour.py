"""Keep losses by hour, too; find those of a range, and the newest runs of a policy, by an index"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from controlplane.store import columns

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

KEY = {"engine_id": sa.String(64), "namespace": sa.String(128), "cause": sa.String(32)}
SUMS = ("requests", "tokens")
HOUR = '"minute" - "minute" % 3600000000'


def upgrade() -> None:
    op.create_table(
        "loss_hours",
        *(sa.Column(name, kind, nullable=False) for name, kind in KEY.items()),
        sa.Column("hour", columns.UtcMicros(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in SUMS),
        sa.PrimaryKeyConstraint("engine_id", "hour", "namespace", "cause", name="pk_loss_hours"),
    )
    op.create_index("ix_loss_hours_hour", "loss_hours", ["hour"])
    listed, totals = ", ".join(f'"{name}"' for name in KEY), ", ".join(f'SUM("{name}")' for name in SUMS)
    op.execute(
        f'INSERT INTO loss_hours ({listed}, "hour", "requests", "tokens") '
        f"SELECT {listed}, {HOUR}, {totals} FROM loss_rollups GROUP BY {listed}, {HOUR}"
    )
    op.create_index("ix_loss_rollups_charts", "loss_rollups", ["minute", *KEY, *SUMS])
    op.drop_index("ix_policy_runs_policy", "policy_runs")
    op.create_index("ix_policy_runs_policy", "policy_runs", ["policy", "id"])
