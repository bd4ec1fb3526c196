"""The tables of what people and policies want and did."""

from __future__ import annotations

import datetime as dt
from typing import Any

from sqlalchemy import Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from controlplane.store.base import Base, RowId


class DesiredState(Base):
    """What operators (and the degrade policy) want, as append-only revisions of one whole document."""

    __tablename__ = "desired_state"
    revision: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    engine_id: Mapped[str | None] = mapped_column(String(64))
    group_name: Mapped[str | None] = mapped_column(String(64))  # neither of the two: every engine
    document: Mapped[dict[str, Any]]
    actor: Mapped[str] = mapped_column(String(128))
    reason: Mapped[str] = mapped_column(Text)
    at: Mapped[dt.datetime]
    trace_id: Mapped[str | None] = mapped_column(String(32))
    __table_args__ = (Index("ix_desired_state_scope", "engine_id", "group_name", "revision"),)


class Command(Base):
    """An operator's edge: evict, warm, compact... with an outcome."""

    __tablename__ = "commands"
    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    engine_id: Mapped[str] = mapped_column(String(64))
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
    batch_id: Mapped[str | None] = mapped_column(String(36), index=True)  # the commands of one request have one
    selection: Mapped[dict[str, Any] | None]  # how its prefixes were chosen, when, and how many were left out why
    cancel_requested_at: Mapped[dt.datetime | None]  # somebody wants it stopped; the engine has not said so yet
    __table_args__ = (Index("ix_commands_created", "created_at"), Index("ix_commands_due", "engine_id", "status"))


class Audit(Base):
    """Who did what, why, before and after. Append-only: triggers refuse changes, and deletions above the floor."""

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
    __table_args__ = (Index("ix_audit_at", "at"), Index("ix_audit_action", "action", "id"))


class AuditFloor(Base):
    """One row: what of the audit is older than this has been let go, and may be deleted. Only ever rises."""

    __tablename__ = "audit_floor"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    before: Mapped[dt.datetime]


class LeadershipRow(Base):
    """Every leadership there was, kept for ever: the newest epoch may write and command."""

    __tablename__ = "leaderships"
    epoch: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=False)
    holder: Mapped[str] = mapped_column(String(128))  # host and process id
    began_at: Mapped[dt.datetime]
    seen_at: Mapped[dt.datetime | None]  # when it last said that it leads; None: it began under an older release


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
    engine_id: Mapped[str | None] = mapped_column(String(64))  # role engine: whom it speaks for; None: not bound yet
