"""The tables of the store. `migrations/versions/` builds exactly these; a test compares the two."""

from __future__ import annotations

import datetime as dt
from typing import Any

from sqlalchemy import JSON, BigInteger, Float, ForeignKey, Index, Integer, String, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from controlplane.store.columns import UtcMicros

# SQLite only autoincrements INTEGER keys; Postgres wants BIGINT for append-only history.
RowId = BigInteger().with_variant(Integer, "sqlite")


class Base(DeclarativeBase):
    type_annotation_map = {dt.datetime: UtcMicros, int: BigInteger, dict[str, Any]: JSON, list[Any]: JSON}


class Engine(Base):
    """One engine process host: who it is, what it runs, what it last said."""

    __tablename__ = "engines"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    boot_id: Mapped[str] = mapped_column(String(64))
    model: Mapped[str] = mapped_column(String(128))
    fingerprint: Mapped[str] = mapped_column(String(64))
    page_tokens: Mapped[int]
    labels: Mapped[dict[str, Any]]
    registered_at: Mapped[dt.datetime]
    last_seen_at: Mapped[dt.datetime]
    observed_revision: Mapped[int] = mapped_column(default=0)
    observed: Mapped[dict[str, Any]]  # mode, caps and knobs the engine says it runs with, and `error` if it refused some
    stats: Mapped[dict[str, Any]]  # the engine's own counters at the last heartbeat
    snapshot_wanted: Mapped[bool] = mapped_column(default=False)


class Prefix(Base):
    """A prefix as it is now: the newest version of its newest life."""

    __tablename__ = "prefixes"
    engine_id: Mapped[str] = mapped_column(ForeignKey("engines.id"), primary_key=True)
    prefix_id: Mapped[str] = mapped_column(String(32), primary_key=True)
    life: Mapped[int]
    version: Mapped[int]
    state: Mapped[str] = mapped_column(String(24))
    namespace: Mapped[str] = mapped_column(String(128))
    parent_id: Mapped[str | None] = mapped_column(String(32))
    tokens: Mapped[int]
    pages: Mapped[int]
    gpu_bytes: Mapped[int]
    host_bytes: Mapped[int]
    disk_bytes: Mapped[int]
    objects: Mapped[dict[str, Any]]  # object kind -> tier -> bytes
    pinned: Mapped[bool] = mapped_column(default=False)
    tokens_served: Mapped[int] = mapped_column(default=0)
    requests_served: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[dt.datetime]
    changed_at: Mapped[dt.datetime]
    served_at: Mapped[dt.datetime | None]
    __table_args__ = (
        Index("ix_prefixes_state", "engine_id", "state"),
        Index("ix_prefixes_served", "engine_id", "tokens_served"),
        Index("ix_prefixes_parent", "engine_id", "parent_id"),
    )


class PrefixVersion(Base):
    """Append-only history: one row a transition, idempotent on (engine, prefix, life, version)."""

    __tablename__ = "prefix_versions"
    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    engine_id: Mapped[str] = mapped_column(String(64))
    prefix_id: Mapped[str] = mapped_column(String(32))
    life: Mapped[int]
    version: Mapped[int]
    state_from: Mapped[str] = mapped_column(String(24))
    state_to: Mapped[str] = mapped_column(String(24))
    cause: Mapped[str] = mapped_column(String(32))
    reason: Mapped[str] = mapped_column(String(64))
    at: Mapped[dt.datetime]
    monotonic_ns: Mapped[int]
    tokens: Mapped[int]
    bytes_moved: Mapped[int]
    gpu_bytes: Mapped[int]
    host_bytes: Mapped[int]
    disk_bytes: Mapped[int]
    objects: Mapped[dict[str, Any]]
    command_id: Mapped[str | None] = mapped_column(String(36))
    trace_id: Mapped[str] = mapped_column(String(32))
    span_id: Mapped[str] = mapped_column(String(16))
    cause_trace_id: Mapped[str | None] = mapped_column(String(32))
    cause_span_id: Mapped[str | None] = mapped_column(String(16))
    repaired: Mapped[bool] = mapped_column(default=False)  # written from an engine snapshot, not from a span
    __table_args__ = (
        UniqueConstraint("engine_id", "prefix_id", "life", "version"),
        Index("ix_prefix_versions_at", "engine_id", "at"),
    )


class HistoryGap(Base):
    """Versions that were skipped: a lost span. Open until a snapshot repairs it."""

    __tablename__ = "history_gaps"
    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    engine_id: Mapped[str] = mapped_column(String(64))
    prefix_id: Mapped[str] = mapped_column(String(32))
    life: Mapped[int]
    first_version: Mapped[int]
    last_version: Mapped[int]
    found_at: Mapped[dt.datetime]
    closed_at: Mapped[dt.datetime | None]
    closed_by: Mapped[str | None] = mapped_column(String(16))  # "span" (it came late), "snapshot", "evicted"
    __table_args__ = (UniqueConstraint("engine_id", "prefix_id", "life", "first_version"),)


class Checkpoint(Base):
    """A boundary the engine holds objects for."""

    __tablename__ = "checkpoints"
    engine_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    checkpoint_id: Mapped[str] = mapped_column(String(32), primary_key=True)
    prefix_id: Mapped[str] = mapped_column(String(32), index=True)
    boundary: Mapped[int]
    kinds: Mapped[list[Any]]
    tiers: Mapped[list[Any]]
    changed_at: Mapped[dt.datetime]


class ValidationRollup(Base):
    """Validations by minute: the passing ones live only here."""

    __tablename__ = "validation_rollups"
    engine_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    minute: Mapped[dt.datetime] = mapped_column(primary_key=True)
    validation: Mapped[str] = mapped_column(String(32), primary_key=True)
    verdict: Mapped[str] = mapped_column(String(16), primary_key=True)
    reason: Mapped[str] = mapped_column(String(64), primary_key=True)
    count: Mapped[int]


class ValidationFailure(Base):
    """Every failed validation, one row each. The span id makes re-delivery harmless."""

    __tablename__ = "validation_failures"
    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    engine_id: Mapped[str] = mapped_column(String(64))
    prefix_id: Mapped[str] = mapped_column(String(32))
    validation: Mapped[str] = mapped_column(String(32))
    object_kind: Mapped[str] = mapped_column(String(32))
    reason: Mapped[str] = mapped_column(String(64))
    boundary: Mapped[int]
    at: Mapped[dt.datetime]
    trace_id: Mapped[str] = mapped_column(String(32))
    span_id: Mapped[str] = mapped_column(String(16))
    __table_args__ = (
        UniqueConstraint("engine_id", "trace_id", "span_id"),
        Index("ix_validation_failures_at", "engine_id", "at"),
    )


class RequestRollup(Base):
    """Requests by minute and outcome: token sums, so that any ratio can be made later."""

    __tablename__ = "request_rollups"
    engine_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    minute: Mapped[dt.datetime] = mapped_column(primary_key=True)
    namespace: Mapped[str] = mapped_column(String(128), primary_key=True)
    outcome: Mapped[str] = mapped_column(String(16), primary_key=True)  # hit, partial, miss, bypass
    reason: Mapped[str] = mapped_column(String(64), primary_key=True)  # why lcp was not usable ("none" if it was)
    state: Mapped[str] = mapped_column(String(24), primary_key=True)  # serving state of the boundary's prefix
    tier: Mapped[str] = mapped_column(String(8), primary_key=True)  # slowest tier the hit came from
    requests: Mapped[int]
    prompt_tokens: Mapped[int]
    lcp_tokens: Mapped[int]
    usable_tokens: Mapped[int]
    replay_tokens: Mapped[int]


class MetricPoint(Base):
    """One observed value of one series. Counters are kept cumulative, as the engine sends them."""

    __tablename__ = "metric_points"
    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    engine_id: Mapped[str] = mapped_column(String(64))
    name: Mapped[str] = mapped_column(String(64))
    attributes: Mapped[str] = mapped_column(String(256))  # canonical "k=v,k=v", sorted: the series key
    at: Mapped[dt.datetime]
    boot_id: Mapped[str] = mapped_column(String(64))  # a counter starts again with the boot
    value: Mapped[float] = mapped_column(Float)  # sum of a counter or histogram, value of a gauge
    count: Mapped[int | None]  # histograms only
    buckets: Mapped[dict[str, Any] | None]  # histograms only: {"bounds": [...], "counts": [...]}
    __table_args__ = (Index("ix_metric_points_series", "engine_id", "name", "at"),)


class MetricRollup(Base):
    """A series by minute. `last` of a counter is cumulative; `delta` is its growth inside the minute, resets handled."""

    __tablename__ = "metric_rollups"
    engine_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    attributes: Mapped[str] = mapped_column(String(256), primary_key=True)
    minute: Mapped[dt.datetime] = mapped_column(primary_key=True)
    last: Mapped[float] = mapped_column(Float)
    delta: Mapped[float] = mapped_column(Float)
    maximum: Mapped[float] = mapped_column(Float)
    count_delta: Mapped[int]
    bucket_deltas: Mapped[dict[str, Any] | None]
    boot_id: Mapped[str] = mapped_column(String(64))


class DesiredState(Base):
    """What operators (and the degrade policy) want, as append-only revisions of one whole document."""

    __tablename__ = "desired_state"
    revision: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    engine_id: Mapped[str | None] = mapped_column(String(64), index=True)  # None: every engine
    document: Mapped[dict[str, Any]]
    actor: Mapped[str] = mapped_column(String(128))
    reason: Mapped[str] = mapped_column(Text)
    at: Mapped[dt.datetime]
    trace_id: Mapped[str | None] = mapped_column(String(32))


class Command(Base):
    """An operator's edge: evict, warm, compact... with an outcome."""

    __tablename__ = "commands"
    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    engine_id: Mapped[str] = mapped_column(String(64), index=True)
    kind: Mapped[str] = mapped_column(String(16))
    arguments: Mapped[dict[str, Any]]
    idempotency_key: Mapped[str] = mapped_column(String(128), unique=True)
    epoch: Mapped[int]  # fencing epoch of the issuer; an engine refuses older than the newest it saw
    status: Mapped[str] = mapped_column(String(16), index=True)  # see controlplane/steering/commands.py for the table
    progress: Mapped[dict[str, Any]]
    outcome: Mapped[dict[str, Any]]
    actor: Mapped[str] = mapped_column(String(128))
    reason: Mapped[str] = mapped_column(Text)
    created_at: Mapped[dt.datetime]
    expires_at: Mapped[dt.datetime]
    delivered_at: Mapped[dt.datetime | None]
    finished_at: Mapped[dt.datetime | None]
    traceparent: Mapped[str | None] = mapped_column(String(64))


class Policy(Base):
    """A standing rule the scheduler runs."""

    __tablename__ = "policies"
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    kind: Mapped[str] = mapped_column(String(24))
    parameters: Mapped[dict[str, Any]]
    every_seconds: Mapped[int]
    paused: Mapped[bool] = mapped_column(default=False)
    memory: Mapped[dict[str, Any]]  # what the policy must remember between runs (hysteresis), by engine
    changed_at: Mapped[dt.datetime]


class PolicyRun(Base):
    """One decision with the inputs it was made from."""

    __tablename__ = "policy_runs"
    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    policy: Mapped[str] = mapped_column(String(64), index=True)
    engine_id: Mapped[str | None] = mapped_column(String(64))
    at: Mapped[dt.datetime]
    trigger: Mapped[str] = mapped_column(String(16))  # schedule, alert, manual
    dry_run: Mapped[bool]
    inputs: Mapped[dict[str, Any]]
    decision: Mapped[str] = mapped_column(String(32))
    proposed: Mapped[list[Any]]
    outcome: Mapped[dict[str, Any]]
    error: Mapped[str | None] = mapped_column(Text)


class Alert(Base):
    """A rule that is pending, firing or resolved on one engine."""

    __tablename__ = "alerts"
    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    rule: Mapped[str] = mapped_column(String(64))
    engine_id: Mapped[str] = mapped_column(String(64))
    state: Mapped[str] = mapped_column(String(16), index=True)
    summary: Mapped[str] = mapped_column(Text)
    value: Mapped[float] = mapped_column(Float)
    threshold: Mapped[float] = mapped_column(Float)
    since: Mapped[dt.datetime]
    fired_at: Mapped[dt.datetime | None]
    resolved_at: Mapped[dt.datetime | None]
    acknowledged_by: Mapped[str | None] = mapped_column(String(128))


class Audit(Base):
    """Who did what, why, before and after. Append-only."""

    __tablename__ = "audit"
    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    at: Mapped[dt.datetime]
    actor: Mapped[str] = mapped_column(String(128))
    role: Mapped[str] = mapped_column(String(16))
    action: Mapped[str] = mapped_column(String(32))
    target: Mapped[str] = mapped_column(String(128))
    reason: Mapped[str] = mapped_column(Text)
    before: Mapped[dict[str, Any] | None]
    after: Mapped[dict[str, Any] | None]
    trace_id: Mapped[str | None] = mapped_column(String(32))


class Token(Base):
    """A hashed credential. The secret itself is shown once and never stored."""

    __tablename__ = "tokens"
    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    name: Mapped[str] = mapped_column(String(128))
    role: Mapped[str] = mapped_column(String(16))
    secret_sha256: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[dt.datetime]
    expires_at: Mapped[dt.datetime | None]
    used_at: Mapped[dt.datetime | None]
    one_time: Mapped[bool] = mapped_column(default=False)
