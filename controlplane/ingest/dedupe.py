"""What makes a second delivery of a span count nothing.

Sums cannot tell whether a span is in them already, and exporters send a batch again when its answer was lost, or cut
the same spans into other batches. So each batch leaves the ids of its spans, 8 bytes each, in the same transaction
as its sums. A span keeps its start time, so only stored batches whose time range overlaps need to be looked at:
mostly none.

Ids are kept for an hour after receipt. When a batch's go, the engine remembers the latest start time in it: what
starts no later than that may have been counted or not, nobody can tell any more, and so it is counted no more. It is
the engine's own clock on both sides, so one that is hours off changes nothing; and spans that waited out a long outage
start later than all that was counted before it.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from controlplane.store.models import Engine, IngestedBatch

KEPT = dt.timedelta(hours=1)
KEY_BYTES = 8


def span_key(trace_id: bytes, span_id: bytes) -> bytes:
    """Eight bytes that stand for one span."""
    return hashlib.blake2b(trace_id + span_id, digest_size=KEY_BYTES).digest()


@dataclass(frozen=True, slots=True)
class Claim:
    """Of the spans of one export: those to count, and how many are too old to know whether they were."""

    unseen: frozenset[bytes]
    too_old: int


def claim_unseen(session: Session, engine: Engine, spans: Mapping[bytes, dt.datetime], now: dt.datetime) -> Claim:
    """Which of `spans` (key -> start time) came for the first time; from now on they are seen.

    `engine` is the row the caller has locked.
    """
    _forget_old(session, engine, now)
    counted_until = engine.counted_until
    known = {key: at for key, at in spans.items() if counted_until is None or at > counted_until}
    too_old = len(spans) - len(known)
    if not known:
        return Claim(frozenset(), too_old)
    unseen = set(known)
    overlapping = select(IngestedBatch.span_ids).where(
        IngestedBatch.engine_id == engine.id,
        IngestedBatch.last_at >= min(known.values()),
        IngestedBatch.first_at <= max(known.values()),
    )
    for packed in session.scalars(overlapping):
        unseen.difference_update(packed[start : start + KEY_BYTES] for start in range(0, len(packed), KEY_BYTES))
    if unseen:
        session.add(
            IngestedBatch(
                engine_id=engine.id,
                first_at=min(known[key] for key in unseen),
                last_at=max(known[key] for key in unseen),
                received_at=now,
                span_ids=b"".join(sorted(unseen)),
            )
        )
        session.flush()
    return Claim(frozenset(unseen), too_old)


def _forget_old(session: Session, engine: Engine, now: dt.datetime) -> None:
    old = (IngestedBatch.engine_id == engine.id, IngestedBatch.received_at < now - KEPT)
    latest = session.scalar(select(func.max(IngestedBatch.last_at)).where(*old))
    if latest is None:
        return
    engine.counted_until = max(latest, engine.counted_until or latest)
    session.execute(delete(IngestedBatch).where(*old).execution_options(synchronize_session=False))
