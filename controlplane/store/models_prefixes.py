"""The tables of what engines hold: engines, prefixes, their history, checkpoints."""

from __future__ import annotations

import datetime as dt
from typing import Any

from sqlalchemy import Float, ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from controlplane.store.base import Base, RowId


class Engine(Base):
    """One engine process host: who it is, what it runs, what it last said."""

    __tablename__ = "engines"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    boot_id: Mapped[str] = mapped_column(String(64))
    model: Mapped[str] = mapped_column(String(128))
    fingerprint: Mapped[str] = mapped_column(String(64))
    page_tokens: Mapped[int]
    group_name: Mapped[str] = mapped_column(String(64), default="", server_default="")  # "": in no group
    labels: Mapped[dict[str, Any]]
    # The two above are what counts: what the engine says of itself, overlaid by what operators have set since.
    said: Mapped[dict[str, Any]] = mapped_column(default=dict, server_default="{}")  # {"group", "labels"}
    placed: Mapped[dict[str, Any]] = mapped_column(default=dict, server_default="{}")  # {"group"?, "labels": {k: v}}
    left_at: Mapped[dt.datetime | None]  # it said goodbye; None while it is expected to speak
    forgotten_at: Mapped[dt.datetime | None]  # an operator took it out of the lists; it comes back by registering
    registered_at: Mapped[dt.datetime]
    last_seen_at: Mapped[dt.datetime]
    observed_revision: Mapped[int] = mapped_column(default=0)
    observed: Mapped[
        dict[str, Any]
    ]  # mode, caps and knobs the engine says it runs with, and `error` if it refused some
    stats: Mapped[dict[str, Any]]  # the engine's own counters at the last heartbeat
    snapshot_wanted: Mapped[bool] = mapped_column(default=False)
    counted_until: Mapped[dt.datetime | None]  # see controlplane/ingest/dedupe.py
    curve_wanted: Mapped[bool] = mapped_column(default=False)
    # Its clock less ours, as measured at the last heartbeat; None: it does not say.
    clock_ahead_seconds: Mapped[float | None] = mapped_column(Float)


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
        Index("ix_prefixes_most_served", "tokens_served"),
        Index("ix_prefixes_changed", "changed_at"),
    )


class PrefixLabel(Base):
    """A name an operator gave a prefix. A prefix id is the same on every engine and in every life, and so is this."""

    __tablename__ = "prefix_labels"
    prefix_id: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[str] = mapped_column(String(128))
    actor: Mapped[str] = mapped_column(String(128))
    at: Mapped[dt.datetime]
    __table_args__ = (Index("ix_prefix_labels_value", "name", "value"),)


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
        Index("ix_prefix_versions_state", "state_to", "at"),
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
    __table_args__ = (
        UniqueConstraint("engine_id", "prefix_id", "life", "first_version"),
        Index("ix_history_gaps_open", "engine_id", "closed_at"),
    )


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
