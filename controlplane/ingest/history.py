"""Transitions into rows: the append-only history, the prefixes as they are now, and their checkpoints.

Spans come late, twice and in any order. The history is keyed by (prefix, life, version); a prefix "as it is now" is
its transition of the largest (life, version), whenever that came.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sqlalchemy import case, delete, or_, select
from sqlalchemy.orm import Session

from controlplane.ingest.facts import AcquireFact, TransitionFact
from controlplane.ingest.gaps import find_gaps, versions_known
from controlplane.store.among import among
from controlplane.store.bulk import BulkInsert, Stored
from controlplane.store.models import Checkpoint, Prefix, PrefixVersion
from controlplane.store.upsert import Row, insert_for

VERSION_KEY = ("engine_id", "prefix_id", "life", "version")
PREFIX_KEY = ("engine_id", "prefix_id")


def apply_transitions(
    session: Session, engine_id: str, facts: Sequence[TransitionFact], now: dt.datetime, *, repaired: bool = False
) -> None:
    """Write transitions, from spans or (`repaired`) from an engine's snapshot. Idempotent, in any order."""
    if not facts:
        return
    stored = _orders(session, engine_id, {fact.prefix_id for fact in facts})
    known = versions_known(session, engine_id, facts, stored)
    _append(session, engine_id, facts, repaired)
    find_gaps(session, engine_id, facts, known, now, repaired=repaired)
    newest = _newest_of(facts)
    _PREFIXES.run(session, [_prefix_row(engine_id, fact) for fact in newest])
    # Equal is let through here and in _keep_newer: a span may replace the snapshot row that stood in for it.
    current = [fact for fact in newest if fact.order >= stored.get(fact.prefix_id, (0, 0))]
    _replace_checkpoints(session, engine_id, [fact for fact in current if _tells_checkpoints(fact)])


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
    (_GUESSED if repaired else _TOLD).run(session, list(rows.values()))


VERSION_COLUMNS = (
    "engine_id", "prefix_id", "life", "version", "state_from", "state_to", "cause", "reason", "at", "monotonic_ns",
    "tokens", "bytes_moved", "gpu_bytes", "host_bytes", "disk_bytes", "objects", "command_id", "trace_id", "span_id",
    "cause_trace_id", "cause_span_id", "repaired",
)  # fmt: skip


def _version_row(engine_id: str, fact: TransitionFact, repaired: bool) -> Stored:
    return (
        engine_id, fact.prefix_id, fact.life, fact.version, fact.state_from, fact.state_to, fact.cause, fact.reason,
        fact.at_us, fact.monotonic_ns, fact.tokens, fact.bytes_moved, fact.gpu_bytes, fact.host_bytes, fact.disk_bytes,
        fact.objects, fact.command_id or None, fact.trace_id, fact.span_id, fact.cause_trace_id or None,
        fact.cause_span_id or None, repaired,
    )  # fmt: skip


def _replace_guess(statement: Any) -> Any:
    # A span knows more than the snapshot that stood in for it, and may even contradict a guessed eviction.
    others = {name: statement.excluded[name] for name in VERSION_COLUMNS if name not in VERSION_KEY}
    repaired = PrefixVersion.__table__.c.repaired
    return statement.on_conflict_do_update(index_elements=VERSION_KEY, set_=others, where=repaired)


def _keep_first(statement: Any) -> Any:
    return statement.on_conflict_do_nothing(index_elements=VERSION_KEY)


_TOLD = BulkInsert(PrefixVersion, VERSION_COLUMNS, _replace_guess)
_GUESSED = BulkInsert(PrefixVersion, VERSION_COLUMNS, _keep_first)


def _newest_of(facts: Sequence[TransitionFact]) -> list[TransitionFact]:
    newest: dict[str, TransitionFact] = {}
    for fact in facts:
        held = newest.get(fact.prefix_id)
        if held is None or fact.order > held.order:
            newest[fact.prefix_id] = fact
    return [newest[prefix_id] for prefix_id in sorted(newest)]


PREFIX_COLUMNS = (
    "engine_id", "prefix_id", "life", "version", "state", "namespace", "parent_id", "tokens", "pages", "gpu_bytes",
    "host_bytes", "disk_bytes", "objects", "pinned", "tokens_served", "requests_served", "created_at", "changed_at",
)  # fmt: skip
_COUNTED = ("tokens_served", "requests_served")


def _prefix_row(engine_id: str, fact: TransitionFact) -> Stored:
    born_us = fact.life // 1000  # a life is its birth in nanoseconds
    return (
        engine_id, fact.prefix_id, fact.life, fact.version, fact.state_to, fact.namespace, fact.parent_id or None,
        fact.tokens, fact.pages, fact.gpu_bytes, fact.host_bytes, fact.disk_bytes, fact.objects, fact.pinned, 0, 0,
        born_us, fact.at_us,
    )  # fmt: skip


def _keep_newer(statement: Any) -> Any:
    table, new = Prefix.__table__.c, statement.excluded
    changed = {name: new[name] for name in PREFIX_COLUMNS if name not in PREFIX_KEY + _COUNTED}
    is_newer = or_(new.life > table.life, (new.life == table.life) & (new.version >= table.version))
    return statement.on_conflict_do_update(index_elements=PREFIX_KEY, set_=changed, where=is_newer)


_PREFIXES = BulkInsert(Prefix, PREFIX_COLUMNS, _keep_newer)


def _replace_checkpoints(session: Session, engine_id: str, current: Sequence[TransitionFact]) -> None:
    theirs = among(session, Checkpoint.prefix_id, [fact.prefix_id for fact in current])
    gone = delete(Checkpoint).where(Checkpoint.engine_id == engine_id, theirs)
    session.execute(gone.execution_options(synchronize_session=False))
    rows = {
        checkpoint.checkpoint_id: (
            engine_id,
            checkpoint.checkpoint_id,
            fact.prefix_id,
            checkpoint.boundary,
            _words(tuple(checkpoint.kinds)),
            _words(tuple(checkpoint.tiers)),
            fact.at_us,
        )
        for fact in current
        if fact.state_to != "EVICTED"
        for checkpoint in fact.checkpoints or ()
    }
    _CHECKPOINTS.run(session, list(rows.values()))


@functools.lru_cache(maxsize=1024)
def _words(names: tuple[str, ...]) -> str:
    """A list of kinds or tiers as JSON: there are few, over and over."""
    return json.dumps(names)


CHECKPOINT_COLUMNS = ("engine_id", "checkpoint_id", "prefix_id", "boundary", "kinds", "tiers", "changed_at")


def _overwrite(statement: Any) -> Any:
    others = {name: statement.excluded[name] for name in CHECKPOINT_COLUMNS[2:]}
    return statement.on_conflict_do_update(index_elements=CHECKPOINT_COLUMNS[:2], set_=others)


_CHECKPOINTS = BulkInsert(Checkpoint, CHECKPOINT_COLUMNS, _overwrite)


def _tells_checkpoints(fact: TransitionFact) -> bool:
    return fact.checkpoints is not None or fact.state_to == "EVICTED"


def _orders(session: Session, engine_id: str, prefix_ids: Collection[str]) -> dict[str, tuple[int, int]]:
    """The life and version each prefix is at; nothing of those never heard of. Read before anything is written."""
    query = select(Prefix.prefix_id, Prefix.life, Prefix.version).where(
        Prefix.engine_id == engine_id, among(session, Prefix.prefix_id, prefix_ids)
    )
    return {prefix_id: (life, version) for prefix_id, life, version in session.execute(query)}
