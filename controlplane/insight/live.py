"""What-if on a live engine: the newest curve, where the engine stands on it, and what a proposed cap would bring."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from controlplane.errors import NotFound
from controlplane.insight.curves import (
    DEFAULT_WITHIN_POINTS,
    LEAST_SAMPLES,
    Curve,
    Recommendation,
    curve_of,
    grid,
    recommend,
)
from controlplane.insight.predictions import ALL, capacity_pages
from controlplane.store.models import CapPrediction, CurveSample, Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """One capacity: prefixes and bytes are None while nothing is held to measure them by."""

    pages: int
    prefixes: int | None
    bytes: int | None
    hit_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed(CurvePoint):
    """A cap somebody thinks about, and what would have to leave."""

    evicts_prefixes: int
    evicts_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfView:
    """The answer. `refused` says in words why there is no curve, and is empty when there is one."""

    engine: str
    namespace: str
    at: dt.datetime
    samples: int
    watched_pages: int
    rate: float
    requests: int
    namespaces: list[str]
    refused: str
    curve: list[CurvePoint]
    now: CurvePoint | None
    measured_ratio: float | None
    proposed: Proposed | None
    recommendation: Recommendation | None
    cautions: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionView:
    """What was foretold of caps, and what came of it; `error_points` is measured less predicted."""

    engine_id: str
    revision: int
    namespace: str
    at: dt.datetime
    caps: dict[str, Any]
    caps_before: dict[str, Any]
    samples: float
    before_ratio: float | None
    predicted_ratio: float | None
    state: str
    measured_ratio: float | None
    measured_requests: int
    measured_from: dt.datetime
    measured_until: dt.datetime
    error_points: float | None


def what_if(
    session: Session,
    engine_id: str,
    *,
    namespace: str = ALL,
    cap_prefixes: int | None = None,
    cap_bytes: int | None = None,
    within_points: float = DEFAULT_WITHIN_POINTS,
) -> WhatIfView:
    """Answer from the newest curve. Raises NotFound for an engine that has none, and a namespace that has none."""
    sample = newest(session, engine_id)
    document = sample.document
    names = sorted(document["namespaces"])
    try:
        curve = curve_of(document, namespace or None)
    except KeyError:
        known = ", ".join(names[:20]) or "none yet"
        raise NotFound("curve_namespace", f"Namespace {namespace!r} has no curve.", f"There are: {known}.") from None
    held = document["held"]
    enough = not curve.missing_samples and bool(curve.points)
    now_pages = capacity_pages(curve, held, namespace)
    asked = curve.pages_at(prefixes=cap_prefixes, n_bytes=cap_bytes)
    reach = max(now_pages or 0.0, asked or 0.0)
    return WhatIfView(
        engine=engine_id,
        namespace=namespace,
        at=sample.at,
        samples=int(curve.samples),
        watched_pages=curve.watched_pages,
        rate=curve.rate,
        requests=int(curve.requests),
        namespaces=names,
        refused="" if enough else refusal(curve),
        curve=[CurvePoint(**curve.point(pages)) for pages in grid(curve, reach_pages=reach)] if enough else [],
        now=CurvePoint(**curve.point(now_pages)) if enough and now_pages is not None else None,
        measured_ratio=curve.measured_ratio,
        proposed=_proposed(curve, held, namespace, asked, cap_prefixes, cap_bytes) if enough and asked else None,
        recommendation=recommend(curve, within_points),
        cautions=_cautions(session, engine_id, held, namespace),
    )


def refusal(curve: Curve) -> str:
    """Why no curve is drawn."""
    if curve.missing_samples:
        have, more = int(curve.samples), curve.missing_samples
        return f"{have:,} samples so far; a curve takes {LEAST_SAMPLES:,}, so {more:,} more are needed"
    return f"in {int(curve.samples):,} samples nothing was asked for twice: no cap would give a hit"


def newest(session: Session, engine_id: str) -> CurveSample:
    """The newest curve of an engine. Raises NotFound."""
    if session.get(Engine, engine_id) is None:
        raise NotFound("engine_unknown", f"No engine {engine_id!r} has ever registered.", "`kvdeck status` lists them.")
    query = select(CurveSample).where(CurveSample.engine_id == engine_id).order_by(CurveSample.id.desc()).limit(1)
    found = session.scalars(query).first()
    if found is None:
        raise NotFound(
            "curve_unknown",
            f"Engine {engine_id} has sent no curve yet.",
            "`kvdeck policy run curve-sampling` asks for one; an engine with curve_samples=0 has none.",
        )
    return found


def outcomes(session: Session, engine_id: str | None = None, *, limit: int = 100) -> list[PredictionView]:
    """What was foretold and what came of it, newest first."""
    query = select(CapPrediction).order_by(CapPrediction.id.desc()).limit(limit)
    if engine_id is not None:
        query = query.where(CapPrediction.engine_id == engine_id)
    return [_view(row) for row in session.scalars(query)]


def _view(row: CapPrediction) -> PredictionView:
    apart = None
    if row.measured_ratio is not None and row.predicted_ratio is not None:
        apart = round((row.measured_ratio - row.predicted_ratio) * 100, 2)
    names = [name for name in PredictionView.__dataclass_fields__ if name != "error_points"]
    return PredictionView(**{name: getattr(row, name) for name in names}, error_points=apart)


def _proposed(
    curve: Curve,
    held: Mapping[str, Any],
    namespace: str,
    pages: float,
    cap_prefixes: int | None,
    cap_bytes: int | None,
) -> Proposed:
    own = held["namespaces"].get(namespace, {}) if namespace else held["total"]
    prefixes, n_bytes = own.get("prefixes", 0), own.get("gpu_bytes", 0)
    fewer = max(0, prefixes - cap_prefixes) if cap_prefixes is not None else 0
    less = max(0, n_bytes - cap_bytes) if cap_bytes is not None else 0
    if prefixes and n_bytes:  # prefixes that leave take their bytes along, and the other way round
        fewer, less = max(fewer, round(less * prefixes / n_bytes)), max(less, round(fewer * n_bytes / prefixes))
    return Proposed(**curve.point(pages), evicts_prefixes=fewer, evicts_bytes=less)


def _cautions(session: Session, engine_id: str, held: Mapping[str, Any], namespace: str) -> list[str]:
    engine = session.get(Engine, engine_id)
    observed = engine.observed if engine is not None else {}
    found = []
    for knob, assumed in (("admission_rule", "all"), ("eviction", "lru"), ("mode", "normal")):
        runs = observed.get(knob)
        if runs is not None and runs != assumed:
            found.append(f"The curve is that of {knob} {assumed}; the engine runs with {runs}.")
    if namespace and namespace not in held["caps"]["namespaces"]:
        found.append(
            f"{namespace} has no cap of its own: it shares what there is, so it has no place on its curve now."
        )
    if not namespace and sum(size > 0 for size in held["tiers"].values()) > 1:
        found.append("Bytes are of all tiers together; what lies below the GPU hits after a restore.")
    return found
