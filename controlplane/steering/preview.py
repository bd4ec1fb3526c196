"""The blast radius of a command, from the store: what it would touch, before anybody says yes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from controlplane.clock import utc_now
from controlplane.steering import batches, desired, selectors
from controlplane.steering.command_kinds import check_arguments
from controlplane.store.models import Engine, Prefix

MOST_WALKED = 50_000
MOST_LISTED = 20
GONE = "EVICTED"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlastRadius:
    """What a command would touch. Tokens are counted once a node: a prefix's own, beyond its parent's end."""

    prefixes: int
    descendants: int  # of the prefixes, those not named but under a named one
    unknown: list[str]  # named, and not in the engine as far as the store knows
    pinned: int
    own_tokens: int
    tokens_served: int
    bytes_by_tier: dict[str, int]
    versions: dict[str, int]  # of the named ones: send them back as `expect_versions`
    largest: list[dict[str, Any]]
    truncated: bool  # the walk stopped at its bound; the numbers are a floor
    warnings: list[str]
    leases: int = 0  # held on the whole engine at its last heartbeat: which prefixes they read is not in the store
    refill_tokens: int = 0  # to compute again if they are asked for: what no tier would hold any more
    refill_seconds: float | None = None  # the same at the pace this engine measured; None: it has measured none
    matched: int | None = None  # by a selector; with how many of these were left out, by reason
    left_out: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRadius:
    """The blast radius on many engines: the sums, and each engine's own. Submit `selected` to get exactly this."""

    at: dt.datetime
    prefixes: int
    descendants: int
    own_tokens: int
    bytes_by_tier: dict[str, int]
    leases: int
    refill_tokens: int
    refill_seconds: float | None
    engines: dict[str, BlastRadius]
    selected: dict[str, dict[str, int]]  # engine -> prefix -> version
    skipped: list[batches.Skipped]


def preview(
    session: Session,
    engine_id: str,
    kind: str,
    arguments: Mapping[str, Any],
    selector: Mapping[str, Any] | None = None,
    now: dt.datetime | None = None,
) -> BlastRadius:
    """The blast radius of this command now. Raises NotFound for the engine, BadRequest for the arguments."""
    engine = desired.require_engine(session, engine_id)
    found = None
    if selector is not None:
        found = selectors.select_prefixes(
            session, engine_id, kind, arguments, selectors.parse_selector(selector), now or utc_now()
        )
        arguments = {**arguments, "prefix_ids": list(found.chosen)}
    checked = check_arguments(kind, arguments) if found is None or found.chosen else dict(arguments)
    named_ids: Sequence[str] = checked.get("prefix_ids", [])
    named = _all_held(session, engine_id) if kind == "drain" else _load(session, engine_id, named_ids)
    # An evict without descendants still shows them: a child without its parent's pages cannot be used.
    below, truncated = _descendants(session, engine_id, named) if kind == "evict" else ([], False)
    touched = [*named, *below] if checked.get("descendants", False) else named
    own_tokens = _own_tokens(session, engine_id, touched)
    goes = kind == "evict" or (kind == "drain" and checked.get("then") == "evict")
    return BlastRadius(
        prefixes=len(touched),
        descendants=len(below),
        unknown=sorted(set(named_ids) - {prefix.prefix_id for prefix in named}),
        pinned=sum(prefix.pinned for prefix in touched),
        own_tokens=own_tokens,
        tokens_served=sum(prefix.tokens_served for prefix in touched),
        bytes_by_tier={
            "gpu": sum(prefix.gpu_bytes for prefix in touched),
            "host": sum(prefix.host_bytes for prefix in touched),
            "disk": sum(prefix.disk_bytes for prefix in touched),
        },
        versions={prefix.prefix_id: prefix.version for prefix in named},
        largest=[_brief(prefix) for prefix in sorted(touched, key=_held_bytes, reverse=True)[:MOST_LISTED]],
        truncated=truncated or len(named) >= MOST_WALKED,
        warnings=_warnings(kind, checked, touched, below),
        leases=int(engine.stats.get("leases", 0)),
        refill_tokens=own_tokens if goes else 0,
        refill_seconds=_refill_seconds(engine, own_tokens if goes else 0),
        matched=None if found is None else found.matched,
        left_out={} if found is None else found.left_out,
    )


def preview_many(
    session: Session,
    target: batches.Target,
    kind: str,
    arguments: Mapping[str, Any],
    selector: Mapping[str, Any] | None,
    now: dt.datetime,
) -> FleetRadius:
    """The blast radius on every engine of a target that can be commanded now. Raises as `preview` does."""
    ready, skipped = batches.reached(session, target, now)
    engines = {engine.id: preview(session, engine.id, kind, arguments, selector, now) for engine in ready}
    seconds = [radius.refill_seconds for radius in engines.values()]
    return FleetRadius(
        at=now,
        prefixes=sum(radius.prefixes for radius in engines.values()),
        descendants=sum(radius.descendants for radius in engines.values()),
        own_tokens=sum(radius.own_tokens for radius in engines.values()),
        bytes_by_tier={
            tier: sum(radius.bytes_by_tier[tier] for radius in engines.values()) for tier in ("gpu", "host", "disk")
        },
        leases=sum(radius.leases for radius in engines.values()),
        refill_tokens=sum(radius.refill_tokens for radius in engines.values()),
        refill_seconds=None if None in seconds else sum(each for each in seconds if each is not None),
        engines=engines,
        selected={engine_id: radius.versions for engine_id, radius in engines.items() if radius.versions},
        skipped=skipped,
    )


def _refill_seconds(engine: Engine, tokens: int) -> float | None:
    """At the pace of prefill that the engine measured; it says how many reports that pace is made from."""
    prefill = engine.stats.get("prefill", {})
    pace = prefill.get("tokens_per_s", 0)
    return tokens / pace if pace and prefill.get("reports", 0) else None


def _all_held(session: Session, engine_id: str) -> list[Prefix]:
    held = (Prefix.engine_id == engine_id, Prefix.state != GONE, Prefix.version > 0)
    return list(session.scalars(select(Prefix).where(*held).order_by(Prefix.prefix_id).limit(MOST_WALKED)))


def _load(session: Session, engine_id: str, prefix_ids: Sequence[str]) -> list[Prefix]:
    found: list[Prefix] = []
    for start in range(0, len(prefix_ids), 500):
        chunk = list(prefix_ids[start : start + 500])
        query = select(Prefix).where(Prefix.engine_id == engine_id, Prefix.prefix_id.in_(chunk), Prefix.state != GONE)
        found += session.scalars(query).all()
    return found


def _descendants(session: Session, engine_id: str, roots: Sequence[Prefix]) -> tuple[list[Prefix], bool]:
    seen = {prefix.prefix_id for prefix in roots}
    below: list[Prefix] = []
    frontier = sorted(seen)
    while frontier:
        children: list[Prefix] = []
        for start in range(0, len(frontier), 500):
            query = select(Prefix).where(
                Prefix.engine_id == engine_id,
                Prefix.parent_id.in_(frontier[start : start + 500]),
                Prefix.state != GONE,
            )
            children += [child for child in session.scalars(query) if child.prefix_id not in seen]
        seen |= {child.prefix_id for child in children}
        below += children
        if len(below) >= MOST_WALKED:
            return below[:MOST_WALKED], True
        frontier = [child.prefix_id for child in children]
    return below, False


def _own_tokens(session: Session, engine_id: str, touched: Sequence[Prefix]) -> int:
    ends = {prefix.prefix_id: prefix.tokens for prefix in touched}
    parents = [prefix.parent_id for prefix in touched if prefix.parent_id and prefix.parent_id not in ends]
    ends |= {parent.prefix_id: parent.tokens for parent in _load(session, engine_id, sorted(set(parents)))}
    return sum(prefix.tokens - ends.get(prefix.parent_id or "", 0) for prefix in touched)


def _held_bytes(prefix: Prefix) -> int:
    return prefix.gpu_bytes + prefix.host_bytes + prefix.disk_bytes


def _brief(prefix: Prefix) -> dict[str, Any]:
    return {
        "prefix_id": prefix.prefix_id,
        "state": prefix.state,
        "version": prefix.version,
        "tokens": prefix.tokens,
        "bytes": _held_bytes(prefix),
        "tokens_served": prefix.tokens_served,
        "pinned": prefix.pinned,
    }


def _warnings(kind: str, arguments: Mapping[str, Any], touched: Sequence[Prefix], below: Sequence[Prefix]) -> list[str]:
    warnings = []
    if kind == "evict" and below and not arguments.get("descendants", False):
        warnings.append(
            f"{_counted(len(below), 'prefix lies', 'prefixes lie')} under these; the engine refuses to evict a parent "
            "before its children"
        )
    pinned = sum(prefix.pinned for prefix in touched)
    if kind in ("evict", "offload") and pinned:
        warnings.append(f"{_counted(pinned, 'is', 'of these are')} pinned: somebody asked to keep it")
    return warnings


def _counted(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"
