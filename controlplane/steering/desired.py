"""Desired state: append-only revisions of one whole document, for the fleet or for one engine.

What an engine should run with is the fleet's newest document overlaid by the engine's newest document. Revisions come
from one counter, so the larger of the two is the engine's own, monotonic revision.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from controlplane.auth import Role
from controlplane.errors import Conflict, NotFound
from controlplane.steering.deed import Deed
from controlplane.steering.limits import check_changes
from controlplane.store.models import DesiredState, Engine

# Mode and the end of a person's hold on it are one fact: they are overlaid and removed together.
MODE_KEYS = ("mode", "mode_expires_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """What one engine should run with now, and the revision that says so (0: nothing was ever asked for)."""

    revision: int
    document: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Revised:
    """The standing revision after a write, and what the write changed: key -> [before, after]."""

    revision: int
    document: dict[str, Any]
    diff: dict[str, list[Any]]


def diff(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The keys whose value differs, each with [before, after]; None stands for "not set"."""
    keys = sorted({*before, *after})
    return {key: [before.get(key), after.get(key)] for key in keys if before.get(key) != after.get(key)}


def mode_is_held(document: Mapping[str, Any], now: dt.datetime) -> bool:
    """Whether a person holds the mode: only a person's mode has an expiry, and it has not passed."""
    expires = document.get("mode_expires_at")
    return document.get("mode") is not None and expires is not None and dt.datetime.fromisoformat(expires) > now


def without_expired_mode(document: Mapping[str, Any], now: dt.datetime) -> dict[str, Any]:
    """The document as it counts now: a mode whose hold has passed is as good as not set."""
    expires = document.get("mode_expires_at")
    if expires is None or dt.datetime.fromisoformat(expires) > now:
        return dict(document)
    return {key: value for key, value in document.items() if key not in MODE_KEYS}


def overlay(fleet: Mapping[str, Any], own: Mapping[str, Any], now: dt.datetime) -> dict[str, Any]:
    """The fleet's document with the engine's on top. A person's hold on the mode outranks a mode without one."""
    fleet_now, own_now = without_expired_mode(fleet, now), without_expired_mode(own, now)
    fleet_wins = mode_is_held(fleet_now, now) and not mode_is_held(own_now, now)
    mode_from = fleet_now if fleet_wins or "mode" not in own_now else own_now
    merged = {key: value for key, value in {**fleet_now, **own_now}.items() if key not in MODE_KEYS}
    return merged | {key: mode_from[key] for key in MODE_KEYS if key in mode_from}


def newest(session: Session, engine_id: str | None) -> DesiredState | None:
    """The newest revision of exactly this document: the fleet's (None) or one engine's own."""
    scope = DesiredState.engine_id.is_(None) if engine_id is None else DesiredState.engine_id == engine_id
    return session.scalars(select(DesiredState).where(scope).order_by(DesiredState.revision.desc()).limit(1)).first()


def effective(session: Session, engine_id: str, now: dt.datetime) -> Effective:
    """What this engine should run with at `now`."""
    fleet, own = newest(session, None), newest(session, engine_id)
    document = overlay(fleet.document if fleet else {}, own.document if own else {}, now)
    return Effective(revision=max(fleet.revision if fleet else 0, own.revision if own else 0), document=document)


def revise(
    session: Session,
    deed: Deed,
    *,
    engine_id: str | None,
    changes: Mapping[str, Any],
    expect_revision: int | None = None,
    hold_mode: bool = True,
) -> Revised:
    """Appends a revision with `changes` applied (None removes a key) and audits it.

    `hold_mode`: a degraded mode without an expiry gets one, as a person's must; a policy's mode has none. Raises
    BadRequest for a value outside its limits, NotFound for an unknown engine and Conflict if the document moved on
    since `expect_revision`. A change that changes nothing appends nothing.
    """
    deed.must_be(Role.OPERATOR)
    page_tokens = _page_tokens(session, engine_id)
    current = newest(session, engine_id)
    standing = current.revision if current else 0
    if expect_revision is not None and standing != expect_revision:
        raise Conflict(
            "revision_moved",
            f"Desired state is at revision {standing}, not {expect_revision} as you saw it.",
            "Look at the newest revision and apply your change to that.",
        )
    checked = check_changes(changes, page_tokens=page_tokens, now=deed.now, hold_mode=hold_mode)
    merged = {**(current.document if current else {}), **checked}
    document = {key: value for key, value in merged.items() if value is not None}
    return _append(session, deed, engine_id, document, action="set_desired")


def rollback(session: Session, deed: Deed, *, revision: int) -> Revised:
    """Appends the document of an earlier revision as a new one. Raises NotFound for a revision that never was.

    A hold on the mode that has passed meanwhile is not brought back.
    """
    deed.must_be(Role.OPERATOR)
    target = session.get(DesiredState, revision)
    if target is None:
        raise NotFound(
            "revision_unknown", f"There is no revision {revision} of desired state.", "GET /v1/desired lists them."
        )
    document = without_expired_mode(target.document, deed.now)
    return _append(session, deed, target.engine_id, document, action="rollback_desired")


def expire_modes(session: Session, deed: Deed) -> list[str | None]:
    """Appends a revision without the mode wherever a person's hold has passed; returns the scopes it touched."""
    scopes: list[str | None] = [None, *session.scalars(select(Engine.id))]
    expired: list[str | None] = []
    for scope in scopes:
        current = newest(session, scope)
        if current is None:
            continue
        document = without_expired_mode(current.document, deed.now)
        if document != current.document:
            _append(session, deed, scope, document, action="expire_mode")
            expired.append(scope)
    return expired


def _append(session: Session, deed: Deed, engine_id: str | None, document: dict[str, Any], *, action: str) -> Revised:
    current = newest(session, engine_id)
    before = dict(current.document) if current else {}
    changed = diff(before, document)
    if not changed:
        return Revised(revision=current.revision if current else 0, document=document, diff={})
    row = DesiredState(
        engine_id=engine_id,
        document=document,
        actor=deed.principal.name,
        reason=deed.reason,
        at=deed.now,
        trace_id=deed.trace_id,
    )
    session.add(row)
    session.flush()
    deed.record(session, action, engine_id or "fleet", before=before, after=document)
    return Revised(revision=row.revision, document=document, diff=changed)


def _page_tokens(session: Session, engine_id: str | None) -> int | None:
    if engine_id is None:
        return None
    engine = session.get(Engine, engine_id)
    if engine is None:
        raise NotFound(
            "engine_unknown", f"No engine {engine_id!r} has ever registered.", "`kvdeck status` lists the engines."
        )
    return engine.page_tokens
