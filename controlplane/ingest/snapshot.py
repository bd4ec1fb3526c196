"""An engine's own list of what it holds: the repair for every span that was lost."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from controlplane.clock import Clock, utc_now
from controlplane.errors import BadRequest
from controlplane.ingest.engines import require_engine_row
from controlplane.ingest.facts import BadFact, TransitionFact
from controlplane.ingest.gaps import prefixes_with_open_gaps
from controlplane.ingest.history import apply_transitions
from controlplane.ingest.reading import read_transition
from controlplane.store.columns import micros
from controlplane.store.models import HistoryGap, Prefix

SETTLING = dt.timedelta(seconds=10)  # a prefix changed this recently may be newer than the snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOutcome:
    """What a snapshot changed: prefixes it moved to a newer version, prefixes found gone, gaps it closed."""

    prefixes: int
    moved: int
    gone: int
    gaps_closed: int


def apply_snapshot(
    session: Session,
    engine_id: str,
    prefixes: Sequence[Mapping[str, Any]],
    *,
    boot_id: str | None = None,
    taken_at: dt.datetime | None = None,
    clock: Clock = utc_now,
) -> SnapshotOutcome:
    """Make the store agree with the engine. `prefixes` are wire.md's snapshot entries, *all* the engine holds.

    Newer versions than the store's become history rows marked repaired; open gaps below them close; prefixes that are
    not listed become EVICTED, unless they changed within 10 s of `taken_at` (default: now), as their spans may be
    newer than the snapshot. Clears `snapshot_wanted`. Raises NotFound, Conflict (boot), BadRequest (an entry is bad:
    a half-read snapshot would evict what it could not read).
    """
    now = clock()
    engine = require_engine_row(session, engine_id, boot_id)
    facts = _read_all(prefixes, now)
    stored = _orders(session, engine_id)
    gaps_before = _open_gaps(session, engine_id)
    moved = [fact for fact in facts if fact.order > stored.get(fact.prefix_id, (0, 0))]
    holed = prefixes_with_open_gaps(session, engine_id)
    settled = [fact for fact in facts if fact.order == stored.get(fact.prefix_id) and fact.prefix_id in holed]
    apply_transitions(session, engine_id, moved + settled, now, repaired=True)
    gone = _gone(session, engine_id, {fact.prefix_id for fact in facts}, (taken_at or now) - SETTLING, now)
    apply_transitions(session, engine_id, gone, now, repaired=True)
    engine.snapshot_wanted = False
    session.flush()
    return SnapshotOutcome(
        prefixes=len(facts),
        moved=len(moved),
        gone=len(gone),
        gaps_closed=max(0, gaps_before - _open_gaps(session, engine_id)),
    )


def _read_all(prefixes: Sequence[Mapping[str, Any]], now: dt.datetime) -> list[TransitionFact]:
    facts = []
    for index, entry in enumerate(prefixes):
        try:
            facts.append(read_transition(entry, now))
        except BadFact as error:
            raise BadRequest(
                "snapshot_entry",
                f"Entry {index} of the snapshot ({entry.get('prefix.id')!r}): {error}.",
                "Nothing was applied. Send every entry as docs/reference/wire.md, section 3, says.",
            ) from error
    return facts


def _orders(session: Session, engine_id: str) -> dict[str, tuple[int, int]]:
    query = select(Prefix.prefix_id, Prefix.life, Prefix.version).where(Prefix.engine_id == engine_id)
    return {prefix_id: (life, version) for prefix_id, life, version in session.execute(query)}


def _open_gaps(session: Session, engine_id: str) -> int:
    open_here = (HistoryGap.engine_id == engine_id, HistoryGap.closed_at.is_(None))
    return session.scalar(select(func.count()).select_from(HistoryGap).where(*open_here)) or 0


def _gone(
    session: Session, engine_id: str, held: set[str], settled_before: dt.datetime, now: dt.datetime
) -> list[TransitionFact]:
    query = select(Prefix).where(
        Prefix.engine_id == engine_id,
        Prefix.version > 0,
        Prefix.state != "EVICTED",
        Prefix.changed_at <= settled_before,
    )
    return [_eviction(row, now) for row in session.scalars(query) if row.prefix_id not in held]


def _eviction(row: Prefix, now: dt.datetime) -> TransitionFact:
    return TransitionFact(
        prefix_id=row.prefix_id,
        parent_id=row.parent_id or "",
        namespace=row.namespace,
        life=row.life,
        version=row.version + 1,
        state_from=row.state,
        state_to="EVICTED",
        cause="snapshot",
        reason="gone_from_engine",
        at_us=micros(now),
        tokens=row.tokens,
        pages=row.pages,
        checkpoints=[],
    )
