"""Ready series by minute, each with the number of samples behind every value."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from controlplane.errors import NotFound
from controlplane.store.queries_minutes import MetricMinute, metric_minutes, request_minutes
from controlplane.store.query_types import TimeRange

FAILED = ("failed", "late")


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """One value of one line. None: nothing to make a value from. `samples`: tokens, recoveries or I/Os behind it."""

    minute: dt.datetime
    label: str
    value: float | None
    samples: int


@dataclass(frozen=True, slots=True)
class Series:
    """A named set of lines."""

    name: str
    unit: str
    points: list[SeriesPoint]


Reader = Callable[[Session, TimeRange, str | None], list[SeriesPoint]]


def series(session: Session, name: str, window: TimeRange, engine_id: str | None = None) -> Series:
    """One of SERIES by minute, oldest first. Raises NotFound naming the series there are."""
    found = SERIES.get(name)
    if found is None:
        raise NotFound("series_unknown", f"There is no series {name!r}.", f"Series: {', '.join(sorted(SERIES))}.")
    unit, read = found
    return Series(name, unit, sorted(read(session, window, engine_id), key=lambda point: (point.minute, point.label)))


def bucket_quantile(bounds: Sequence[float], counts: Sequence[int], q: float) -> float | None:
    """The q-quantile of a histogram, linear inside its bucket; the last bound when it lies above it; None if empty."""
    total = sum(counts)
    if total <= 0:
        return None
    wanted, below = q * total, 0
    for index, count in enumerate(counts):
        if count and below + count >= wanted:
            if index == len(bounds):
                return bounds[-1] if bounds else None
            low = bounds[index - 1] if index else min(0.0, bounds[0])
            return low + (bounds[index] - low) * (wanted - below) / count
        below += count
    return bounds[-1] if bounds else None


def _ratios(parts: Mapping[tuple[dt.datetime, str], float], wholes: Mapping[dt.datetime, float]) -> list[SeriesPoint]:
    """Every label over the whole, in every minute that has a whole: a label that did not occur is 0 of it."""
    labels = {label for _minute, label in parts}
    return [
        SeriesPoint(minute, label, parts.get((minute, label), 0) / whole if whole > 0 else None, round(whole))
        for minute, whole in wholes.items()
        for label in labels
    ]


def _hit_rate(by: str) -> Reader:
    def read(session: Session, window: TimeRange, engine_id: str | None) -> list[SeriesPoint]:
        asked = _by_minute(_tokens(metric_minutes(session, "kvcache.queries", window, engine_id)))
        served: dict[tuple[dt.datetime, str], float] = defaultdict(float)
        for row in _tokens(metric_minutes(session, "kvcache.hits", window, engine_id)):
            served[row.minute, row.attributes.get(by, "none")] += row.delta
        return _ratios(served, asked)

    return read


def _tokens(rows: Iterable[MetricMinute]) -> list[MetricMinute]:
    return [row for row in rows if row.attributes.get("of") == "tokens"]


def _by_minute(rows: Iterable[MetricMinute]) -> dict[dt.datetime, float]:
    sums: dict[dt.datetime, float] = defaultdict(float)
    for row in rows:
        sums[row.minute] += row.delta
    return sums


def _hit_rate_by_state(session: Session, window: TimeRange, engine_id: str | None) -> list[SeriesPoint]:
    asked: dict[dt.datetime, float] = defaultdict(float)
    served: dict[tuple[dt.datetime, str], float] = defaultdict(float)
    for row in request_minutes(session, window, engine_id):
        asked[row.minute] += row.prompt_tokens
        if row.usable_tokens:
            served[row.minute, row.state] += row.usable_tokens
    return _ratios(served, asked)


def _usable_and_lcp(session: Session, window: TimeRange, engine_id: str | None) -> list[SeriesPoint]:
    asked: dict[dt.datetime, float] = defaultdict(float)
    found: dict[tuple[dt.datetime, str], float] = defaultdict(float)
    for row in request_minutes(session, window, engine_id):
        asked[row.minute] += row.prompt_tokens
        found[row.minute, "lcp"] += row.lcp_tokens
        found[row.minute, "usable"] += row.usable_tokens
    return _ratios(found, asked)


def _requests(session: Session, window: TimeRange, engine_id: str | None) -> list[SeriesPoint]:
    counts: dict[tuple[dt.datetime, str], int] = defaultdict(int)
    for row in request_minutes(session, window, engine_id):
        counts[row.minute, row.outcome] += row.requests
    return [SeriesPoint(minute, label, float(count), count) for (minute, label), count in counts.items()]


def _recovery_failures(session: Session, window: TimeRange, engine_id: str | None) -> list[SeriesPoint]:
    whole: dict[tuple[dt.datetime, str], float] = defaultdict(float)
    failed: dict[tuple[dt.datetime, str], float] = defaultdict(float)
    for row in metric_minutes(session, "kvcache.recoveries", window, engine_id):
        for label in ("all", row.attributes.get("tier", "none")):
            whole[row.minute, label] += row.delta
            failed[row.minute, label] += row.delta if row.attributes.get("outcome") in FAILED else 0
    return [
        SeriesPoint(minute, label, failed[minute, label] / count if count > 0 else None, round(count))
        for (minute, label), count in whole.items()
    ]


def _tier_io(q: float) -> Reader:
    def read(session: Session, window: TimeRange, engine_id: str | None) -> list[SeriesPoint]:
        grouped: dict[tuple[dt.datetime, str], list[MetricMinute]] = defaultdict(list)
        for row in metric_minutes(session, "kvcache.tier.io.duration", window, engine_id):
            label = f"{row.attributes.get('tier', 'none')} {row.attributes.get('direction', 'none')}"
            grouped[row.minute, label].append(row)
        return [_quantile_point(minute, label, rows, q) for (minute, label), rows in grouped.items()]

    return read


def _quantile_point(minute: dt.datetime, label: str, rows: Sequence[MetricMinute], q: float) -> SeriesPoint:
    histograms = [row.bucket_deltas for row in rows if row.bucket_deltas is not None]
    bounds = list(histograms[0]["bounds"]) if histograms else []
    alike = [histogram["counts"] for histogram in histograms if list(histogram["bounds"]) == bounds]
    counts = [sum(column) for column in zip(*alike, strict=True)]
    return SeriesPoint(minute, label, bucket_quantile(bounds, counts, q), sum(counts))


def _gauge(name: str, label_of: Sequence[str], pick: Callable[[Sequence[float]], float]) -> Reader:
    """A gauge by the attributes in `label_of`; `pick` makes one value of several engines'."""

    def read(session: Session, window: TimeRange, engine_id: str | None) -> list[SeriesPoint]:
        grouped: dict[tuple[dt.datetime, str], list[float]] = defaultdict(list)
        for row in metric_minutes(session, name, window, engine_id):
            label = " ".join(row.attributes.get(part, "none") for part in label_of) or name
            grouped[row.minute, label].append(row.last)
        return [SeriesPoint(minute, label, pick(values), len(values)) for (minute, label), values in grouped.items()]

    return read


def _growth(name: str, label_of: Sequence[str]) -> Reader:
    def read(session: Session, window: TimeRange, engine_id: str | None) -> list[SeriesPoint]:
        sums: dict[tuple[dt.datetime, str], float] = defaultdict(float)
        for row in metric_minutes(session, name, window, engine_id):
            sums[row.minute, " ".join(row.attributes.get(part, "none") for part in label_of)] += row.delta
        return [SeriesPoint(minute, label, value, round(value)) for (minute, label), value in sums.items()]

    return read


SERIES: dict[str, tuple[str, Reader]] = {
    "hit_rate_by_kind": ("1", _hit_rate("object.kind")),
    "hit_rate_by_state": ("1", _hit_rate_by_state),
    "usable_and_lcp": ("1", _usable_and_lcp),
    "requests": ("requests/min", _requests),
    "recovery_failure_rate": ("1", _recovery_failures),
    "tier_io_p50": ("s", _tier_io(0.50)),
    "tier_io_p99": ("s", _tier_io(0.99)),
    "tier_io_bytes": ("By/min", _growth("kvcache.tier.io.bytes", ("tier", "direction"))),
    "fragmentation": ("1", _gauge("kvcache.fragmentation", ("class",), max)),
    "tier_bytes": ("By", _gauge("kvcache.tier.bytes", ("tier", "state"), sum)),
    "prefixes": ("prefixes", _gauge("kvcache.prefixes", ("state",), sum)),
    "evictions": ("evictions/min", _growth("kvcache.evictions", ("cause",))),
    "queue_depth": ("items", _gauge("kvcache.queue.depth", ("form",), sum)),
    "mode": ("rung", _gauge("kvcache.mode", (), max)),
    "telemetry_dropped": ("records/min", _growth("kvcache.telemetry.dropped", ("record",))),
}
