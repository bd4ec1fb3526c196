"""What makes a second delivery of a span count nothing.

Sums cannot tell whether a span is in them already, and exporters send a batch again when its answer was lost, or cut
the same spans into other batches. So each batch leaves the ids of its spans, 8 bytes each, in the same transaction
as its sums. A span keeps its start time, so only stored batches whose time range overlaps need to be looked at:
mostly none. Kept for an hour after receipt, which is longer than any exporter retries.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Mapping

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from controlplane.store.models import IngestedBatch

KEPT = dt.timedelta(hours=1)
KEY_BYTES = 8


def span_key(trace_id: bytes, span_id: bytes) -> bytes:
    """Eight bytes that stand for one span."""
    return hashlib.blake2b(trace_id + span_id, digest_size=KEY_BYTES).digest()


def claim_unseen(session: Session, engine_id: str, spans: Mapping[bytes, dt.datetime], now: dt.datetime) -> set[bytes]:
    """The keys in `spans` (key -> start time) that came for the first time; from now on they are seen."""
    session.execute(delete(IngestedBatch).where(IngestedBatch.received_at < now - KEPT))
    if not spans:
        return set()
    first_at, last_at = min(spans.values()), max(spans.values())
    overlapping = select(IngestedBatch.span_ids).where(
        IngestedBatch.engine_id == engine_id, IngestedBatch.last_at >= first_at, IngestedBatch.first_at <= last_at
    )
    unseen = set(spans)
    for packed in session.scalars(overlapping):
        unseen.difference_update(packed[start : start + KEY_BYTES] for start in range(0, len(packed), KEY_BYTES))
    if unseen:
        session.add(
            IngestedBatch(
                engine_id=engine_id,
                first_at=min(spans[key] for key in unseen),
                last_at=max(spans[key] for key in unseen),
                received_at=now,
                span_ids=b"".join(sorted(unseen)),
            )
        )
        session.flush()
    return unseen
