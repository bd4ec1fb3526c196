"""Engine hosts: what they last said, and what waits for them."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import ColumnElement, CursorResult, Table, bindparam, delete, func, select, update
from sqlalchemy.orm import Session

from controlplane.auth import Role
from controlplane.errors import BadRequest, Conflict, NotFound
from controlplane.ingest.engines import require_engine_row, settle_place
from controlplane.steering import commands, desired
from controlplane.steering.deed import Deed
from controlplane.store.models import Checkpoint, Command, DesiredState, Engine, LeadershipRow, Prefix

NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,63}$")
LONGEST_LABEL_VALUE = 128
MOST_LABELS = 32


def _newest_revision(*scope: ColumnElement[bool]) -> Any:
    return select(func.max(DesiredState.revision)).where(*scope).scalar_subquery()


# Every engine asks every few seconds: one statement each, made once, that loads no row of the store as an object.
_ENGINES = cast(Table, Engine.__table__)
_FOR_ALL = DesiredState.engine_id.is_(None)
_WAITING = select(
    _ENGINES.c.snapshot_wanted,
    _ENGINES.c.curve_wanted,
    _newest_revision(_FOR_ALL, DesiredState.group_name.is_(None)).label("fleets"),
    _newest_revision(_FOR_ALL, DesiredState.group_name == _ENGINES.c.group_name).label("groups"),
    _newest_revision(DesiredState.engine_id == _ENGINES.c.id).label("own"),
    select(func.count()).select_from(Command).where(commands.DUE).scalar_subquery().label("commands"),
    select(func.max(LeadershipRow.epoch)).scalar_subquery().label("epoch"),
).where(_ENGINES.c.id == bindparam("engine_id"))
_SAID = ("last_seen_at", "observed_revision", "observed", "stats", "clock_ahead_seconds")
_HEARTBEAT = (
    update(_ENGINES)
    .where(_ENGINES.c.id == bindparam("speaker"), _ENGINES.c.boot_id == bindparam("boot"))
    .values({name: bindparam(name) for name in _SAID})
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What an engine would be told now."""

    revision: int  # the newest that reaches it, by itself, its group or the fleet
    commands: int
    snapshot_wanted: bool
    curve_wanted: bool
    epoch: int

    def is_news(self, after_revision: int) -> bool:
        """Whether a poll that knows `after_revision` should be answered now.

        A wanted snapshot is not news: the next heartbeat asks for it, and a poll would spin until it has come.
        """
        return self.revision != after_revision or self.commands > 0


def heartbeat(
    session: Session,
    engine_id: str,
    *,
    boot_id: str,
    observed_revision: int,
    observed: Mapping[str, Any],
    stats: Mapping[str, Any],
    now: dt.datetime,
    sent_at: dt.datetime | None = None,
) -> None:
    """Stores what the engine says of itself. Raises NotFound or Conflict when it must register first.

    `sent_at` is the engine's clock as it spoke; ours at the same moment is `now`, less the way.
    """
    said = {
        "last_seen_at": now,
        "observed_revision": observed_revision,
        "observed": dict(observed),
        "stats": dict(stats),
        "clock_ahead_seconds": None if sent_at is None else (sent_at - now).total_seconds(),
    }
    done = session.execute(_HEARTBEAT, {"speaker": engine_id, "boot": boot_id, **said})
    if isinstance(done, CursorResult) and done.rowcount == 0:
        require_engine_row(session, engine_id, boot_id)  # says why


def waiting(session: Session, engine_id: str, now: dt.datetime) -> Waiting:
    """What waits for this engine. Reads only. Raises NotFound."""
    found = session.execute(_WAITING, commands.due(engine_id, now)).one_or_none()
    if found is None:
        raise NotFound("engine_unknown", f"No engine {engine_id!r} has registered here.", "Register first.")
    return Waiting(
        revision=max(found.fleets or 0, found.groups or 0, found.own or 0),
        commands=min(found.commands, commands.MOST_DELIVERED_AT_ONCE),
        snapshot_wanted=found.snapshot_wanted,
        curve_wanted=found.curve_wanted,
        epoch=found.epoch or 0,
    )


def goodbye(session: Session, engine_id: str, *, boot_id: str, now: dt.datetime) -> None:
    """The engine stops on purpose. Raises NotFound, and Conflict when another boot of it speaks by now."""
    engine = require_engine_row(session, engine_id, boot_id)
    engine.left_at = engine.last_seen_at = now


def check_place(group: str | None, labels: Mapping[str, str | None]) -> None:
    """Raises BadRequest for a group or labels that cannot be stored or typed."""
    if group and not NAME.match(group):
        raise BadRequest(
            "group_invalid",
            f"{group!r} is no name of a group.",
            "Use 1 to 64 letters, digits and ._:/-, beginning with a letter or digit.",
        )
    check_labels(labels)


def check_labels(labels: Mapping[str, str | None]) -> None:
    """Raises BadRequest for labels that cannot be stored or typed; None as a value takes one away."""
    if len(labels) > MOST_LABELS:
        raise BadRequest("labels_many", f"{len(labels)} labels were given.", f"At most {MOST_LABELS} may be.")
    for name, value in labels.items():
        if not NAME.match(name) or len(name) > 64:
            raise BadRequest(
                "label_invalid",
                f"{name!r} is no name of a label.",
                "Use 1 to 64 letters, digits and ._:/-, beginning with a letter or digit.",
            )
        if value is not None and not (len(value) <= LONGEST_LABEL_VALUE and (value.isprintable() or not value)):
            raise BadRequest(
                "label_invalid",
                f"The value of label {name!r} is {value[:40]!r}.",
                f"Use at most {LONGEST_LABEL_VALUE} printable characters.",
            )


def place(
    session: Session, deed: Deed, engine_id: str, *, group: str | None, labels: Mapping[str, str | None]
) -> Engine:
    """Set an engine's group ("": none; None: leave it) and labels (None: take it away), over what it says of itself.

    A new group brings another desired state, so the engine's own document gets a new revision, which makes it look.
    Raises Forbidden, NotFound and BadRequest.
    """
    deed.must_be(Role.OPERATOR)
    check_place(group, labels)
    engine = require_engine_row(session, engine_id)
    before = {"group": engine.group_name, "labels": engine.labels}
    placed = {**engine.placed, "labels": {**engine.placed.get("labels", {}), **labels}}
    if group is not None:
        placed["group"] = group
    engine.placed = placed
    settle_place(engine)
    after = {"group": engine.group_name, "labels": engine.labels}
    if after != before:
        deed.record(session, "place_engine", engine_id, before=before, after=after)
    if after["group"] != before["group"]:
        desired.restate(session, deed, engine_id)
    return engine


def forget(session: Session, deed: Deed, engine_id: str) -> Engine:
    """Take an engine that left, or is long silent, out of the lists. Its history stays; it comes back by registering.

    What it holds now is struck from the store's present; a snapshot brings it back with the engine. Raises Forbidden,
    NotFound, and Conflict for an engine that still speaks.
    """
    deed.must_be(Role.OPERATOR)
    engine = require_engine_row(session, engine_id)
    if engine.left_at is None and engine.last_seen_at > deed.now - commands.SILENT_AFTER:
        raise Conflict(
            "engine_live",
            f"Engine {engine_id} spoke {(deed.now - engine.last_seen_at).total_seconds():.0f} s ago.",
            "Stop it first: an engine that is stopped on purpose says goodbye, and can then be forgotten.",
        )
    engine.forgotten_at = deed.now
    for table in (Checkpoint, Prefix):
        session.execute(delete(table).where(table.engine_id == engine_id))
    deed.record(session, "forget_engine", engine_id, before={"left_at": _text(engine.left_at)})
    return engine


def _text(moment: dt.datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
