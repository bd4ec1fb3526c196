"""Holes in the history. Versions are dense inside a life, so a skipped one is a lost or late span.

A gap is found when a version comes that does not follow the newest one known, and closed when the missing spans come
after all ("span"), when a snapshot tells where the prefix stands ("snapshot"), or when its life ends ("evicted").
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import func, or_, select, update
from sqlalchemy.orm import Session

from controlplane.ingest.facts import TransitionFact
from controlplane.store.among import among
from controlplane.store.models import Engine, HistoryGap, PrefixVersion
from controlplane.store.upsert import insert_new

Life = tuple[str, int]  # prefix id, life
LATE = dt.timedelta(seconds=15)  # exporters send every few seconds, and try again for about as long


@dataclass(frozen=True, slots=True)
class Span:
    """The versions from `first` to `last`, both inside."""

    first: int
    last: int


def holes(versions: Iterable[int], after: int) -> list[Span]:
    """The runs missing between `after`, the newest version known, and the largest of `versions`."""
    found: list[Span] = []
    for version in sorted(set(versions)):
        if version > after + 1:
            found.append(Span(after + 1, version - 1))
        after = max(after, version)
    return found


def remaining(gap: Span, come: Iterable[int]) -> list[Span]:
    """What is still missing of a gap once the versions in `come` are there."""
    inside = [version for version in come if gap.first <= version <= gap.last]
    return holes([*inside, gap.last + 1], gap.first - 1)


def versions_known(
    session: Session, engine_id: str, facts: Sequence[TransitionFact], stored: Mapping[str, tuple[int, int]]
) -> dict[Life, int]:
    """The newest version known of every life in `facts`. Read it before they are written.

    `stored` has the life and version each prefix is at, which answers for all but the lives before that one: only
    those are looked up in the history.
    """
    known: dict[Life, int] = {(prefix_id, life): version for prefix_id, (life, version) in stored.items()}
    earlier = {fact.prefix_id for fact in facts if fact.life < stored.get(fact.prefix_id, (0, 0))[0]}
    if earlier:
        query = (
            select(PrefixVersion.prefix_id, PrefixVersion.life, func.max(PrefixVersion.version))
            .where(PrefixVersion.engine_id == engine_id, among(session, PrefixVersion.prefix_id, earlier))
            .group_by(PrefixVersion.prefix_id, PrefixVersion.life)
        )
        known.update({(prefix_id, life): newest for prefix_id, life, newest in session.execute(query)})
    return known


def find_gaps(
    session: Session,
    engine_id: str,
    facts: Sequence[TransitionFact],
    known: dict[Life, int],
    now: dt.datetime,
    *,
    repaired: bool,
) -> None:
    """Open and close gaps after `facts` were written. `known` is what `versions_known` gave before that."""
    versions: dict[Life, list[int]] = defaultdict(list)
    for fact in facts:
        versions[fact.prefix_id, fact.life].append(fact.version)
    if not repaired:
        _shrink(session, engine_id, versions, now)
    opened = [
        {"engine_id": engine_id, "prefix_id": life[0], "life": life[1], "first_version": gap.first}
        | {"last_version": gap.last, "found_at": now, "closed_at": None, "closed_by": None}
        for life, come in versions.items()
        for gap in holes(come, known.get(life, 0))
    ]
    insert_new(session, HistoryGap, opened, ("engine_id", "prefix_id", "life", "first_version"))
    closing = [fact for fact in facts if repaired or fact.state_to == "EVICTED"]
    holed = prefixes_with_open_gaps(session, engine_id) if closing else set()
    for fact in closing:
        if fact.prefix_id in holed:
            _close_up_to(session, engine_id, fact, "snapshot" if repaired else "evicted", now)


def prefixes_with_open_gaps(session: Session, engine_id: str) -> set[str]:
    """The prefixes of an engine whose history has a hole that is still open: few, in a healthy system."""
    query = select(HistoryGap.prefix_id).where(HistoryGap.engine_id == engine_id, HistoryGap.closed_at.is_(None))
    return set(session.scalars(query))


def ask_for_snapshot(session: Session, engine: Engine, now: dt.datetime) -> None:
    """Want the engine's snapshot when a gap has been open for longer than a late span takes to come."""
    overdue = select(HistoryGap.id).where(
        HistoryGap.engine_id == engine.id, HistoryGap.closed_at.is_(None), HistoryGap.found_at < now - LATE
    )
    if not engine.snapshot_wanted and session.scalar(overdue.limit(1)) is not None:
        engine.snapshot_wanted = True


def _shrink(session: Session, engine_id: str, versions: dict[Life, list[int]], now: dt.datetime) -> None:
    """Take late spans out of the gaps they fill. A gap closed for another reason becomes closed by span, as it is."""
    query = select(HistoryGap).where(
        HistoryGap.engine_id == engine_id,
        among(session, HistoryGap.prefix_id, {prefix_id for prefix_id, _life in versions}),
        or_(HistoryGap.closed_by.is_(None), HistoryGap.closed_by != "span"),
    )
    for row in session.scalars(query).all():
        come = versions.get((row.prefix_id, row.life), [])
        if any(row.first_version <= version <= row.last_version for version in come):
            _fill(session, row, come, now)
    session.flush()


def _fill(session: Session, row: HistoryGap, come: Sequence[int], now: dt.datetime) -> None:
    left = remaining(Span(row.first_version, row.last_version), come)
    if not left:
        row.closed_at, row.closed_by = now, "span"
        return
    row.first_version, row.last_version = left[0].first, left[0].last
    for gap in left[1:]:
        session.add(
            HistoryGap(
                engine_id=row.engine_id,
                prefix_id=row.prefix_id,
                life=row.life,
                first_version=gap.first,
                last_version=gap.last,
                found_at=row.found_at,
                closed_at=row.closed_at,
                closed_by=row.closed_by,
            )
        )


def _close_up_to(session: Session, engine_id: str, fact: TransitionFact, by: str, now: dt.datetime) -> None:
    below = (HistoryGap.life < fact.life) | ((HistoryGap.life == fact.life) & (HistoryGap.last_version < fact.version))
    mine = (HistoryGap.engine_id == engine_id, HistoryGap.prefix_id == fact.prefix_id)
    closing = update(HistoryGap).where(*mine, below, HistoryGap.closed_at.is_(None)).values(closed_at=now, closed_by=by)
    session.execute(closing.execution_options(synchronize_session=False))
