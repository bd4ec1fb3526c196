"""The tables of standing rules: policies, what they decided, and what engines refused them."""

from __future__ import annotations

import datetime as dt
from typing import Any

from sqlalchemy import Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from controlplane.store.base import Base, RowId


class Policy(Base):
    """A standing rule the scheduler runs: every so often, by a cron expression, or only on events (neither of them)."""

    __tablename__ = "policies"
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    kind: Mapped[str] = mapped_column(String(24))
    parameters: Mapped[dict[str, Any]]
    every_seconds: Mapped[int | None]
    cron: Mapped[str | None] = mapped_column(String(128))
    time_zone: Mapped[str] = mapped_column(String(64), default="UTC", server_default="UTC")  # of `cron`
    scope: Mapped[dict[str, Any]] = mapped_column(default=dict, server_default="{}")  # {"engine"|"group", "namespace"}
    paused: Mapped[bool] = mapped_column(default=False)
    paused_until: Mapped[dt.datetime | None]  # paused without it: until somebody resumes
    memory: Mapped[dict[str, Any]]  # what the policy must remember between runs (hysteresis), by engine
    changed_at: Mapped[dt.datetime]


class PolicyRun(Base):
    """One decision: the inputs it was made from, what it proposed, what was done, and what changed by that."""

    __tablename__ = "policy_runs"
    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    policy: Mapped[str] = mapped_column(String(64))
    engine_id: Mapped[str | None] = mapped_column(String(64))
    at: Mapped[dt.datetime] = mapped_column(index=True)
    trigger: Mapped[str] = mapped_column(String(16))  # schedule, alert, engine_start, manual
    dry_run: Mapped[bool]
    inputs: Mapped[dict[str, Any]]
    decision: Mapped[str] = mapped_column(String(32))
    proposed: Mapped[list[Any]]
    did: Mapped[dict[str, Any]]  # {"commands": [id], "revisions": [n], "deleted_rows": {table: n}}
    changed: Mapped[dict[str, Any]] = mapped_column(default=dict, server_default="{}")
    settled_at: Mapped[dt.datetime | None]  # None while something it did has no end yet
    error: Mapped[str | None] = mapped_column(Text)
    __table_args__ = (
        Index("ix_policy_runs_policy", "policy", "id"),
        Index("ix_policy_runs_settled", "settled_at"),
    )


class PolicyRefusal(Base):
    """A prefix that an engine refused a policy: left alone until `until`, which doubles with each refusal."""

    __tablename__ = "policy_refusals"
    policy: Mapped[str] = mapped_column(String(64), primary_key=True)
    engine_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    prefix_id: Mapped[str] = mapped_column(String(32), primary_key=True)
    reason: Mapped[str] = mapped_column(String(64))
    times: Mapped[int]
    at: Mapped[dt.datetime]
    until: Mapped[dt.datetime] = mapped_column(index=True)
