"""The blast radius of a command, from the store: what it would touch, before anybody says yes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from controlplane.errors import NotFound
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


def preview(session: Session, engine_id: str, kind: str, arguments: Mapping[str, Any]) -> BlastRadius:
    """The blast radius of this command now. Raises NotFound for the engine, BadRequest for the arguments."""
    checked = check_arguments(kind, arguments)
    if session.get(Engine, engine_id) is None:
        raise NotFound("engine_unknown", f"No engine {engine_id!r} has ever registered.", "`kvdeck status` lists them.")
    named_ids: Sequence[str] = checked.get("prefix_ids", [])
    named = _load(session, engine_id, named_ids)
    # An evict without descendants still shows them: a child without its parent's pages cannot be used.
    below, truncated = _descendants(session, engine_id, named) if kind == "evict" else ([], False)
    touched = [*named, *below] if checked.get("descendants", False) else named
    return BlastRadius(
        prefixes=len(touched),
        descendants=len(below),
        unknown=sorted(set(named_ids) - {prefix.prefix_id for prefix in named}),
        pinned=sum(prefix.pinned for prefix in touched),
        own_tokens=_own_tokens(session, engine_id, touched),
        tokens_served=sum(prefix.tokens_served for prefix in touched),
        bytes_by_tier={
            "gpu": sum(prefix.gpu_bytes for prefix in touched),
            "host": sum(prefix.host_bytes for prefix in touched),
            "disk": sum(prefix.disk_bytes for prefix in touched),
        },
        versions={prefix.prefix_id: prefix.version for prefix in named},
        largest=[_brief(prefix) for prefix in sorted(touched, key=_held_bytes, reverse=True)[:MOST_LISTED]],
        truncated=truncated,
        warnings=_warnings(kind, checked, touched, below),
    )


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
        warnings.append(f"{len(below)} prefixes lie under these; the engine refuses to evict a parent before them")
    pinned = sum(prefix.pinned for prefix in touched)
    if kind in ("evict", "offload") and pinned:
        warnings.append(f"{pinned} of these are pinned: somebody asked for them to be kept")
    return warnings
