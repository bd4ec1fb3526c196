"""Record leaderships in a table of their own"""

from __future__ import annotations

import datetime as dt

import sqlalchemy as sa
from alembic import op

from controlplane.store import columns

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

AUDIT = sa.table("audit", sa.column("id"), sa.column("action"), sa.column("after", sa.JSON()))


def upgrade() -> None:
    table = op.create_table(
        "leaderships",
        sa.Column("epoch", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("holder", sa.String(length=128), nullable=False),
        sa.Column("began_at", columns.UtcMicros(), nullable=False),
        sa.PrimaryKeyConstraint("epoch", name=op.f("pk_leaderships")),
    )
    # Engines refuse epochs older than one they have seen, so counting goes on where it stood.
    bind = op.get_bind()
    issued = bind.scalar(sa.text("SELECT max(epoch) FROM commands")) or 0
    led = bind.scalar(sa.select(AUDIT.c.after).where(AUDIT.c.action == "lead").order_by(AUDIT.c.id.desc()).limit(1))
    newest = max(issued, int((led or {}).get("epoch", 0)))
    if newest:
        began_at = dt.datetime.now(dt.UTC)
        op.execute(sa.insert(table).values(epoch=newest, holder="before the upgrade", began_at=began_at))
