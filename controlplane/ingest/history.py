"""Transitions into rows: the append-only history, the prefixes as they are now, and their checkpoints.

Spans come late, twice and in any order. The history is keyed by (prefix, life, version); a prefix "as it is now" is
its transition of the largest (life, version), whenever that came.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import case, delete, or_, select
from sqlalchemy.orm import Session

from controlplane.ingest.facts import AcquireFact, TransitionFact
from controlplane.ingest.gaps import find_gaps, versions_known
from controlplane.store.columns import EPOCH
from controlplane.store.models import Checkpoint, Prefix, PrefixVersion
from controlplane.store.upsert import Row, insert_for, insert_new, replace

VERSION_KEY = ("engine_id", "prefix_id", "life", "version")
PREFIX_KEY = ("engine_id", "prefix_id")
LOOKUP = 500  # ids in one IN list: well under the variables a statement may have


def apply_transitions(
    session: Session, engine_id: str, facts: Sequence[TransitionFact], now: dt.datetime, *, repaired: bool = False
) -> None:
    """Write transitions, from spans or (`repaired`) from an engine's snapshot. Idempotent, in any order."""
    if not facts:
        return
    known = versions_known(session, engine_id, facts)
    _append(session, engine_id, facts, repaired)
    find_gaps(session, engine_id, facts, known, now, repaired=repaired)
    newest = _newest_of(facts)
    _upsert_prefixes(session, engine_id, newest)
    _replace_checkpoints(session, engine_id, newest)


def apply_served(session: Session, engine_id: str, facts: Iterable[AcquireFact]) -> None:
    """Add what each prefix served: not idempotent, so only for spans seen for the first time."""
    served: dict[str, Row] = {}
    for fact in facts:
        if fact.prefix_id is None:
            continue
        row = served.setdefault(fact.prefix_id, _unseen_prefix(engine_id, fact))
        row["tokens_served"] += fact.usable_tokens
        row["requests_served"] += 1
        row["served_at"] = max(row["served_at"], fact.at)
    if not served:
        return
    statement = insert_for(session, Prefix)
    table, new = Prefix.__table__.c, statement.excluded
    latest = _later(table.served_at, new.served_at)
    counted = {
        "tokens_served": table.tokens_served + new.tokens_served,
        "requests_served": table.requests_served + new.requests_served,
        "served_at": latest,
    }
    upsert = statement.on_conflict_do_update(index_elements=PREFIX_KEY, set_=counted)
    session.execute(upsert, [served[prefix_id] for prefix_id in sorted(served)])


def _later(stored: Any, new: Any) -> Any:
    return case((or_(stored.is_(None), stored < new), new), else_=stored)


def _unseen_prefix(engine_id: str, fact: AcquireFact) -> Row:
    """A row of version 0, for a prefix whose first transition has not come yet. Every read leaves those out."""
    return {
        **dict.fromkeys(("life", "version", "tokens", "pages", "gpu_bytes", "host_bytes", "disk_bytes"), 0),
        "engine_id": engine_id,
        "prefix_id": fact.prefix_id,
        "state": "NEW",
        "namespace": fact.namespace,
        "objects": {},
        "pinned": False,
        "created_at": fact.at,
        "changed_at": fact.at,
        "tokens_served": 0,
        "requests_served": 0,
        "served_at": fact.at,
    }


def _append(session: Session, engine_id: str, facts: Sequence[TransitionFact], repaired: bool) -> None:
    rows = {(*fact.order, fact.prefix_id): _version_row(engine_id, fact, repaired) for fact in facts}
    if repaired:
        insert_new(session, PrefixVersion, list(rows.values()), VERSION_KEY)
        return
    # A span knows more than the snapshot that stood in for it, and may even contradict a guessed eviction.
    statement = insert_for(session, PrefixVersion)
    first = next(iter(rows.values()))
    others = {name: statement.excluded[name] for name in first if name not in VERSION_KEY}
    upsert = statement.on_conflict_do_update(
        index_elements=VERSION_KEY, set_=others, where=PrefixVersion.__table__.c.repaired
    )
    session.execute(upsert, list(rows.values()))


def _version_row(engine_id: str, fact: TransitionFact, repaired: bool) -> Row:
    return {
        "engine_id": engine_id,
        "prefix_id": fact.prefix_id,
        "life": fact.life,
        "version": fact.version,
        "state_from": fact.state_from,
        "state_to": fact.state_to,
        "cause": fact.cause,
        "reason": fact.reason,
        "at": fact.at,
        "monotonic_ns": fact.monotonic_ns,
        "tokens": fact.tokens,
        "bytes_moved": fact.bytes_moved,
        "gpu_bytes": fact.gpu_bytes,
        "host_bytes": fact.host_bytes,
        "disk_bytes": fact.disk_bytes,
        "objects": fact.objects,
        "command_id": fact.command_id,
        "trace_id": fact.trace_id,
        "span_id": fact.span_id,
        "cause_trace_id": fact.cause_trace_id,
        "cause_span_id": fact.cause_span_id,
        "repaired": repaired,
    }


def _newest_of(facts: Sequence[TransitionFact]) -> list[TransitionFact]:
    newest: dict[str, TransitionFact] = {}
    for fact in facts:
        held = newest.get(fact.prefix_id)
        if held is None or fact.order > held.order:
            newest[fact.prefix_id] = fact
    return [newest[prefix_id] for prefix_id in sorted(newest)]


def _upsert_prefixes(session: Session, engine_id: str, newest: Sequence[TransitionFact]) -> None:
    statement = insert_for(session, Prefix)
    table, new = Prefix.__table__.c, statement.excluded
    rows = [_prefix_row(engine_id, fact) for fact in newest]
    served = ("tokens_served", "requests_served", "served_at")
    changed = {name: new[name] for name in rows[0] if name not in PREFIX_KEY + served}
    # Equal is let through: a span may replace the snapshot row that stood in for it.
    is_newer = or_(new.life > table.life, (new.life == table.life) & (new.version >= table.version))
    session.execute(statement.on_conflict_do_update(index_elements=PREFIX_KEY, set_=changed, where=is_newer), rows)


def _prefix_row(engine_id: str, fact: TransitionFact) -> Row:
    return {
        "engine_id": engine_id,
        "prefix_id": fact.prefix_id,
        "life": fact.life,
        "version": fact.version,
        "state": fact.state_to,
        "namespace": fact.namespace,
        "parent_id": fact.parent_id,
        "tokens": fact.tokens,
        "pages": fact.pages,
        "gpu_bytes": fact.gpu_bytes,
        "host_bytes": fact.host_bytes,
        "disk_bytes": fact.disk_bytes,
        "objects": fact.objects,
        "pinned": fact.pinned,
        "created_at": EPOCH + dt.timedelta(microseconds=fact.life // 1000),  # a life is its birth in nanoseconds
        "changed_at": fact.at,
        "tokens_served": 0,
        "requests_served": 0,
        "served_at": None,
    }


def _replace_checkpoints(session: Session, engine_id: str, newest: Sequence[TransitionFact]) -> None:
    current = _still_newest(session, engine_id, [fact for fact in newest if _tells_checkpoints(fact)])
    prefix_ids = [fact.prefix_id for fact in current]
    for start in range(0, len(prefix_ids), LOOKUP):
        chosen = Checkpoint.prefix_id.in_(prefix_ids[start : start + LOOKUP])
        session.execute(delete(Checkpoint).where(Checkpoint.engine_id == engine_id, chosen))
    rows = {
        checkpoint.checkpoint_id: {
            "engine_id": engine_id,
            "checkpoint_id": checkpoint.checkpoint_id,
            "prefix_id": fact.prefix_id,
            "boundary": checkpoint.boundary,
            "kinds": checkpoint.kinds,
            "tiers": checkpoint.tiers,
            "changed_at": fact.at,
        }
        for fact in current
        if fact.state_to != "EVICTED"
        for checkpoint in fact.checkpoints or ()
    }
    replace(session, Checkpoint, list(rows.values()), ("engine_id", "checkpoint_id"))


def _tells_checkpoints(fact: TransitionFact) -> bool:
    return fact.checkpoints is not None or fact.state_to == "EVICTED"


def _still_newest(session: Session, engine_id: str, facts: Sequence[TransitionFact]) -> list[TransitionFact]:
    """The facts that are what their prefix now is: the others came after a newer one."""
    current: list[TransitionFact] = []
    for start in range(0, len(facts), LOOKUP):
        part = facts[start : start + LOOKUP]
        chosen = Prefix.prefix_id.in_([fact.prefix_id for fact in part])
        query = select(Prefix.prefix_id, Prefix.life, Prefix.version).where(Prefix.engine_id == engine_id, chosen)
        orders = {prefix_id: (life, version) for prefix_id, life, version in session.execute(query)}
        current += [fact for fact in part if orders.get(fact.prefix_id) == fact.order]
    return current
