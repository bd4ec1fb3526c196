"""Engines as the store knows them: registered before they may speak, one boot at a time."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from controlplane.clock import Clock, utc_now
from controlplane.errors import BadRequest, Conflict, NotFound
from controlplane.store.models import Engine


def register_engine(
    session: Session,
    engine_id: str,
    *,
    boot_id: str,
    model: str,
    fingerprint: str,
    page_tokens: int,
    labels: dict[str, Any],
    observed: dict[str, Any],
    group: str = "",
    clock: Clock = utc_now,
) -> Engine:
    """Insert the engine, or take it over for a new boot: then a snapshot is wanted, as what it holds is unknown.

    `group` and `labels` are what the engine says of itself; what operators have set since outranks them. An engine that
    had left, or was forgotten, is back.
    """
    if not 0 < len(engine_id) <= 64:
        raise BadRequest("engine_id", f"The engine id {engine_id!r} is not 1 to 64 characters.", "Choose another.")
    now = clock()
    engine = session.get(Engine, engine_id)
    if engine is None:
        engine = Engine(id=engine_id, boot_id="", stats={}, observed_revision=0, registered_at=now, placed={})
        session.add(engine)
    if engine.boot_id != boot_id:
        engine.boot_id = boot_id
        engine.observed_revision = 0
        engine.registered_at = now
        engine.snapshot_wanted = True
        engine.counted_until = None  # of the boot before nothing is taken any more
    engine.model = model
    engine.fingerprint = fingerprint
    engine.page_tokens = page_tokens
    engine.said = {"group": group, "labels": labels}
    engine.observed = observed
    engine.left_at = engine.forgotten_at = None
    settle_place(engine)
    engine.last_seen_at = now
    session.flush()
    return engine


def settle_place(engine: Engine) -> None:
    """Work out an engine's group and labels: what it says of itself, overlaid by what operators set (None: gone)."""
    said, placed = engine.said, engine.placed
    group = placed.get("group")
    engine.group_name = said.get("group", "") if group is None else group
    merged = {**said.get("labels", {}), **placed.get("labels", {})}
    engine.labels = {name: value for name, value in merged.items() if value is not None}


def require_engine_row(session: Session, engine_id: str, boot_id: str | None = None) -> Engine:
    """The engine's row, locked where the database locks rows, so that one engine's batches are applied one by one.

    Raises NotFound for an engine that never registered, Conflict when `boot_id` is not the boot that did.
    """
    engine = session.scalar(select(Engine).where(Engine.id == engine_id).with_for_update())
    if engine is None:
        raise NotFound(
            "engine_unknown",
            f"No engine {engine_id!r} has registered here.",
            f"Register first: POST /v1/engines/{engine_id}/register.",
        )
    if boot_id is not None and engine.boot_id != boot_id:
        raise Conflict(
            "engine_boot",
            f"Engine {engine_id!r} is registered with boot {engine.boot_id!r}, this comes from boot {boot_id!r}.",
            "Register the new boot first. If it goes on, two processes use one engine id: give one another id.",
        )
    return engine
