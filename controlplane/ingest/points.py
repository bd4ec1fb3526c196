"""Metric data points as frozen values, read out of OTLP."""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_CUMULATIVE,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
)

from controlplane.ingest.facts import MAX_INT, BadFact
from controlplane.ingest.otlp import attributes_of
from controlplane.ingest.reading import check_time
from controlplane.store.columns import EPOCH
from controlplane.store.series_key import series_key

LONGEST_KEY = 256
MOST_BUCKETS = 256
MOST_COUNT = 1 << 53
MOST_VALUE = 1e18
"""So that no sum of a minute, and no float, grows over what is a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """A histogram: `counts` has one more than `bounds`; bucket i holds values up to bounds[i], the last all above."""

    bounds: list[float]
    counts: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One observation of one series. `value` of a counter or histogram (its sum) is cumulative since `started_at`."""

    name: str
    attributes: str
    at: dt.datetime
    started_at: dt.datetime
    cumulative: bool
    value: float
    count: int | None = None
    buckets: Buckets | None = None

    @property
    def series(self) -> tuple[str, str]:
        """Which series of its engine this is a point of."""
        return self.name, self.attributes


def read_metric(metric: Metric, latest_ns: int = MAX_INT) -> Iterator[Point | BadFact]:
    """The points of one metric; a point that cannot be used comes as the reason why."""
    kind = metric.WhichOneof("data")
    raw: list[NumberDataPoint | HistogramDataPoint]
    match kind:
        case "gauge":
            raw, cumulative, temporality = list(metric.gauge.data_points), False, None
        case "sum":
            raw, cumulative = list(metric.sum.data_points), metric.sum.is_monotonic
            temporality = metric.sum.aggregation_temporality
        case "histogram":
            raw, cumulative = list(metric.histogram.data_points), True
            temporality = metric.histogram.aggregation_temporality
        case _:
            yield BadFact(
                f"{metric.name}: a {kind or 'metric without data'} is not kept; use counter, gauge, histogram", "metric"
            )
            return
    for data in raw:
        try:
            if temporality not in (None, AGGREGATION_TEMPORALITY_CUMULATIVE):
                raise BadFact("temporality must be cumulative", "metric")
            yield _read_point(metric.name, data, latest_ns, cumulative=cumulative)
        except BadFact as error:
            yield BadFact(f"{metric.name}: {error}", error.reason)


def _read_point(name: str, data: NumberDataPoint | HistogramDataPoint, latest_ns: int, *, cumulative: bool) -> Point:
    key = series_key(attributes_of(data.attributes))
    if not 0 < len(name) <= 64 or len(key) > LONGEST_KEY:
        raise BadFact(f"name or attributes are longer than 64 and {LONGEST_KEY} characters, or absent")
    if not name.isprintable() or not key.isprintable():
        raise BadFact("name or attributes have characters that cannot be kept")
    check_time("time", data.time_unix_nano, latest_ns)
    value = data.sum if isinstance(data, HistogramDataPoint) else _number(data)
    if not math.isfinite(value) or abs(value) > MOST_VALUE:
        raise BadFact(f"value {value} is not finite, or over {MOST_VALUE:g}", "value")
    if isinstance(data, HistogramDataPoint) and data.count > MOST_COUNT:
        raise BadFact(f"count {data.count} is over {MOST_COUNT}", "value")
    return Point(
        name=name,
        attributes=key,
        at=_time(data.time_unix_nano),
        started_at=_time(min(data.start_time_unix_nano, MAX_INT)),
        cumulative=cumulative,
        value=value,
        count=data.count if isinstance(data, HistogramDataPoint) else None,
        buckets=_buckets(data) if isinstance(data, HistogramDataPoint) else None,
    )


def _number(data: NumberDataPoint) -> float:
    match data.WhichOneof("value"):
        case "as_int":
            return float(data.as_int)
        case "as_double":
            return data.as_double
        case _:
            raise BadFact("value is absent", "value")


def _buckets(data: HistogramDataPoint) -> Buckets:
    bounds, counts = list(data.explicit_bounds), list(data.bucket_counts)
    if len(counts) != len(bounds) + 1:
        raise BadFact(f"{len(bounds)} bounds do not fit {len(counts)} buckets", "value")
    if len(counts) > MOST_BUCKETS or max(counts) > MOST_COUNT:
        raise BadFact(f"over {MOST_BUCKETS} buckets, or over {MOST_COUNT} in one", "value")
    if not all(map(math.isfinite, bounds)) or any(low >= high for low, high in itertools.pairwise(bounds)):
        raise BadFact("bounds must be finite and rise", "value")
    return Buckets(bounds=bounds, counts=counts)


def _time(nanoseconds: int) -> dt.datetime:
    return EPOCH + dt.timedelta(microseconds=nanoseconds // 1000)
