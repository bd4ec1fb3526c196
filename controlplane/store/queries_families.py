"""The tree of prefix families, cut down to what a picture can show: the largest prefixes with all above them, and
everything else as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select, tuple_
from sqlalchemy.orm import Session, aliased

from controlplane.store.models import Prefix
from controlplane.store.query_types import Engines, of_engine

MOST_SHOWN = 300
_HELD = Prefix.gpu_bytes + Prefix.host_bytes + Prefix.disk_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyNode:
    """A prefix with what it holds itself, without those below it."""

    engine_id: str
    prefix_id: str
    parent_id: str | None
    namespace: str
    state: str
    pinned: bool
    tokens: int
    held_bytes: int
    tokens_served: int
    requests_served: int


@dataclass(frozen=True, slots=True)
class Rest:
    """Prefixes that are not shown one by one, of one engine and namespace."""

    engine_id: str
    namespace: str
    prefixes: int
    held_bytes: int
    tokens_served: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Families:
    """`shown` has every parent of its nodes, as far as they are known; with `rest` it is all there is."""

    shown: list[FamilyNode]
    rest: list[Rest]


def families(
    session: Session, engines: Engines = None, namespace: str | None = None, *, most: int = MOST_SHOWN
) -> Families:
    """The `most` prefixes that hold most bytes and all above them; the rest as sums by engine and namespace."""
    held = (
        Prefix.version > 0,
        Prefix.state != "EVICTED",
        *of_engine(Prefix.engine_id, engines),
        *(() if namespace is None else (Prefix.namespace == namespace,)),
    )
    shown = _with_parents(session, held, most)
    seen: dict[tuple[str, str], list[int]] = {}
    for node in shown:
        sums = seen.setdefault((node.engine_id, node.namespace), [0, 0, 0])
        for place, value in enumerate((1, node.held_bytes, node.tokens_served)):
            sums[place] += value
    return Families(shown=shown, rest=_rest(session, held, seen))


def _with_parents(session: Session, held: Sequence[ColumnElement[bool]], most: int) -> list[FamilyNode]:
    largest = select(Prefix.engine_id, Prefix.prefix_id, Prefix.parent_id).where(*held)
    top = largest.order_by(_HELD.desc(), Prefix.engine_id, Prefix.prefix_id).limit(most).subquery()
    above = aliased(Prefix)
    chosen = select(top).cte("chosen", recursive=True)
    chosen = chosen.union(
        select(above.engine_id, above.prefix_id, above.parent_id).join(
            chosen, (above.engine_id == chosen.c.engine_id) & (above.prefix_id == chosen.c.parent_id)
        )
    )
    query = select(
        Prefix.engine_id,
        Prefix.prefix_id,
        Prefix.parent_id,
        Prefix.namespace,
        Prefix.state,
        Prefix.pinned,
        Prefix.tokens,
        _HELD.label("held_bytes"),
        Prefix.tokens_served,
        Prefix.requests_served,
    ).where(
        Prefix.version > 0,
        Prefix.state != "EVICTED",
        tuple_(Prefix.engine_id, Prefix.prefix_id).in_(select(chosen.c.engine_id, chosen.c.prefix_id)),
    )
    return [FamilyNode(**row._mapping) for row in session.execute(query)]


def _rest(session: Session, held: Sequence[ColumnElement[bool]], seen: dict[tuple[str, str], list[int]]) -> list[Rest]:
    query = (
        select(Prefix.engine_id, Prefix.namespace, func.count(), func.sum(_HELD), func.sum(Prefix.tokens_served))
        .where(*held)
        .group_by(Prefix.engine_id, Prefix.namespace)
    )
    rows = []
    for engine_id, namespace, count, held_bytes, served in session.execute(query):
        shown = seen.get((engine_id, namespace), [0, 0, 0])
        left = count - shown[0]
        if left > 0:
            rows.append(
                Rest(engine_id, namespace, left, max(0, int(held_bytes) - shown[1]), max(0, int(served) - shown[2]))
            )
    return rows
