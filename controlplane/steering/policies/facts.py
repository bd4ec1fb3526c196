"""Reads what policies and alerts decide on, frozen, out of the store."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from sqlalchemy import and_, func, or_, select
from sqlalchemy.orm import Session

from controlplane.steering import commands, desired
from controlplane.steering.policies.warmup import Candidate
from controlplane.store.models import Command, Engine, MetricPoint, Prefix

RECOVERIES = "kvcache.recoveries"
# A counter's value before a window is looked for this far back; engines send every 2 seconds.
BASELINE_LOOKBACK = dt.timedelta(seconds=120)
MOST_CANDIDATES = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One observed value of a cumulative counter."""

    at: dt.datetime
    boot_id: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recoveries:
    """Recoveries tried in a window, by how they ended."""

    recovered: int
    not_recovered: int


def counter_growth(samples: Iterable[Sample], since: dt.datetime) -> float:
    """How much one cumulative series grew after `since`; samples in order of time.

    A new boot, or a value that fell, starts from zero: the whole value grew. So does a series' first sample, because an
    engine's counters are born at zero.
    """
    growth, before = 0.0, None
    for sample in samples:
        if sample.at > since:
            restarted = before is None or before.boot_id != sample.boot_id or sample.value < before.value
            growth += sample.value if restarted else sample.value - (before.value if before else 0.0)
        before = sample
    return growth


def growth_by_series(session: Session, engine_id: str, name: str, since: dt.datetime) -> dict[str, float]:
    """The growth of every series of one counter after `since`: series key ("k=v,k=v") -> growth."""
    query = (
        select(MetricPoint)
        .where(
            MetricPoint.engine_id == engine_id,
            MetricPoint.name == name,
            MetricPoint.at > since - BASELINE_LOOKBACK,
        )
        .order_by(MetricPoint.attributes, MetricPoint.at, MetricPoint.id)
    )
    points = groupby(session.scalars(query), key=lambda point: point.attributes)
    return {
        series: counter_growth((Sample(at=p.at, boot_id=p.boot_id, value=p.value) for p in group), since)
        for series, group in points
    }


def recoveries(session: Session, engine_id: str, since: dt.datetime) -> Recoveries:
    """The recoveries an engine tried after `since`, over all tiers."""
    recovered = not_recovered = 0.0
    for series, growth in growth_by_series(session, engine_id, RECOVERIES, since).items():
        if "outcome=ok" in series.split(","):
            recovered += growth
        else:
            not_recovered += growth
    return Recoveries(recovered=round(recovered), not_recovered=round(not_recovered))


def live_engines(session: Session, now: dt.datetime) -> list[str]:
    """The engines that were heard of lately. Policies leave the others alone: nothing can be known of them."""
    query = select(Engine.id).where(Engine.last_seen_at > now - commands.SILENT_AFTER).order_by(Engine.id)
    return list(session.scalars(query))


def mode_of(session: Session, engine_id: str, now: dt.datetime) -> tuple[str, bool]:
    """The desired mode as it counts now, and whether a person holds it."""
    document = desired.effective(session, engine_id, now).document
    return document.get("mode", "normal"), desired.mode_is_held(document, now)


def has_live_command(session: Session, engine_id: str, kind: str) -> bool:
    """Whether a command of this kind has no outcome yet."""
    query = select(Command.id).where(
        Command.engine_id == engine_id, Command.kind == kind, Command.status.in_(commands.LIVE)
    )
    return session.scalars(query.limit(1)).first() is not None


def warm_candidates(session: Session, engine_id: str) -> list[Candidate]:
    """Prefixes that are partly or wholly below the GPU, and evicted ones with a copy on disk; most served first."""
    off_gpu = or_(
        Prefix.state == "PARTIAL_OFFLOAD",
        and_(Prefix.state == "EVICTED", Prefix.disk_bytes > 0),
    )
    query = (
        select(Prefix)
        .where(Prefix.engine_id == engine_id, off_gpu)
        .order_by(Prefix.tokens_served.desc(), Prefix.prefix_id)
        .limit(MOST_CANDIDATES)
    )
    return [
        Candidate(
            prefix_id=prefix.prefix_id,
            tokens_served=prefix.tokens_served,
            pinned=prefix.pinned,
            host_bytes=prefix.host_bytes,
            disk_bytes=prefix.disk_bytes,
        )
        for prefix in session.scalars(query)
    ]


def fragmentation(session: Session, engine_id: str) -> float | None:
    """The share of the bytes of used slabs that is free, over all page classes; None if the engine did not say."""
    engine = session.get(Engine, engine_id)
    by_class = (engine.stats.get("fragmentation") if engine else None) or {}
    value = by_class.get("all", max(by_class.values(), default=None))
    return None if value is None else float(value)


def idle_prefixes(session: Session, engine_id: str, states: Sequence[str], idle_since: dt.datetime) -> list[str]:
    """Prefixes in these states that neither served nor changed after `idle_since`, longest idle first, none pinned."""
    last_use = func.coalesce(Prefix.served_at, Prefix.changed_at)
    query = (
        select(Prefix.prefix_id)
        .where(
            Prefix.engine_id == engine_id,
            Prefix.state.in_(states),
            Prefix.pinned.is_(False),
            last_use < idle_since,
            Prefix.changed_at < idle_since,
        )
        .order_by(last_use, Prefix.prefix_id)
        .limit(MOST_CANDIDATES)
    )
    return list(session.scalars(query))
