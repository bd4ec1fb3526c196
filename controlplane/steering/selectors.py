"""Which prefixes a command means: by id, label, namespace, state, tier, idle time, usefulness; resolved at one moment.

A selector is resolved here, from the store, when a command is stored. The engine then gets ids, with the versions that
were seen, and refuses what has moved on since.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from heapq import heapify, heappop, heappush
from typing import Any

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from controlplane.errors import BadRequest, Conflict
from controlplane.steering.command_kinds import KINDS, MOST_PREFIXES, check_arguments
from controlplane.store.models import Prefix
from controlplane.store.queries_prefixes import has_label, require_namespace
from controlplane.store.query_types import STATES

DEFAULT_LIMIT = 1000
MOST_LOOKED_AT = 50_000
GONE = "EVICTED"
TIER_BYTES: Mapping[str, Any] = {"gpu": Prefix.gpu_bytes, "host": Prefix.host_bytes, "disk": Prefix.disk_bytes}
# Kinds that take something away choose the longest idle first, and never a pin unless pins are asked for.
TAKING = frozenset({"evict", "offload", "compress"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """What a person means. Everything given must hold; `least_useful` takes so many of them, worst first.

    Usefulness is tokens served a byte held, over the prefix's life here; of equal ones the longest idle goes first.
    `limit` bounds what one engine gets.
    """

    labels: Mapping[str, str | None] | None = None
    namespace: str | None = None
    states: Sequence[str] | None = None
    tier: str | None = None
    idle_s: float | None = None
    pinned: bool | None = None
    least_useful: int | None = None
    limit: int = DEFAULT_LIMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The prefixes that were chosen at `at`, and how many others matched but were left out, by reason."""

    at: dt.datetime
    matched: int
    chosen: dict[str, int]  # prefix -> its version then
    left_out: dict[str, int]


def parse_selector(document: Mapping[str, Any]) -> Selector:
    """Raises BadRequest naming the field and what is allowed; a selector that selects by nothing is refused too."""
    known = [field.name for field in fields(Selector)]
    problems = [f"{name} is no part of a selector" for name in document if name not in known]
    problems += [f"{name} {problem}" for name, check in CHECKS.items() if (problem := check(document.get(name)))]
    if not any(document.get(name) not in (None, {}, []) for name in known if name != "limit"):
        problems.append("a selector must select by something")
    if problems:
        raise BadRequest("selector_invalid", "; ".join(problems) + ".", f"A selector has: {', '.join(known)}.")
    return Selector(**{name: value for name, value in document.items() if value is not None})


def complete(
    session: Session,
    engine_id: str,
    kind: str,
    arguments: Mapping[str, Any],
    selector: Mapping[str, Any] | None,
    now: dt.datetime,
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The checked arguments of a command, with a selector's prefixes in them, and how these were chosen (or None).

    Raises BadRequest, and Conflict when a selector finds nothing: there is nothing to command.
    """
    if selector is None:
        return check_arguments(kind, arguments), None
    found = select_prefixes(session, engine_id, kind, arguments, parse_selector(selector), now)
    facts = {
        "selector": dict(selector),
        "at": found.at.isoformat(),
        "matched": found.matched,
        "chosen": len(found.chosen),
        "left_out": found.left_out,
    }
    if not found.chosen:
        left = ", ".join(f"{n} {reason}" for reason, n in found.left_out.items())
        raise Conflict(
            "selector_empty",
            f"Nothing on {engine_id} is selected: {found.matched} prefixes match{f', but {left}' if left else ''}.",
            "Select by less; `kvdeck prefixes` shows what there is.",
        )
    chosen = {"prefix_ids": list(found.chosen), "expect_versions": found.chosen if kind == "evict" else None}
    return check_arguments(kind, {**arguments, **chosen}), facts


def select_prefixes(
    session: Session,
    engine_id: str,
    kind: str,
    arguments: Mapping[str, Any],
    selector: Selector,
    now: dt.datetime,
) -> Selection:
    """Chooses on one engine. Reads at most MOST_LOOKED_AT rows; raises BadRequest for a kind that takes no prefixes,
    NotFound for a namespace that there never was."""
    rule = KINDS.get(kind)
    if rule is None or rule.acts_on is None:
        if rule is None:
            check_arguments(kind, {})  # says which there are
        raise BadRequest("selector_unfit", f"{kind} acts on no single prefixes.", "Leave the selector out.")
    if "prefix_ids" in arguments:
        raise BadRequest("selector_twice", "Ids and a selector were given.", "Give one of them.")
    if selector.namespace is not None:
        require_namespace(session, selector.namespace)
    conditions = _conditions(engine_id, selector, now)
    matched = session.scalar(select(func.count()).select_from(Prefix).where(*conditions)) or 0
    last_use = func.coalesce(Prefix.served_at, Prefix.changed_at)
    order = (last_use,) if kind in TAKING else (Prefix.tokens_served.desc(),)
    rows = session.scalars(select(Prefix).where(*conditions).order_by(*order, Prefix.prefix_id).limit(MOST_LOOKED_AT))
    left_out: dict[str, int] = {"not_looked_at": max(0, matched - MOST_LOOKED_AT)}
    fit: list[Prefix] = []
    for row in rows:
        if reason := _unfit(kind, rule.acts_on, selector, row):
            left_out[reason] = left_out.get(reason, 0) + 1
        else:
            fit.append(row)
    if selector.least_useful is not None:
        fit.sort(key=_usefulness)
    wanted = min(selector.limit, selector.least_useful or selector.limit)
    if kind == "evict" and not arguments.get("descendants", False):
        chosen = _leaves_first(session, engine_id, fit, wanted)
        left_out["has_descendants"] = min(len(fit), wanted) - len(chosen)
        left_out["over_limit"] = max(0, len(fit) - wanted)
    else:
        chosen = fit[:wanted]
        left_out["over_limit"] = len(fit) - len(chosen)
    return Selection(
        at=now,
        matched=matched,
        chosen={row.prefix_id: row.version for row in chosen},
        left_out={reason: n for reason, n in left_out.items() if n},
    )


def _conditions(engine_id: str, selector: Selector, now: dt.datetime) -> list[ColumnElement[bool]]:
    conditions = [Prefix.engine_id == engine_id, Prefix.version > 0, Prefix.state != GONE]
    if selector.states:
        conditions.append(Prefix.state.in_(selector.states))
    if selector.namespace is not None:
        conditions.append(Prefix.namespace == selector.namespace)
    if selector.tier is not None:
        conditions.append(TIER_BYTES[selector.tier] > 0)
    if selector.pinned is not None:
        conditions.append(Prefix.pinned.is_(selector.pinned))
    if selector.idle_s is not None:
        last_use = func.coalesce(Prefix.served_at, Prefix.changed_at)
        conditions.append(last_use <= now - dt.timedelta(seconds=selector.idle_s))
    conditions += [has_label(name, value) for name, value in (selector.labels or {}).items()]
    return conditions


def _unfit(kind: str, acts_on: frozenset[str], selector: Selector, row: Prefix) -> str:
    if kind in TAKING and row.pinned and not selector.pinned:
        return "pinned"
    if kind == "unpin" and not row.pinned:
        return "not_pinned"
    if row.state not in acts_on or (kind == "offload" and not row.gpu_bytes):
        return "nothing_to_do"
    return ""


def _usefulness(row: Prefix) -> tuple[float, dt.datetime, str]:
    held_bytes = row.gpu_bytes + row.host_bytes + row.disk_bytes
    return row.tokens_served / max(1, held_bytes), row.served_at or row.changed_at, row.prefix_id


def _leaves_first(session: Session, engine_id: str, rows: Sequence[Prefix], wanted: int) -> list[Prefix]:
    """The first of `rows` that can go without their descendants: a parent only after every child of it was chosen."""
    children = _live_children(session, engine_id)
    place = {row.prefix_id: i for i, row in enumerate(rows)}
    free = [i for i, row in enumerate(rows) if not children.get(row.prefix_id)]
    heapify(free)
    chosen: list[Prefix] = []
    while free and len(chosen) < wanted:
        row = rows[heappop(free)]
        chosen.append(row)
        parent = row.parent_id
        if parent is not None and parent in children:
            children[parent] -= 1
            if not children[parent] and parent in place:
                heappush(free, place[parent])
    return chosen


def _live_children(session: Session, engine_id: str) -> dict[str, int]:
    counted = (
        select(Prefix.parent_id, func.count())
        .where(Prefix.engine_id == engine_id, Prefix.state != GONE, Prefix.parent_id.is_not(None))
        .group_by(Prefix.parent_id)
    )
    return {parent: n for parent, n in session.execute(counted) if parent is not None}


def _optional(check: Any, text: str) -> Any:
    return lambda value: None if value is None or check(value) else f"must be {text}"


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_PREFIXES


CHECKS: Mapping[str, Any] = {
    "labels": _optional(
        lambda v: (
            isinstance(v, Mapping)
            and all(isinstance(k, str) and (x is None or isinstance(x, str)) for k, x in v.items())
        ),
        "a map of names to values (null: any value)",
    ),
    "namespace": _optional(lambda v: isinstance(v, str) and 0 < len(v) <= 128, "a name"),
    "states": _optional(
        lambda v: isinstance(v, list) and all(isinstance(x, str) and x in STATES for x in v),
        f"a list of states: {', '.join(STATES)}",
    ),
    "tier": _optional(lambda v: isinstance(v, str) and v in TIER_BYTES, f"one of {', '.join(TIER_BYTES)}"),
    "idle_s": _optional(
        lambda v: isinstance(v, int | float) and not isinstance(v, bool) and 0 <= v <= 366 * 86_400,
        "seconds, from 0 to a year",
    ),
    "pinned": _optional(lambda v: isinstance(v, bool), "true or false"),
    "least_useful": _optional(_is_count, f"a whole number from 1 to {MOST_PREFIXES}"),
    "limit": _optional(_is_count, f"a whole number from 1 to {MOST_PREFIXES}"),
}
