"""Engine hosts: what they last said, and what waits for them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from controlplane.errors import NotFound
from controlplane.ingest.engines import require_engine_row
from controlplane.steering import commands, desired
from controlplane.steering.leader import newest_epoch
from controlplane.store.models import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What an engine would be told now."""

    desired: desired.Effective
    commands: int
    snapshot_wanted: bool
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
        epoch=newest_epoch(session),
    )
