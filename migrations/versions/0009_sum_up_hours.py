"""Keep sums by hour beside those by minute; let charts of requests be read from an index alone"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from controlplane.store import columns

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

TEXT, SUM = sa.String, sa.BigInteger
# (table of minutes, of hours, index, keys beside engine and hour, sums)
HOURS = (
    (
        "request_rollups",
        "request_hours",
        ("ix_request_hours_hour", ["hour"]),
        {"namespace": TEXT(128), "outcome": TEXT(16), "reason": TEXT(64), "state": TEXT(24), "tier": TEXT(8)},
        {name: SUM() for name in ("requests", "prompt_tokens", "lcp_tokens", "usable_tokens", "replay_tokens")},
    ),
    (
        "validation_rollups",
        "validation_hours",
        ("ix_validation_hours_hour", ["hour"]),
        {"validation": TEXT(32), "verdict": TEXT(16), "reason": TEXT(64)},
        {"count": SUM()},
    ),
    (
        "metric_rollups",
        "metric_hours",
        ("ix_metric_hours_name", ["name", "hour"]),
        {"name": TEXT(64), "attributes": TEXT(256)},
        {"delta": sa.Float()},
    ),
)
CHARTS = ["minute", "engine_id", "namespace", "state", "requests", "prompt_tokens", "lcp_tokens", "usable_tokens"]
HOUR_MICROS = 3_600_000_000


def upgrade() -> None:
    for minutes, hours, (index, over), keys, sums in HOURS:
        named = {"engine_id": TEXT(64), **keys}
        op.create_table(
            hours,
            *(sa.Column(name, kind, nullable=False) for name, kind in named.items()),
            sa.Column("hour", columns.UtcMicros(), nullable=False),
            *(sa.Column(name, kind, nullable=False) for name, kind in sums.items()),
            sa.PrimaryKeyConstraint(*_key_order(minutes, named), name=f"pk_{hours}"),
        )
        op.create_index(index, hours, over)
        listed = ", ".join(f'"{name}"' for name in named)
        added = ", ".join(f'"{name}"' for name in sums)
        totals = ", ".join(f'SUM("{name}")' for name in sums)
        op.execute(
            f'INSERT INTO {hours} ({listed}, "hour", {added}) '
            f'SELECT {listed}, "minute" - "minute" % {HOUR_MICROS} AS "hour", {totals} FROM {minutes} '
            f'GROUP BY {listed}, "minute" - "minute" % {HOUR_MICROS}'
            + (' HAVING SUM("delta") <> 0' if hours == "metric_hours" else "")
        )
    op.drop_index("ix_request_rollups_minute", "request_rollups")
    op.create_index("ix_request_rollups_charts", "request_rollups", CHARTS)


def _key_order(minutes: str, named: dict[str, sa.String]) -> list[str]:
    """As the models have it: a metric's hour comes last, as its minute does; another's is its second column."""
    names = list(named)
    return [*names, "hour"] if minutes == "metric_rollups" else [names[0], "hour", *names[1:]]
