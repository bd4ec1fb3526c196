"""Engine hosts: what they last said, and what waits for them."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete
from sqlalchemy.orm import Session

from controlplane.auth import Role
from controlplane.errors import BadRequest, Conflict, NotFound
from controlplane.ingest.engines import require_engine_row, settle_place
from controlplane.steering import commands, desired
from controlplane.steering.deed import Deed
from controlplane.steering.leader import newest_epoch
from controlplane.store.models import Checkpoint, Engine, Prefix

NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,63}$")
LONGEST_LABEL_VALUE = 128
MOST_LABELS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What an engine would be told now."""

    desired: desired.Effective
    commands: int
    snapshot_wanted: bool
    curve_wanted: bool
    epoch: int

    def is_news(self, after_revision: int) -> bool:
        """Whether a poll that knows `after_revision` should be answered now.

        A wanted snapshot is not news: the next heartbeat asks for it, and a poll would spin until it has come.
        """
        return self.desired.revision != after_revision or self.commands > 0


def heartbeat(
    session: Session,
    engine_id: str,
    *,
    boot_id: str,
    observed_revision: int,
    observed: Mapping[str, Any],
    stats: Mapping[str, Any],
    now: dt.datetime,
) -> None:
    """Stores what the engine says of itself. Raises NotFound or Conflict when it must register first."""
    engine = require_engine_row(session, engine_id, boot_id)
    engine.last_seen_at = now
    engine.observed_revision = observed_revision
    engine.observed = dict(observed)
    engine.stats = dict(stats)


def waiting(session: Session, engine_id: str, now: dt.datetime) -> Waiting:
    """What waits for this engine. Reads only. Raises NotFound."""
    engine = session.get(Engine, engine_id)
    if engine is None:
        raise NotFound("engine_unknown", f"No engine {engine_id!r} has registered here.", "Register first.")
    return Waiting(
        desired=desired.effective(session, engine_id, now),
        commands=commands.count_waiting(session, engine_id, now),
        snapshot_wanted=engine.snapshot_wanted,
        curve_wanted=engine.curve_wanted,
        epoch=newest_epoch(session),
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
