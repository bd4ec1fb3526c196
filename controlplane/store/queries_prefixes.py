"""Prefixes: the list, one prefix's life, and the damaged ones."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, false, func, or_, select
from sqlalchemy.orm import Session

from controlplane.errors import BadRequest, NotFound
from controlplane.store.models import (
    Checkpoint,
    Engine,
    HistoryGap,
    Prefix,
    PrefixLabel,
    PrefixVersion,
    ValidationFailure,
)
from controlplane.store.queries_failures import FailureView
from controlplane.store.query_types import STATES, Engines, of_engine, view

MOST_ROWS = 1000
MOST_VERSIONS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixView:
    """A prefix as it is now. Bytes are what it holds by tier; `objects` is object kind -> tier -> bytes."""

    engine_id: str
    prefix_id: str
    parent_id: str | None
    namespace: str
    state: str
    life: int
    version: int
    tokens: int
    pages: int
    gpu_bytes: int
    host_bytes: int
    disk_bytes: int
    objects: dict[str, Any]
    pinned: bool
    tokens_served: int
    requests_served: int
    created_at: dt.datetime
    changed_at: dt.datetime
    served_at: dt.datetime | None
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixPage:
    """Some of the prefixes that match, and how many there are."""

    total: int
    rows: list[PrefixView]


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionView:
    """One transition. `repaired`: told by a snapshot or concluded from one, not by the transition's own span."""

    life: int
    version: int
    state_from: str
    state_to: str
    cause: str
    reason: str
    at: dt.datetime
    tokens: int
    bytes_moved: int
    gpu_bytes: int
    host_bytes: int
    disk_bytes: int
    objects: dict[str, Any]
    command_id: str | None
    trace_id: str
    span_id: str
    cause_trace_id: str | None
    cause_span_id: str | None
    repaired: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointView:
    """A boundary at which generation may resume, and where its objects are."""

    checkpoint_id: str
    boundary: int
    kinds: list[str]
    tiers: list[str]
    changed_at: dt.datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class GapView:
    """Versions the history does not have. `closed_by`: span, snapshot, evicted; None while open."""

    prefix_id: str
    life: int
    first_version: int
    last_version: int
    found_at: dt.datetime
    closed_at: dt.datetime | None
    closed_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixDetail:
    """One prefix: now, its newest versions (newest first), checkpoints, failed validations, gaps, children."""

    now: PrefixView
    versions: list[VersionView]
    versions_total: int
    checkpoints: list[CheckpointView]
    failures: list[FailureView]
    gaps: list[GapView]
    children: list[PrefixView]


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedView:
    """A quarantined prefix and the transition that put it there."""

    prefix: PrefixView
    reason: str
    cause: str
    at: dt.datetime
    trace_id: str


_HELD = Prefix.gpu_bytes + Prefix.host_bytes + Prefix.disk_bytes
ORDERS: dict[str, tuple[Any, ...]] = {
    "served": (Prefix.tokens_served.desc(),),
    "requests": (Prefix.requests_served.desc(),),
    "recent": (func.coalesce(Prefix.served_at, Prefix.changed_at).desc(),),
    "changed": (Prefix.changed_at.desc(),),
    "oldest": (Prefix.created_at,),
    "tokens": (Prefix.tokens.desc(),),
    "bytes": (_HELD.desc(),),
    "wasted": ((_HELD * 1.0 / (Prefix.tokens_served + 1)).desc(),),  # most bytes for the least that they served
    "id": (),
}


def list_prefixes(
    session: Session,
    *,
    engine_id: Engines = None,
    states: Sequence[str] = (),
    namespace: str | None = None,
    search: str = "",
    id_start: str = "",
    pinned: bool | None = None,
    label: tuple[str, str | None] | None = None,
    holds_in: str = "",
    order: str = "served",
    limit: int = 100,
    offset: int = 0,
) -> PrefixPage:
    """Prefixes that match, in one of ORDERS. Without `states`: all but the evicted ones.

    `search` matches the start of a prefix id or any part of a namespace, `id_start` only the former. `limit` is held to
    1,000; `label` is a name with its value, or None for any; `holds_in` is a tier (gpu, host, disk) it has bytes in.
    Raises BadRequest for an order or a state that is none.
    """
    if order not in ORDERS:
        raise BadRequest("order_unknown", f"There is no order {order!r}.", f"Orders: {', '.join(ORDERS)}.")
    if unknown := set(states) - set(STATES):
        raise BadRequest("state_unknown", f"There is no state {min(unknown)!r}.", f"States: {', '.join(STATES)}.")
    conditions = [*_present(engine_id), *_matching(states, namespace, search, pinned)]
    if id_start:
        conditions += _id_begins(id_start.lower(), engine_id)
    if label is not None:
        conditions.append(has_label(*label))
    if holds_in in ("gpu", "host", "disk"):
        conditions.append(getattr(Prefix, f"{holds_in}_bytes") > 0)
    total = session.scalar(select(func.count()).select_from(Prefix).where(*conditions)) or 0
    query = (
        select(Prefix)
        .where(*conditions)
        .order_by(*ORDERS[order], Prefix.engine_id, Prefix.prefix_id)
        .limit(max(1, min(limit, MOST_ROWS)))
        .offset(max(0, offset))
    )
    return PrefixPage(total=total, rows=_views(session, session.scalars(query).all()))


def require_namespace(session: Session, namespace: str) -> None:
    """Raises NotFound for a namespace that no prefix was ever of, naming some there are."""
    if session.scalar(select(Prefix.prefix_id).where(Prefix.namespace == namespace).limit(1)) is None:
        some = session.scalars(select(Prefix.namespace).distinct().order_by(Prefix.namespace).limit(10)).all()
        known = ", ".join(some) or "none yet"
        raise NotFound("namespace_unknown", f"There is no namespace {namespace!r}.", f"There are: {known}.")


def get_prefix(session: Session, engine_id: str, prefix_id: str) -> PrefixDetail:
    """All that is known of one prefix. Raises NotFound."""
    row = session.scalar(select(Prefix).where(*_present(engine_id), Prefix.prefix_id == prefix_id))
    if row is None:
        raise NotFound(
            "prefix_unknown",
            f"Engine {engine_id!r} has no prefix {prefix_id!r}.",
            "`kvdeck prefixes` lists those there are; an evicted one is forgotten when its history is.",
        )
    return PrefixDetail(
        now=_views(session, [row])[0],
        versions=list_versions(session, engine_id, prefix_id),
        versions_total=_count_versions(session, engine_id, prefix_id),
        checkpoints=_checkpoints(session, engine_id, prefix_id),
        failures=_failures(session, engine_id, prefix_id),
        gaps=list_gaps(session, engine_id, prefix_id=prefix_id, open_only=False),
        children=list_children(session, engine_id, prefix_id),
    )


def list_versions(session: Session, engine_id: str, prefix_id: str, *, limit: int = MOST_VERSIONS) -> list[VersionView]:
    """The newest transitions of one prefix, over all its lives, newest first."""
    query = (
        select(PrefixVersion)
        .where(PrefixVersion.engine_id == engine_id, PrefixVersion.prefix_id == prefix_id)
        .order_by(PrefixVersion.life.desc(), PrefixVersion.version.desc())
        .limit(limit)
    )
    return [view(VersionView, row) for row in session.scalars(query)]


def list_children(
    session: Session, engine_id: str, prefix_id: str | None, *, limit: int = MOST_ROWS
) -> list[PrefixView]:
    """The prefixes right below one in the tree, or the roots (None); most served first."""
    parent = Prefix.parent_id.is_(None) if prefix_id is None else Prefix.parent_id == prefix_id
    query = (
        select(Prefix)
        .where(*_present(engine_id), Prefix.state != "EVICTED", parent)
        .order_by(Prefix.tokens_served.desc(), Prefix.prefix_id)
        .limit(limit)
    )
    return _views(session, session.scalars(query).all())


def list_gaps(
    session: Session, engine_id: Engines = None, *, prefix_id: str | None = None, open_only: bool = True
) -> list[GapView]:
    """Holes in the history, newest first, 1,000 at most."""
    conditions = list(of_engine(HistoryGap.engine_id, engine_id))
    if prefix_id is not None:
        conditions.append(HistoryGap.prefix_id == prefix_id)
    if open_only:
        conditions.append(HistoryGap.closed_at.is_(None))
    query = select(HistoryGap).where(*conditions).order_by(HistoryGap.id.desc()).limit(MOST_ROWS)
    return [view(GapView, row) for row in session.scalars(query)]


def list_damaged(session: Session, engine_id: Engines = None, *, limit: int = 100) -> list[DamagedView]:
    """Prefixes in quarantine, newest first, each with the reason of the transition that put it there."""
    joined = (
        (PrefixVersion.engine_id == Prefix.engine_id)
        & (PrefixVersion.prefix_id == Prefix.prefix_id)
        & (PrefixVersion.life == Prefix.life)
        & (PrefixVersion.version == Prefix.version)
    )
    query = (
        select(Prefix, PrefixVersion)
        .join(PrefixVersion, joined)
        .where(*_present(engine_id), Prefix.state == "QUARANTINED")
        .order_by(Prefix.changed_at.desc())
        .limit(limit)
    )
    found = session.execute(query).all()
    views = _views(session, [prefix for prefix, _ in found])
    return [view(DamagedView, version, prefix=prefix) for prefix, (_, version) in zip(views, found, strict=True)]


def has_label(name: str, value: str | None) -> ColumnElement[bool]:
    """Whether a prefix has the label, with this value or (None) any."""
    named = select(PrefixLabel.prefix_id).where(PrefixLabel.name == name)
    return Prefix.prefix_id.in_(named if value is None else named.where(PrefixLabel.value == value))


def labels_of(session: Session, prefix_ids: Sequence[str]) -> dict[str, dict[str, str]]:
    """Prefix -> its labels, of those that have any."""
    found: dict[str, dict[str, str]] = {}
    for start in range(0, len(prefix_ids), 500):
        chunk = list(prefix_ids[start : start + 500])
        for row in session.scalars(select(PrefixLabel).where(PrefixLabel.prefix_id.in_(chunk))):
            found.setdefault(row.prefix_id, {})[row.name] = row.value
    return found


def _views(session: Session, rows: Sequence[Prefix]) -> list[PrefixView]:
    labels = labels_of(session, [row.prefix_id for row in rows])
    return [view(PrefixView, row, labels=labels.get(row.prefix_id, {})) for row in rows]


def _present(engine_id: Engines) -> list[ColumnElement[bool]]:
    # Version 0 is a prefix that served before its first transition came: nothing is known of it yet.
    return [*of_engine(Prefix.engine_id, engine_id), Prefix.version > 0]


def _matching(
    states: Sequence[str], namespace: str | None, search: str, pinned: bool | None
) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = [Prefix.state.in_(states) if states else Prefix.state != "EVICTED"]
    if namespace is not None:
        conditions.append(Prefix.namespace == namespace)
    if pinned is not None:
        conditions.append(Prefix.pinned.is_(pinned))
    if search.strip():
        text = search.strip()
        by_id = Prefix.prefix_id.startswith(text.lower(), autoescape=True)
        conditions.append(or_(by_id, Prefix.namespace.contains(text, autoescape=True)))
    return conditions


def _id_begins(start: str, engine_id: Engines) -> list[ColumnElement[bool]]:
    """As a range of ids on every engine, which the key answers; LIKE would read all ids there are."""
    if not re.fullmatch("[0-9a-f]{1,32}", start):
        return [false()]
    within = [Prefix.prefix_id >= start, Prefix.prefix_id <= start.ljust(32, "f")]
    return within if engine_id is not None else [Prefix.engine_id.in_(select(Engine.id)), *within]


def _count_versions(session: Session, engine_id: str, prefix_id: str) -> int:
    mine = (PrefixVersion.engine_id == engine_id, PrefixVersion.prefix_id == prefix_id)
    return session.scalar(select(func.count()).select_from(PrefixVersion).where(*mine)) or 0


def _checkpoints(session: Session, engine_id: str, prefix_id: str) -> list[CheckpointView]:
    mine = (Checkpoint.engine_id == engine_id, Checkpoint.prefix_id == prefix_id)
    return [
        view(CheckpointView, row)
        for row in session.scalars(select(Checkpoint).where(*mine).order_by(Checkpoint.boundary))
    ]


def _failures(session: Session, engine_id: str, prefix_id: str) -> list[FailureView]:
    mine = (ValidationFailure.engine_id == engine_id, ValidationFailure.prefix_id == prefix_id)
    query = select(ValidationFailure).where(*mine).order_by(ValidationFailure.at.desc()).limit(100)
    return [view(FailureView, row) for row in session.scalars(query)]
