"""Ready series by minute, each with the number of samples behind every value.

Engines are summed up in the database: what is read grows with the range and the labels, not with the fleet. A ratio of
several engines is the sum of what they served over the sum of what they were asked, never a mean of their ratios.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from controlplane.errors import NotFound
from controlplane.store.models import MetricRollup, RequestRollup
from controlplane.store.query_types import TimeRange, minutes_in, of_engine
from controlplane.store.series_key import series_attributes

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


@dataclass(frozen=True, slots=True)
class _Metric:
    """One minute of the series of all engines that have these attributes; `rows` of them."""

    minute: dt.datetime
    attributes: Mapping[str, str]
    grown: float
    total: float
    highest: float
    rows: int


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


def _metrics(session: Session, name: str, window: TimeRange, engine_id: str | None) -> list[_Metric]:
    """One instrument by minute and attributes; gauges as they were at the end of the minute."""
    table = MetricRollup.__table__.c
    sums = (func.sum(table.delta), func.sum(table.last), func.max(table.last), func.count())
    query = (
        select(table.minute, table.attributes, *sums)
        .where(table.name == name, minutes_in(table.minute, window), *of_engine(table.engine_id, engine_id))
        .group_by(table.minute, table.attributes)
    )
    read = functools.cache(series_attributes)  # a few keys, in every minute
    return [_Metric(row[0], read(row[1]), *row[2:]) for row in session.execute(query)]


def _request_sums(
    session: Session, window: TimeRange, engine_id: str | None, *names: str, by: str | None = None
) -> list[tuple[Any, ...]]:
    """Rows of (minute, the value of the column `by` if one is named, the sums of `names`)."""
    table = RequestRollup.__table__.c
    keys = [table.minute, *(() if by is None else (table[by],))]
    query = (
        select(*keys, *(func.sum(table[name]) for name in names))
        .where(minutes_in(table.minute, window), *of_engine(table.engine_id, engine_id))
        .group_by(*keys)
    )
    return [(*row[: len(keys)], *map(int, row[len(keys) :])) for row in session.execute(query)]


def _hit_rate(by: str) -> Reader:
    def read(session: Session, window: TimeRange, engine_id: str | None) -> list[SeriesPoint]:
        asked: dict[dt.datetime, float] = defaultdict(float)
        for row in _tokens(_metrics(session, "kvcache.queries", window, engine_id)):
            asked[row.minute] += row.grown
        served: dict[tuple[dt.datetime, str], float] = defaultdict(float)
        for row in _tokens(_metrics(session, "kvcache.hits", window, engine_id)):
            served[row.minute, row.attributes.get(by, "none")] += row.grown
        return _ratios(served, asked)

    return read


def _tokens(rows: Iterable[_Metric]) -> list[_Metric]:
    return [row for row in rows if row.attributes.get("of") == "tokens"]


def _hit_rate_by_state(session: Session, window: TimeRange, engine_id: str | None) -> list[SeriesPoint]:
    asked: dict[dt.datetime, float] = defaultdict(float)
    served: dict[tuple[dt.datetime, str], float] = {}
    rows = _request_sums(session, window, engine_id, "prompt_tokens", "usable_tokens", by="state")
    for minute, state, prompt, usable in rows:
        asked[minute] += prompt
        if usable:
            served[minute, state] = usable
    return _ratios(served, asked)


def _usable_and_lcp(session: Session, window: TimeRange, engine_id: str | None) -> list[SeriesPoint]:
    asked: dict[dt.datetime, float] = {}
    found: dict[tuple[dt.datetime, str], float] = {}
    names = ("prompt_tokens", "lcp_tokens", "usable_tokens")
    for minute, prompt, lcp, usable in _request_sums(session, window, engine_id, *names):
        asked[minute], found[minute, "lcp"], found[minute, "usable"] = prompt, lcp, usable
    return _ratios(found, asked)


def _requests(session: Session, window: TimeRange, engine_id: str | None) -> list[SeriesPoint]:
    rows = _request_sums(session, window, engine_id, "requests", by="outcome")
    return [SeriesPoint(minute, outcome, float(count), count) for minute, outcome, count in rows]


def _recovery_failures(session: Session, window: TimeRange, engine_id: str | None) -> list[SeriesPoint]:
    whole: dict[tuple[dt.datetime, str], float] = defaultdict(float)
    failed: dict[tuple[dt.datetime, str], float] = defaultdict(float)
    for row in _metrics(session, "kvcache.recoveries", window, engine_id):
        for label in ("all", row.attributes.get("tier", "none")):
            whole[row.minute, label] += row.grown
            failed[row.minute, label] += row.grown if row.attributes.get("outcome") in FAILED else 0
    return [
        SeriesPoint(minute, label, failed[minute, label] / count if count > 0 else None, round(count))
        for (minute, label), count in whole.items()
    ]


def _tier_io(q: float) -> Reader:
    def read(session: Session, window: TimeRange, engine_id: str | None) -> list[SeriesPoint]:
        table = MetricRollup.__table__.c
        query = select(table.minute, table.attributes, table.bucket_deltas).where(
            table.name == "kvcache.tier.io.duration",
            minutes_in(table.minute, window),
            *of_engine(table.engine_id, engine_id),
        )
        label_of = functools.cache(_tier_and_direction)
        # Buckets are documents, which no database adds up alike: they are added here.
        sums: dict[tuple[dt.datetime, str], _Histogram] = defaultdict(_Histogram)
        for minute, attributes, buckets in session.execute(query):
            sums[minute, label_of(attributes)].add(buckets)
        return [
            SeriesPoint(minute, label, bucket_quantile(found.bounds, found.counts, q), sum(found.counts))
            for (minute, label), found in sums.items()
        ]

    return read


@dataclass(slots=True)
class _Histogram:
    """The sum of histograms with the same bounds; of others, those of the first one count."""

    bounds: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def add(self, buckets: Mapping[str, Any] | None) -> None:
        """Add one; a histogram's first word has no growth and is None."""
        if buckets is None:
            return
        if not self.counts:
            self.bounds, self.counts = list(buckets["bounds"]), list(buckets["counts"])
        elif self.bounds == buckets["bounds"]:
            self.counts = list(map(int.__add__, self.counts, buckets["counts"]))


def _tier_and_direction(attributes: str) -> str:
    read = series_attributes(attributes)
    return f"{read.get('tier', 'none')} {read.get('direction', 'none')}"


def _gauge(name: str, label_of: Sequence[str], *, highest: bool = False) -> Reader:
    """A gauge by the attributes in `label_of`: of several engines the sum, or the highest."""

    def read(session: Session, window: TimeRange, engine_id: str | None) -> list[SeriesPoint]:
        grouped: dict[tuple[dt.datetime, str], list[_Metric]] = defaultdict(list)
        for row in _metrics(session, name, window, engine_id):
            label = " ".join(row.attributes.get(part, "none") for part in label_of) or name
            grouped[row.minute, label].append(row)
        return [
            SeriesPoint(
                minute,
                label,
                max(row.highest for row in rows) if highest else sum(row.total for row in rows),
                sum(row.rows for row in rows),
            )
            for (minute, label), rows in grouped.items()
        ]

    return read


def _growth(name: str, label_of: Sequence[str]) -> Reader:
    def read(session: Session, window: TimeRange, engine_id: str | None) -> list[SeriesPoint]:
        sums: dict[tuple[dt.datetime, str], float] = defaultdict(float)
        for row in _metrics(session, name, window, engine_id):
            sums[row.minute, " ".join(row.attributes.get(part, "none") for part in label_of)] += row.grown
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
    "fragmentation": ("1", _gauge("kvcache.fragmentation", ("class",), highest=True)),
    "tier_bytes": ("By", _gauge("kvcache.tier.bytes", ("tier", "state"))),
    "prefixes": ("prefixes", _gauge("kvcache.prefixes", ("state",))),
    "evictions": ("evictions/min", _growth("kvcache.evictions", ("cause",))),
    "queue_depth": ("items", _gauge("kvcache.queue.depth", ("form",))),
    "mode": ("rung", _gauge("kvcache.mode", (), highest=True)),
    "telemetry_dropped": ("records/min", _growth("kvcache.telemetry.dropped", ("record",))),
}
