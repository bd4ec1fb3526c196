"""What a change of caps would evict, estimated from the store; the engine itself can be asked with `foresee`.

The store knows prefixes as spans told them and when each last served, not the engine's order of use nor what is leased
this moment. So the figures are an estimate in the engine's order: leaves before parents, longest unused first.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from controlplane.store.models import Engine, Prefix

MOST_LOOKED_AT = 50_000
HOW = "from the store, leaves before parents, longest unused first; leases are not known here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Foresight:
    """What would leave one engine. `certainty` is `estimate`, or `floor` where not every prefix was looked at."""

    evicted: int
    evicted_tokens: int
    evicted_bytes_by_tier: dict[str, int]
    leave_gpu: int
    leave_gpu_bytes: int
    tokens_served: int
    certainty: str
    why: str


@dataclass(slots=True)
class _Row:
    prefix_id: str
    parent_id: str | None
    namespace: str
    tokens: int
    gpu_bytes: int
    host_bytes: int
    disk_bytes: int
    tokens_served: int
    pinned: bool
    last_use: dt.datetime


def foresee(session: Session, documents: Mapping[str, Mapping[str, Any]]) -> dict[str, Foresight]:
    """Engine -> the estimate with its document of `documents` in force. Reads only, in two statements; bounded by
    MOST_LOOKED_AT prefixes an engine."""
    held = _held(session, documents)
    stats = session.execute(select(Engine.id, Engine.stats).where(Engine.id.in_(documents)))
    found = {}
    for engine_id, said in stats:
        tiers = said.get("tiers", {})
        has_below = bool(tiers.get("host") or tiers.get("disk"))
        found[engine_id] = _foresee(held.get(engine_id, []), documents[engine_id], has_below=has_below)
    return found


def _held(session: Session, engines: Iterable[str]) -> dict[str, list[_Row]]:
    """Engine -> what it holds, of each one prefix more than is looked at, to tell that there are more."""
    held = (Prefix.engine_id.in_(engines), Prefix.state != "EVICTED", Prefix.version > 0)
    last_use = func.coalesce(Prefix.served_at, Prefix.changed_at).label("last_use")
    columns = [last_use if name == "last_use" else getattr(Prefix, name) for name in _Row.__slots__]
    number = func.row_number().over(partition_by=Prefix.engine_id).label("number")
    numbered = select(Prefix.engine_id, *columns, number).where(*held).subquery().c
    query = select(numbered.engine_id, *(numbered[name] for name in _Row.__slots__))
    found: dict[str, list[_Row]] = {}
    for engine_id, *values in session.execute(query.where(numbered.number <= MOST_LOOKED_AT + 1)):
        found.setdefault(engine_id, []).append(_Row(*values))
    return found


def _foresee(rows: Sequence[_Row], document: Mapping[str, Any], *, has_below: bool) -> Foresight:
    look = _Look(rows[:MOST_LOOKED_AT], has_below=has_below)
    look.keep(document)
    gone, off = look.gone, [row for key, row in look.off_gpu.items() if key not in look.gone]
    ends = {row.prefix_id: row.tokens for row in rows}
    return Foresight(
        evicted=len(gone),
        evicted_tokens=sum(row.tokens - ends.get(row.parent_id or "", 0) for row in gone.values()),
        evicted_bytes_by_tier={
            tier: sum(getattr(row, f"{tier}_bytes") for row in gone.values()) for tier in ("gpu", "host", "disk")
        },
        leave_gpu=len(off),
        leave_gpu_bytes=sum(row.gpu_bytes for row in off),
        tokens_served=sum(row.tokens_served for row in [*gone.values(), *off]),
        certainty="floor" if len(rows) > MOST_LOOKED_AT else "estimate",
        why=HOW,
    )


class _Look:
    """The prefixes of one engine, and who would be gone or off the GPU."""

    def __init__(self, rows: Sequence[_Row], *, has_below: bool) -> None:
        self._rows = {row.prefix_id: row for row in rows}
        self._has_below = has_below
        self.gone: dict[str, _Row] = {}
        self.off_gpu: dict[str, _Row] = {}

    def keep(self, document: Mapping[str, Any]) -> None:
        """Let leave what the document's caps do not allow."""
        self._keep(None, document.get("cap_prefixes"), document.get("cap_gpu_bytes"))
        for name, cap in (document.get("namespace_caps") or {}).items():
            self._keep(name, cap.get("max_prefixes"), cap.get("max_bytes"))
        if (most_bytes := document.get("cap_disk_bytes")) is not None:
            self._shrink_disk(most_bytes)

    def _keep(self, namespace: str | None, most_prefixes: int | None, most_gpu_bytes: int | None) -> None:
        mine = [row for row in self._left() if namespace in (None, row.namespace)]
        if most_prefixes is not None:
            over = len(mine) - most_prefixes
            for row in self._leaves(namespace):
                if over <= 0:
                    break
                self.gone[row.prefix_id] = row
                over -= 1
        if most_gpu_bytes is None:
            return
        over = sum(row.gpu_bytes for row in mine if not self._is_away(row)) - most_gpu_bytes
        leaving = self._oldest(namespace) if self._has_below else self._leaves(namespace)
        for row in leaving:
            if over <= 0:
                break
            over -= row.gpu_bytes
            (self.off_gpu if self._has_below else self.gone)[row.prefix_id] = row

    def _shrink_disk(self, most_bytes: int) -> None:
        over = sum(row.disk_bytes for row in self._left()) - most_bytes
        for row in self._leaves(None):
            if over <= 0:
                break
            if row.disk_bytes:
                over -= row.disk_bytes
                self.gone[row.prefix_id] = row

    def _is_away(self, row: _Row) -> bool:
        return row.prefix_id in self.gone or row.prefix_id in self.off_gpu

    def _left(self) -> list[_Row]:
        return [row for row in self._rows.values() if row.prefix_id not in self.gone]

    def _oldest(self, namespace: str | None) -> list[_Row]:
        free = [r for r in self._left() if r.gpu_bytes and not r.pinned and namespace in (None, r.namespace)]
        return sorted((row for row in free if not self._is_away(row)), key=lambda row: (row.last_use, -row.tokens))

    def _leaves(self, namespace: str | None) -> Iterator[_Row]:
        left = self._left()
        children: dict[str, int] = {}
        for row in left:
            if row.parent_id is not None:
                children[row.parent_id] = children.get(row.parent_id, 0) + 1
        heap = [(r.last_use, r.prefix_id) for r in left if self._may_go(r, namespace) and not children.get(r.prefix_id)]
        heapify(heap)
        while heap:
            row = self._rows[heappop(heap)[1]]
            yield row
            parent = self._rows.get(row.parent_id or "")
            if parent is None or row.prefix_id not in self.gone:
                continue
            children[parent.prefix_id] -= 1
            if not children[parent.prefix_id] and self._may_go(parent, namespace):
                heappush(heap, (parent.last_use, parent.prefix_id))

    def _may_go(self, row: _Row, namespace: str | None) -> bool:
        return not row.pinned and not self._is_away(row) and namespace in (None, row.namespace)
