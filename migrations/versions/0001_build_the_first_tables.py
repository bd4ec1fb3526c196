"""Build the first tables"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from controlplane.store import columns

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "alerts",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("rule", sa.String(length=64), nullable=False),
        sa.Column("engine_id", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.Column("threshold", sa.Float(), nullable=False),
        sa.Column("since", columns.UtcMicros(), nullable=False),
        sa.Column("fired_at", columns.UtcMicros(), nullable=True),
        sa.Column("resolved_at", columns.UtcMicros(), nullable=True),
        sa.Column("acknowledged_by", sa.String(length=128), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alerts")),
    )
    with op.batch_alter_table("alerts", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_alerts_state"), ["state"], unique=False)

    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("at", columns.UtcMicros(), nullable=False),
        sa.Column("actor", sa.String(length=128), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("target", sa.String(length=128), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("before", sa.JSON(), nullable=True),
        sa.Column("after", sa.JSON(), nullable=True),
        sa.Column("trace_id", sa.String(length=32), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_table(
        "checkpoints",
        sa.Column("engine_id", sa.String(length=64), nullable=False),
        sa.Column("checkpoint_id", sa.String(length=32), nullable=False),
        sa.Column("prefix_id", sa.String(length=32), nullable=False),
        sa.Column("boundary", sa.BigInteger(), nullable=False),
        sa.Column("kinds", sa.JSON(), nullable=False),
        sa.Column("tiers", sa.JSON(), nullable=False),
        sa.Column("changed_at", columns.UtcMicros(), nullable=False),
        sa.PrimaryKeyConstraint("engine_id", "checkpoint_id", name=op.f("pk_checkpoints")),
    )
    with op.batch_alter_table("checkpoints", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_checkpoints_prefix_id"), ["prefix_id"], unique=False)

    op.create_table(
        "commands",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("engine_id", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("arguments", sa.JSON(), nullable=False),
        sa.Column("idempotency_key", sa.String(length=128), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("progress", sa.JSON(), nullable=False),
        sa.Column("outcome", sa.JSON(), nullable=False),
        sa.Column("actor", sa.String(length=128), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", columns.UtcMicros(), nullable=False),
        sa.Column("expires_at", columns.UtcMicros(), nullable=False),
        sa.Column("delivered_at", columns.UtcMicros(), nullable=True),
        sa.Column("finished_at", columns.UtcMicros(), nullable=True),
        sa.Column("traceparent", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_commands")),
        sa.UniqueConstraint("idempotency_key", name=op.f("uq_commands_idempotency_key")),
    )
    with op.batch_alter_table("commands", schema=None) as batch_op:
        batch_op.create_index("ix_commands_created", ["created_at"], unique=False)
        batch_op.create_index(batch_op.f("ix_commands_engine_id"), ["engine_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_commands_status"), ["status"], unique=False)

    op.create_table(
        "desired_state",
        sa.Column("revision", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("engine_id", sa.String(length=64), nullable=True),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("actor", sa.String(length=128), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("at", columns.UtcMicros(), nullable=False),
        sa.Column("trace_id", sa.String(length=32), nullable=True),
        sa.PrimaryKeyConstraint("revision", name=op.f("pk_desired_state")),
    )
    with op.batch_alter_table("desired_state", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_desired_state_engine_id"), ["engine_id"], unique=False)

    op.create_table(
        "engines",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("boot_id", sa.String(length=64), nullable=False),
        sa.Column("model", sa.String(length=128), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("page_tokens", sa.BigInteger(), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("registered_at", columns.UtcMicros(), nullable=False),
        sa.Column("last_seen_at", columns.UtcMicros(), nullable=False),
        sa.Column("observed_revision", sa.BigInteger(), nullable=False),
        sa.Column("observed", sa.JSON(), nullable=False),
        sa.Column("stats", sa.JSON(), nullable=False),
        sa.Column("snapshot_wanted", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_engines")),
    )
    op.create_table(
        "history_gaps",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("engine_id", sa.String(length=64), nullable=False),
        sa.Column("prefix_id", sa.String(length=32), nullable=False),
        sa.Column("life", sa.BigInteger(), nullable=False),
        sa.Column("first_version", sa.BigInteger(), nullable=False),
        sa.Column("last_version", sa.BigInteger(), nullable=False),
        sa.Column("found_at", columns.UtcMicros(), nullable=False),
        sa.Column("closed_at", columns.UtcMicros(), nullable=True),
        sa.Column("closed_by", sa.String(length=16), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_history_gaps")),
        sa.UniqueConstraint("engine_id", "prefix_id", "life", "first_version", name=op.f("uq_history_gaps_engine_id")),
    )
    with op.batch_alter_table("history_gaps", schema=None) as batch_op:
        batch_op.create_index("ix_history_gaps_open", ["engine_id", "closed_at"], unique=False)

    op.create_table(
        "ingested_batches",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("engine_id", sa.String(length=64), nullable=False),
        sa.Column("first_at", columns.UtcMicros(), nullable=False),
        sa.Column("last_at", columns.UtcMicros(), nullable=False),
        sa.Column("received_at", columns.UtcMicros(), nullable=False),
        sa.Column("span_ids", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ingested_batches")),
    )
    with op.batch_alter_table("ingested_batches", schema=None) as batch_op:
        batch_op.create_index("ix_ingested_batches_last", ["engine_id", "last_at"], unique=False)
        batch_op.create_index(batch_op.f("ix_ingested_batches_received_at"), ["received_at"], unique=False)

    op.create_table(
        "metric_points",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("engine_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("attributes", sa.String(length=256), nullable=False),
        sa.Column("at", columns.UtcMicros(), nullable=False),
        sa.Column("boot_id", sa.String(length=64), nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=True),
        sa.Column("buckets", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_metric_points")),
    )
    with op.batch_alter_table("metric_points", schema=None) as batch_op:
        batch_op.create_index("ix_metric_points_series", ["engine_id", "name", "at"], unique=False)

    op.create_table(
        "metric_rollups",
        sa.Column("engine_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("attributes", sa.String(length=256), nullable=False),
        sa.Column("minute", columns.UtcMicros(), nullable=False),
        sa.Column("last", sa.Float(), nullable=False),
        sa.Column("delta", sa.Float(), nullable=False),
        sa.Column("maximum", sa.Float(), nullable=False),
        sa.Column("count_delta", sa.BigInteger(), nullable=False),
        sa.Column("bucket_deltas", sa.JSON(), nullable=True),
        sa.Column("boot_id", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("engine_id", "name", "attributes", "minute", name=op.f("pk_metric_rollups")),
    )
    op.create_table(
        "metric_series",
        sa.Column("engine_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("attributes", sa.String(length=256), nullable=False),
        sa.Column("at", columns.UtcMicros(), nullable=False),
        sa.Column("boot_id", sa.String(length=64), nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=True),
        sa.Column("buckets", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("engine_id", "name", "attributes", name=op.f("pk_metric_series")),
    )
    op.create_table(
        "policies",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=24), nullable=False),
        sa.Column("parameters", sa.JSON(), nullable=False),
        sa.Column("every_seconds", sa.BigInteger(), nullable=False),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("memory", sa.JSON(), nullable=False),
        sa.Column("changed_at", columns.UtcMicros(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_policies")),
    )
    op.create_table(
        "policy_runs",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("policy", sa.String(length=64), nullable=False),
        sa.Column("engine_id", sa.String(length=64), nullable=True),
        sa.Column("at", columns.UtcMicros(), nullable=False),
        sa.Column("trigger", sa.String(length=16), nullable=False),
        sa.Column("dry_run", sa.Boolean(), nullable=False),
        sa.Column("inputs", sa.JSON(), nullable=False),
        sa.Column("decision", sa.String(length=32), nullable=False),
        sa.Column("proposed", sa.JSON(), nullable=False),
        sa.Column("outcome", sa.JSON(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_policy_runs")),
    )
    with op.batch_alter_table("policy_runs", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_policy_runs_at"), ["at"], unique=False)
        batch_op.create_index(batch_op.f("ix_policy_runs_policy"), ["policy"], unique=False)

    op.create_table(
        "prefix_versions",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("engine_id", sa.String(length=64), nullable=False),
        sa.Column("prefix_id", sa.String(length=32), nullable=False),
        sa.Column("life", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("state_from", sa.String(length=24), nullable=False),
        sa.Column("state_to", sa.String(length=24), nullable=False),
        sa.Column("cause", sa.String(length=32), nullable=False),
        sa.Column("reason", sa.String(length=64), nullable=False),
        sa.Column("at", columns.UtcMicros(), nullable=False),
        sa.Column("monotonic_ns", sa.BigInteger(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("bytes_moved", sa.BigInteger(), nullable=False),
        sa.Column("gpu_bytes", sa.BigInteger(), nullable=False),
        sa.Column("host_bytes", sa.BigInteger(), nullable=False),
        sa.Column("disk_bytes", sa.BigInteger(), nullable=False),
        sa.Column("objects", sa.JSON(), nullable=False),
        sa.Column("command_id", sa.String(length=36), nullable=True),
        sa.Column("trace_id", sa.String(length=32), nullable=False),
        sa.Column("span_id", sa.String(length=16), nullable=False),
        sa.Column("cause_trace_id", sa.String(length=32), nullable=True),
        sa.Column("cause_span_id", sa.String(length=16), nullable=True),
        sa.Column("repaired", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_prefix_versions")),
        sa.UniqueConstraint("engine_id", "prefix_id", "life", "version", name=op.f("uq_prefix_versions_engine_id")),
    )
    with op.batch_alter_table("prefix_versions", schema=None) as batch_op:
        batch_op.create_index("ix_prefix_versions_at", ["engine_id", "at"], unique=False)

    op.create_table(
        "request_rollups",
        sa.Column("engine_id", sa.String(length=64), nullable=False),
        sa.Column("minute", columns.UtcMicros(), nullable=False),
        sa.Column("namespace", sa.String(length=128), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=24), nullable=False),
        sa.Column("tier", sa.String(length=8), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("lcp_tokens", sa.BigInteger(), nullable=False),
        sa.Column("usable_tokens", sa.BigInteger(), nullable=False),
        sa.Column("replay_tokens", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "engine_id", "minute", "namespace", "outcome", "reason", "state", "tier", name=op.f("pk_request_rollups")
        ),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("secret_sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", columns.UtcMicros(), nullable=False),
        sa.Column("expires_at", columns.UtcMicros(), nullable=True),
        sa.Column("used_at", columns.UtcMicros(), nullable=True),
        sa.Column("one_time", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("secret_sha256", name=op.f("uq_tokens_secret_sha256")),
    )
    op.create_table(
        "validation_failures",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("engine_id", sa.String(length=64), nullable=False),
        sa.Column("prefix_id", sa.String(length=32), nullable=False),
        sa.Column("validation", sa.String(length=32), nullable=False),
        sa.Column("object_kind", sa.String(length=32), nullable=False),
        sa.Column("reason", sa.String(length=64), nullable=False),
        sa.Column("boundary", sa.BigInteger(), nullable=False),
        sa.Column("at", columns.UtcMicros(), nullable=False),
        sa.Column("trace_id", sa.String(length=32), nullable=False),
        sa.Column("span_id", sa.String(length=16), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_validation_failures")),
        sa.UniqueConstraint("engine_id", "trace_id", "span_id", name=op.f("uq_validation_failures_engine_id")),
    )
    with op.batch_alter_table("validation_failures", schema=None) as batch_op:
        batch_op.create_index("ix_validation_failures_at", ["engine_id", "at"], unique=False)
        batch_op.create_index("ix_validation_failures_prefix", ["engine_id", "prefix_id"], unique=False)

    op.create_table(
        "validation_rollups",
        sa.Column("engine_id", sa.String(length=64), nullable=False),
        sa.Column("minute", columns.UtcMicros(), nullable=False),
        sa.Column("validation", sa.String(length=32), nullable=False),
        sa.Column("verdict", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.String(length=64), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "engine_id", "minute", "validation", "verdict", "reason", name=op.f("pk_validation_rollups")
        ),
    )
    op.create_table(
        "prefixes",
        sa.Column("engine_id", sa.String(length=64), nullable=False),
        sa.Column("prefix_id", sa.String(length=32), nullable=False),
        sa.Column("life", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=24), nullable=False),
        sa.Column("namespace", sa.String(length=128), nullable=False),
        sa.Column("parent_id", sa.String(length=32), nullable=True),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("pages", sa.BigInteger(), nullable=False),
        sa.Column("gpu_bytes", sa.BigInteger(), nullable=False),
        sa.Column("host_bytes", sa.BigInteger(), nullable=False),
        sa.Column("disk_bytes", sa.BigInteger(), nullable=False),
        sa.Column("objects", sa.JSON(), nullable=False),
        sa.Column("pinned", sa.Boolean(), nullable=False),
        sa.Column("tokens_served", sa.BigInteger(), nullable=False),
        sa.Column("requests_served", sa.BigInteger(), nullable=False),
        sa.Column("created_at", columns.UtcMicros(), nullable=False),
        sa.Column("changed_at", columns.UtcMicros(), nullable=False),
        sa.Column("served_at", columns.UtcMicros(), nullable=True),
        sa.ForeignKeyConstraint(["engine_id"], ["engines.id"], name=op.f("fk_prefixes_engine_id")),
        sa.PrimaryKeyConstraint("engine_id", "prefix_id", name=op.f("pk_prefixes")),
    )
    with op.batch_alter_table("prefixes", schema=None) as batch_op:
        batch_op.create_index("ix_prefixes_parent", ["engine_id", "parent_id"], unique=False)
        batch_op.create_index("ix_prefixes_served", ["engine_id", "tokens_served"], unique=False)
        batch_op.create_index("ix_prefixes_state", ["engine_id", "state"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("prefixes", schema=None) as batch_op:
        batch_op.drop_index("ix_prefixes_state")
        batch_op.drop_index("ix_prefixes_served")
        batch_op.drop_index("ix_prefixes_parent")

    op.drop_table("prefixes")
    op.drop_table("validation_rollups")
    with op.batch_alter_table("validation_failures", schema=None) as batch_op:
        batch_op.drop_index("ix_validation_failures_prefix")
        batch_op.drop_index("ix_validation_failures_at")

    op.drop_table("validation_failures")
    op.drop_table("tokens")
    op.drop_table("request_rollups")
    with op.batch_alter_table("prefix_versions", schema=None) as batch_op:
        batch_op.drop_index("ix_prefix_versions_at")

    op.drop_table("prefix_versions")
    with op.batch_alter_table("policy_runs", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_policy_runs_policy"))
        batch_op.drop_index(batch_op.f("ix_policy_runs_at"))

    op.drop_table("policy_runs")
    op.drop_table("policies")
    op.drop_table("metric_series")
    op.drop_table("metric_rollups")
    with op.batch_alter_table("metric_points", schema=None) as batch_op:
        batch_op.drop_index("ix_metric_points_series")

    op.drop_table("metric_points")
    with op.batch_alter_table("ingested_batches", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_ingested_batches_received_at"))
        batch_op.drop_index("ix_ingested_batches_last")

    op.drop_table("ingested_batches")
    with op.batch_alter_table("history_gaps", schema=None) as batch_op:
        batch_op.drop_index("ix_history_gaps_open")

    op.drop_table("history_gaps")
    op.drop_table("engines")
    with op.batch_alter_table("desired_state", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_desired_state_engine_id"))

    op.drop_table("desired_state")
    with op.batch_alter_table("commands", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_commands_status"))
        batch_op.drop_index(batch_op.f("ix_commands_engine_id"))
        batch_op.drop_index("ix_commands_created")

    op.drop_table("commands")
    with op.batch_alter_table("checkpoints", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_checkpoints_prefix_id"))

    op.drop_table("checkpoints")
    op.drop_table("audit")
    with op.batch_alter_table("alerts", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_alerts_state"))

    op.drop_table("alerts")
