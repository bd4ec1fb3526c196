"""The numbers that answer "is it well?" over a range, each rate with the counts behind it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from controlplane.store.base import Base
from controlplane.store.models import (
    Alert,
    Checkpoint,
    Command,
    HistoryGap,
    MetricHour,
    MetricRollup,
    Prefix,
    RequestHour,
    RequestRollup,
)
from controlplane.store.queries_minutes import validation_counts
from controlplane.store.queries_series import FAILED
from controlplane.store.queries_span import named, over
from controlplane.store.query_types import Engines, Rate, TimeRange, of_engine
from controlplane.store.series_key import series_attributes

OPEN_COMMANDS = ("pending", "delivered", "running")


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """What the engines hold now."""

    prefixes_by_state: dict[str, int]
    bytes_by_tier: dict[str, int]
    prefixes_pinned: int
    checkpoints: int
    open_gaps: int
    open_commands: int
    firing_alerts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """One range in numbers. Hit rates are shares of prompt tokens; `recovery_failures` of recoveries.

    `hit_by_kind`: tokens of hits each object kind took part in (a hit counts for each kind that served it).
    `hit_by_state`, `hit_by_tier`: usable tokens by the state that served them and the slowest tier they came from.
    Of one namespace, `of_all_namespaces` names the fields that are of all of them nevertheless: metrics, validations
    and checkpoints carry none.
    """

    window: TimeRange
    requests: int
    requests_by_outcome: dict[str, int]
    prompt_tokens: int
    lcp_tokens: int
    usable_tokens: int
    replay_tokens: int
    lcp: Rate
    usable: Rate
    hit_by_kind: dict[str, Rate]
    hit_by_state: dict[str, Rate]
    hit_by_tier: dict[str, Rate]
    recovery_failures: Rate
    recovery_failures_by_tier: dict[str, Rate]
    validation_failures: Rate
    telemetry_dropped: int
    holdings: Holdings
    of_all_namespaces: tuple[str, ...] = ()


WITHOUT_NAMESPACE = (
    "hit_by_kind",
    "recovery_failures",
    "recovery_failures_by_tier",
    "validation_failures",
    "telemetry_dropped",
    "holdings.checkpoints",
    "holdings.open_gaps",
    "holdings.open_commands",
    "holdings.firing_alerts",
)


@dataclass(slots=True)
class _Requests:
    """Sums over the range."""

    requests: int = 0
    prompt_tokens: int = 0
    lcp_tokens: int = 0
    usable_tokens: int = 0
    replay_tokens: int = 0


def overview(session: Session, window: TimeRange, engine_id: Engines = None, namespace: str | None = None) -> Overview:
    """The overview of one engine and namespace, or of all. Read from rollups: its cost does not grow with traffic."""
    total, by_outcome, by_state, by_tier = _request_sums(session, window, engine_id, namespace)
    recoveries, by_recovery_tier = _recoveries(session, window, engine_id)
    return Overview(
        window=window,
        requests=total.requests,
        requests_by_outcome=by_outcome,
        prompt_tokens=total.prompt_tokens,
        lcp_tokens=total.lcp_tokens,
        usable_tokens=total.usable_tokens,
        replay_tokens=total.replay_tokens,
        lcp=Rate.of(total.lcp_tokens, total.prompt_tokens),
        usable=Rate.of(total.usable_tokens, total.prompt_tokens),
        hit_by_kind=_hit_by_kind(session, window, engine_id),
        hit_by_state={state: Rate.of(tokens, total.prompt_tokens) for state, tokens in by_state.items()},
        hit_by_tier={tier: Rate.of(tokens, total.prompt_tokens) for tier, tokens in by_tier.items()},
        recovery_failures=recoveries,
        recovery_failures_by_tier=by_recovery_tier,
        validation_failures=_validation_failures(session, window, engine_id),
        telemetry_dropped=round(sum(_grown(session, "kvcache.telemetry.dropped", window, engine_id).values())),
        holdings=holdings(session, engine_id, namespace),
        of_all_namespaces=() if namespace is None else WITHOUT_NAMESPACE,
    )


def recovery_failures(session: Session, window: TimeRange, engine_id: Engines = None) -> Rate:
    """(failed + late) over all recoveries in a range: what the degrade policy watches. `whole` is its sample count."""
    return _recoveries(session, window, engine_id)[0]


def holdings(session: Session, engine_id: Engines = None, namespace: str | None = None) -> Holdings:
    """What one engine holds now, or all; prefixes and bytes of one namespace, or of all."""
    mine = () if namespace is None else (Prefix.namespace == namespace,)
    live = (Prefix.version > 0, Prefix.state != "EVICTED", *of_engine(Prefix.engine_id, engine_id), *mine)
    states = select(Prefix.state, func.count()).where(*live).group_by(Prefix.state)
    held = select(func.sum(Prefix.gpu_bytes), func.sum(Prefix.host_bytes), func.sum(Prefix.disk_bytes)).where(*live)
    sums = session.execute(held).one()
    return Holdings(
        prefixes_by_state=dict(session.execute(states).tuples().all()),
        bytes_by_tier={tier: int(total or 0) for tier, total in zip(("gpu", "host", "disk"), sums, strict=True)},
        prefixes_pinned=_count(session, Prefix, *live, Prefix.pinned.is_(True)),
        checkpoints=_count(session, Checkpoint, *of_engine(Checkpoint.engine_id, engine_id)),
        open_gaps=_count(
            session, HistoryGap, HistoryGap.closed_at.is_(None), *of_engine(HistoryGap.engine_id, engine_id)
        ),
        open_commands=_count(
            session, Command, Command.status.in_(OPEN_COMMANDS), *of_engine(Command.engine_id, engine_id)
        ),
        firing_alerts=_count(session, Alert, Alert.state == "firing", *of_engine(Alert.engine_id, engine_id)),
    )


def _request_sums(
    session: Session, window: TimeRange, engine_id: Engines, namespace: str | None
) -> tuple[_Requests, dict[str, int], dict[str, int], dict[str, int]]:
    names = list(_Requests.__slots__)
    columns = ("outcome", "state", "tier", *names)
    table = over(RequestRollup, RequestHour, columns, window, engine_id, **named(namespace))
    query = select(table.outcome, table.state, table.tier, *(func.sum(table[name]) for name in names)).group_by(
        table.outcome, table.state, table.tier
    )
    total = _Requests()
    by_outcome: dict[str, int] = defaultdict(int)
    by_state: dict[str, int] = defaultdict(int)
    by_tier: dict[str, int] = defaultdict(int)
    for outcome, state, tier, *sums in session.execute(query):
        for name, value in zip(names, sums, strict=True):
            setattr(total, name, getattr(total, name) + int(value))
        usable = int(sums[names.index("usable_tokens")])
        by_outcome[outcome] += int(sums[0])
        if usable:
            by_state[state] += usable
            by_tier[tier] += usable
    return total, dict(by_outcome), dict(by_state), dict(by_tier)


def _hit_by_kind(session: Session, window: TimeRange, engine_id: Engines) -> dict[str, Rate]:
    asked = sum(
        grown
        for attributes, grown in _grown(session, "kvcache.queries", window, engine_id).items()
        if series_attributes(attributes).get("of") == "tokens"
    )
    served: dict[str, float] = defaultdict(float)
    for key, grown in _grown(session, "kvcache.hits", window, engine_id).items():
        attributes = series_attributes(key)
        if attributes.get("of") == "tokens":
            served[attributes.get("object.kind", "none")] += grown
    return {kind: Rate.of(tokens, asked) for kind, tokens in sorted(served.items())}


def _recoveries(session: Session, window: TimeRange, engine_id: Engines) -> tuple[Rate, dict[str, Rate]]:
    whole: dict[str, float] = defaultdict(float)
    bad: dict[str, float] = defaultdict(float)
    for key, grown in _grown(session, "kvcache.recoveries", window, engine_id).items():
        attributes = series_attributes(key)
        tier = attributes.get("tier", "none")
        whole[tier] += grown
        bad[tier] += grown if attributes.get("outcome") in FAILED else 0
    by_tier = {tier: Rate.of(bad[tier], count) for tier, count in sorted(whole.items())}
    return Rate.of(sum(bad.values()), sum(whole.values())), by_tier


def _validation_failures(session: Session, window: TimeRange, engine_id: Engines) -> Rate:
    # A validation that does not apply was not made: it is in neither number.
    made = [row for row in validation_counts(session, window, engine_id) if row.verdict != "not_applicable"]
    return Rate.of(sum(row.count for row in made if row.verdict == "fail"), sum(row.count for row in made))


def _grown(session: Session, name: str, window: TimeRange, engine_id: Engines) -> dict[str, float]:
    table = over(MetricRollup, MetricHour, ("attributes", "delta"), window, engine_id, name=name)
    query = select(table.attributes, func.sum(table.delta)).group_by(table.attributes)
    return {attributes: float(total) for attributes, total in session.execute(query)}


def _count(session: Session, model: type[Base], *conditions: ColumnElement[bool]) -> int:
    return session.scalar(select(func.count()).select_from(model).where(*conditions)) or 0
