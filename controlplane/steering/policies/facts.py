"""Reads what policies and alerts decide on, frozen, out of the store."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from sqlalchemy import Select, and_, exists, func, or_, select, true
from sqlalchemy.orm import Session

from controlplane.steering import commands, desired
from controlplane.steering.policies.curve import CurveFacts
from controlplane.steering.policies.warmup import Candidate
from controlplane.store.models import Command, CurveSample, Engine, MetricPoint, PolicyRefusal, Prefix, PrefixLabel

RECOVERIES = "kvcache.recoveries"
# A counter's value before a window is looked for this far back; engines send every 2 seconds.
BASELINE_LOOKBACK = dt.timedelta(seconds=120)
MOST_CANDIDATES = 500
MOST_PIN_COMMANDS = 200


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


def live_engines(session: Session, now: dt.datetime) -> list[Engine]:
    """The engines that were heard of lately. Policies leave the others alone: nothing can be known of them."""
    query = select(Engine).where(Engine.last_seen_at > now - commands.SILENT_AFTER, Engine.left_at.is_(None))
    return list(session.scalars(query.order_by(Engine.id)))


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


def warm_candidates(
    session: Session, engine_id: str, now: dt.datetime, *, namespace: str | None = None, labels: Sequence[str] = ()
) -> list[Candidate]:
    """Prefixes that are partly or wholly below the GPU, and evicted ones with a copy on disk; most served first.

    What is pinned, was pinned before a restart, or bears one of `labels` (`NAME` or `NAME=VALUE`) is among them however
    little it served.
    """
    off_gpu = or_(Prefix.state == "PARTIAL_OFFLOAD", and_(Prefix.state == "EVICTED", Prefix.disk_bytes > 0))
    conditions = [Prefix.engine_id == engine_id, off_gpu]
    if namespace is not None:
        conditions.append(Prefix.namespace == namespace)
    query = select(Prefix).where(*conditions).order_by(Prefix.tokens_served.desc(), Prefix.prefix_id)
    pinned_before = _pins_that_stand(session, engine_id, now)
    labelled = set(session.scalars(_labelled(labels))) if labels else set()
    dear = or_(Prefix.pinned.is_(True), Prefix.prefix_id.in_(sorted(pinned_before | labelled)[:MOST_CANDIDATES]))
    found = {prefix.prefix_id: prefix for prefix in session.scalars(query.limit(MOST_CANDIDATES))}
    found |= {prefix.prefix_id: prefix for prefix in session.scalars(query.where(dear).limit(MOST_CANDIDATES))}
    return [
        Candidate(
            prefix_id=prefix.prefix_id,
            tokens_served=prefix.tokens_served,
            pinned=prefix.pinned or prefix.prefix_id in pinned_before,
            host_bytes=prefix.host_bytes,
            disk_bytes=prefix.disk_bytes,
            labelled=prefix.prefix_id in labelled,
        )
        for prefix in sorted(found.values(), key=lambda prefix: (-prefix.tokens_served, prefix.prefix_id))
    ]


def _labelled(labels: Sequence[str]) -> Select[tuple[str]]:
    wanted = []
    for label in labels:
        name, has_value, value = label.partition("=")
        wanted.append(and_(PrefixLabel.name == name, PrefixLabel.value == value if has_value else true()))
    return select(PrefixLabel.prefix_id).where(or_(*wanted)).limit(MOST_CANDIDATES)


def _pins_that_stand(session: Session, engine_id: str, now: dt.datetime) -> set[str]:
    """What operators pinned for a time that has not run out: an engine forgets its pins with its boot."""
    query = (
        select(Command)
        .where(Command.engine_id == engine_id, Command.kind.in_(("pin", "unpin")), Command.status == commands.SUCCEEDED)
        .order_by(Command.created_at.desc())
        .limit(MOST_PIN_COMMANDS)
    )
    pinned: set[str] = set()
    for command in reversed(session.scalars(query).all()):
        ids = set(command.arguments.get("prefix_ids", ()))
        ends = command.created_at + dt.timedelta(seconds=command.arguments.get("ttl_s", 0))
        pinned = pinned | ids if command.kind == "pin" and ends > now else pinned - ids
    return pinned


def fragmentation(session: Session, engine_id: str) -> float | None:
    """The share of the bytes of used slabs that is free, over all page classes; None if the engine did not say."""
    engine = session.get(Engine, engine_id)
    by_class = (engine.stats.get("fragmentation") if engine else None) or {}
    value = by_class.get("all", max(by_class.values(), default=None))
    return None if value is None else float(value)


def idle_prefixes(
    session: Session,
    engine_id: str,
    states: Sequence[str],
    idle_since: dt.datetime,
    *,
    namespace: str | None,
    refused_to: str,
    now: dt.datetime,
) -> list[str]:
    """Prefixes in these states that neither served nor changed after `idle_since`, longest idle first, none pinned,
    and none that the engine refused the policy `refused_to` lately."""
    last_use = func.coalesce(Prefix.served_at, Prefix.changed_at)
    refused = exists().where(
        PolicyRefusal.policy == refused_to,
        PolicyRefusal.engine_id == engine_id,
        PolicyRefusal.prefix_id == Prefix.prefix_id,
        PolicyRefusal.until > now,
    )
    query = (
        select(Prefix.prefix_id)
        .where(
            Prefix.engine_id == engine_id,
            Prefix.state.in_(states),
            Prefix.pinned.is_(False),
            Prefix.namespace == namespace if namespace is not None else true(),
            last_use < idle_since,
            Prefix.changed_at < idle_since,
            ~refused,
        )
        .order_by(last_use, Prefix.prefix_id)
        .limit(MOST_CANDIDATES)
    )
    return list(session.scalars(query))


def backing_off(session: Session, engine_id: str, policy: str, now: dt.datetime) -> int:
    """How many prefixes a policy leaves alone because this engine refused them."""
    query = select(func.count()).where(
        PolicyRefusal.policy == policy, PolicyRefusal.engine_id == engine_id, PolicyRefusal.until > now
    )
    return session.scalar(query) or 0


def curve_facts(session: Session, engine_id: str) -> CurveFacts:
    """Whether an engine was asked for its curve, and when the last one came."""
    engine = session.get(Engine, engine_id)
    newest = select(CurveSample.at, CurveSample.samples).where(CurveSample.engine_id == engine_id)
    found = session.execute(newest.order_by(CurveSample.id.desc()).limit(1)).first()
    wanted = engine is not None and engine.curve_wanted
    at, samples = found if found is not None else (None, 0.0)
    return CurveFacts(engine_id=engine_id, wanted=wanted, newest=at, samples=samples)
