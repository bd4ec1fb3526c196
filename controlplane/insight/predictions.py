"""What a curve foretold of caps, and what then happened: a curve must earn its trust.

When an engine posts a curve under other caps than the one before, the older curve says what they should bring; after a
time to settle, the requests of a window say what they brought.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from controlplane.clock import floor_minute
from controlplane.insight.curves import Curve, curve_of
from controlplane.store.models import CapPrediction, CurveSample, Engine, RequestRollup

TIERS = ("gpu", "host", "disk")
ALL = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a changed cache may fill or empty before it is measured, for how long it is measured, and how many
    requests that takes; with fewer the window grows up to `longest`, and is then given up."""

    settle: dt.timedelta = dt.timedelta(minutes=5)
    window: dt.timedelta = dt.timedelta(minutes=15)
    longest: dt.timedelta = dt.timedelta(hours=24)
    least_requests: int = 200


PATIENCE = Patience()


def capacity_pages(curve: Curve, held: Mapping[str, Any], namespace: str = ALL) -> float | None:
    """The pages that the caps in force leave room for, over all tiers; of a namespace, by its own maximum. None where
    there is no such cap.

    Tiers are added up: exact for the GPU alone, at most so many when a prefix has copies in several.
    """
    caps = held["caps"]
    if namespace:
        own = caps["namespaces"].get(namespace, {})
        return curve.pages_at(prefixes=own.get("max_prefixes"), n_bytes=own.get("max_bytes"))
    n_bytes = 0
    for tier in TIERS:
        size, cap = held["tiers"].get(tier, 0), caps.get(f"{tier}_bytes")
        n_bytes += size if cap is None else min(size, cap)
    return curve.pages_at(prefixes=caps["prefixes"], n_bytes=n_bytes)


def keep_up(session: Session, sample: CurveSample, now: dt.datetime, patience: Patience = PATIENCE) -> int:
    """Foretell what changed since the curve before, and measure what is due. How many predictions were made."""
    _measure_due(session, sample.engine_id, now, patience)
    before = session.scalars(
        select(CurveSample)
        .where(CurveSample.engine_id == sample.engine_id, CurveSample.id < sample.id)
        .order_by(CurveSample.id.desc())
        .limit(1)
    ).first()
    if before is None:
        return 0
    made = 0
    for namespace, caps, caps_before in _changed(before.document["held"], sample.document["held"]):
        session.add(_foretell(session, before, sample, namespace, caps, caps_before, now, patience))
        made += 1
    return made


def _changed(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Scopes whose caps differ, with their caps now and before."""
    old, new = before["caps"], after["caps"]
    named, named_before = dict(new["namespaces"]), dict(old["namespaces"])
    total = {f"cap_{key}": value for key, value in new.items() if key != "namespaces"}
    total_before = {f"cap_{key}": value for key, value in old.items() if key != "namespaces"}
    if total != total_before:
        yield ALL, total, total_before
    for name in sorted({*named, *named_before}):
        if named.get(name) != named_before.get(name):
            yield name, named.get(name, {}), named_before.get(name, {})


def _foretell(
    session: Session,
    before: CurveSample,
    sample: CurveSample,
    namespace: str,
    caps: dict[str, Any],
    caps_before: dict[str, Any],
    now: dt.datetime,
    patience: Patience,
) -> CapPrediction:
    for row in _waiting(session, sample.engine_id, namespace):
        row.state = "superseded"
    curve = _curve(before.document, namespace)
    pages = None if curve is None else capacity_pages(curve, {**before.document["held"], **_limits(sample)}, namespace)
    told = curve is not None and not curve.missing_samples and pages is not None
    engine = session.get(Engine, sample.engine_id)
    measured_from = floor_minute(now + patience.settle) + dt.timedelta(minutes=1)
    return CapPrediction(
        engine_id=sample.engine_id,
        revision=engine.observed_revision if engine is not None else 0,
        namespace=namespace,
        at=now,
        caps=caps,
        caps_before=caps_before,
        samples=curve.samples if curve is not None else 0.0,
        before_ratio=curve.measured_ratio if curve is not None else None,
        predicted_ratio=curve.hit_ratio(pages) if told and curve is not None and pages is not None else None,
        state="waiting" if told else "no_curve",
        measured_ratio=None,
        measured_requests=0,
        measured_from=measured_from,
        measured_until=measured_from + patience.window,
    )


def _limits(sample: CurveSample) -> dict[str, Any]:
    held = sample.document["held"]
    return {"caps": held["caps"], "tiers": held["tiers"]}


def _curve(document: Mapping[str, Any], namespace: str) -> Curve | None:
    try:
        return curve_of(document, namespace or None)
    except KeyError:
        return None


def _waiting(session: Session, engine_id: str, namespace: str | None = None) -> list[CapPrediction]:
    query = select(CapPrediction).where(CapPrediction.engine_id == engine_id, CapPrediction.state == "waiting")
    if namespace is not None:
        query = query.where(CapPrediction.namespace == namespace)
    return list(session.scalars(query))


def _measure_due(session: Session, engine_id: str, now: dt.datetime, patience: Patience) -> None:
    for row in _waiting(session, engine_id):
        if now < row.measured_until:
            continue
        requests, prompt, usable = _served(session, row, now)
        row.measured_requests = requests
        if requests >= patience.least_requests and prompt:
            row.measured_ratio, row.state = usable / prompt, "measured"
            row.measured_until = max(row.measured_until, floor_minute(now))
        elif now >= row.at + patience.longest:
            row.state = "too_few"


def _served(session: Session, row: CapPrediction, now: dt.datetime) -> tuple[int, int, int]:
    """Requests, prompt and usable tokens in the window so far, whole minutes only."""
    sums = (RequestRollup.requests, RequestRollup.prompt_tokens, RequestRollup.usable_tokens)
    query = select(*(func.coalesce(func.sum(column), 0) for column in sums)).where(
        RequestRollup.engine_id == row.engine_id,
        RequestRollup.minute >= row.measured_from,
        RequestRollup.minute < floor_minute(now),
        RequestRollup.outcome != "bypass",
    )
    if row.namespace:
        query = query.where(RequestRollup.namespace == row.namespace)
    requests, prompt, usable = session.execute(query).one()
    return int(requests), int(prompt), int(usable)
