"""Read models as the frames the charts take. Pure functions: rows in, columns out, also for no rows."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterable, Sequence

import pandas as pd

from controlplane.store.queries import Mark, ValidationCount, VersionView
from controlplane.store.queries_charts import (
    EngineSlot,
    HistogramSlot,
    LossSlot,
    MetricSlot,
    RequestSlot,
    ValidationSlot,
)
from dashboard.charts.base import MARK_COLUMNS
from dashboard.wording import clock_text

REQUEST_COLUMNS = list(RequestSlot.__slots__)
LOSS_COLUMNS = list(LossSlot.__slots__)
NOT_PASSED_COLUMNS = list(ValidationSlot.__slots__)
VERSION_COLUMNS = list(VersionView.__slots__)


def requests_frame(rows: Iterable[RequestSlot]) -> pd.DataFrame:
    """Requests by slot and serving state, with the columns of the read model."""
    return _frame([tuple(getattr(row, name) for name in REQUEST_COLUMNS) for row in rows], REQUEST_COLUMNS)


def losses_frame(rows: Iterable[LossSlot]) -> pd.DataFrame:
    """Tokens that were no hit: minute, cause, requests, tokens."""
    return _frame([tuple(getattr(row, name) for name in LOSS_COLUMNS) for row in rows], LOSS_COLUMNS)


def not_passed_frame(rows: Iterable[ValidationSlot]) -> pd.DataFrame:
    """Validations that did not pass: minute, validation, verdict, reason, count."""
    return _frame([tuple(getattr(row, name) for name in NOT_PASSED_COLUMNS) for row in rows], NOT_PASSED_COLUMNS)


def queries_frame(rows: Iterable[MetricSlot]) -> pd.DataFrame:
    """Tokens asked for: minute, tokens."""
    return _frame([(r.minute, r.delta) for r in rows if r.attributes.get("of") == "tokens"], ["minute", "tokens"])


def hits_frame(rows: Iterable[MetricSlot]) -> pd.DataFrame:
    """Tokens served by object kind: minute, kind, tokens."""
    served = [
        (r.minute, r.attributes.get("object.kind", "none"), r.delta) for r in rows if r.attributes.get("of") == "tokens"
    ]
    return _frame(served, ["minute", "kind", "tokens"])


def recoveries_frame(rows: Iterable[MetricSlot]) -> pd.DataFrame:
    """Recoveries: minute, tier, outcome, count."""
    found = [(r.minute, r.attributes.get("tier", "none"), r.attributes.get("outcome", "none"), r.delta) for r in rows]
    return _frame(found, ["minute", "tier", "outcome", "count"])


def io_frame(rows: Iterable[HistogramSlot]) -> pd.DataFrame:
    """Tier I/O histograms: minute, tier, direction, buckets."""
    found = [
        (
            r.minute,
            r.attributes.get("tier", "none"),
            r.attributes.get("direction", "none"),
            {"bounds": r.bounds, "counts": r.counts},
        )
        for r in rows
    ]
    return _frame(found, ["minute", "tier", "direction", "buckets"])


def fragmentation_frame(rows: Iterable[MetricSlot]) -> pd.DataFrame:
    """Fragmentation by page class, the mean over engines: minute, page_class, ratio."""
    return _frame(
        [(r.minute, r.attributes.get("class", "all"), r.mean) for r in rows], ["minute", "page_class", "ratio"]
    )


def tier_bytes_frame(rows: Iterable[MetricSlot]) -> pd.DataFrame:
    """Bytes in use by tier (live and pinned): minute, tier, used_bytes."""
    used = [r for r in rows if r.attributes.get("state") in ("live", "pinned")]
    return _frame(
        [(r.minute, r.attributes.get("tier", "none"), r.held) for r in used], ["minute", "tier", "used_bytes"]
    )


def mode_frame(rows: Iterable[EngineSlot]) -> pd.DataFrame:
    """The rung of the ladder: minute, engine, mode."""
    return _frame([(r.minute, r.engine_id, r.maximum) for r in rows], ["minute", "engine", "mode"])


def marks_frame(marks: Iterable[Mark]) -> pd.DataFrame:
    """Changes as the charts mark them: at, kind, text (HTML of a hover box)."""
    rows: list[tuple[object, ...]] = []
    for mark in marks:
        where = mark.engine_id or "every engine"
        rows.append(
            (mark.at, mark.kind, f"{clock_text(mark.at)} · {mark.text}<br>{where}, by {mark.actor}: {mark.reason}")
        )
    return _frame(rows, list(MARK_COLUMNS))


def versions_frame(versions: Iterable[VersionView]) -> pd.DataFrame:
    """One prefix's history with the columns of the read model."""
    return _frame([tuple(getattr(row, name) for name in VERSION_COLUMNS) for row in versions], VERSION_COLUMNS)


def verdicts_frame(counts: Iterable[ValidationCount]) -> pd.DataFrame:
    """Validations by how they ended: validation, verdict, reason, count."""
    columns = ["validation", "verdict", "reason", "count"]
    return _frame([(row.validation, row.verdict, row.reason, row.count) for row in counts], columns)


def version_of(frames: Iterable[pd.DataFrame]) -> str:
    """A digest of what the frames hold. Two that are alike may differ in it; two that differ never agree."""
    digest = hashlib.blake2b(digest_size=16)
    for frame in frames:
        digest.update(pickle.dumps(frame))
    return digest.hexdigest()


def _frame(rows: Sequence[tuple[object, ...]], columns: list[str]) -> pd.DataFrame:
    return pd.DataFrame(list(rows), columns=columns)
