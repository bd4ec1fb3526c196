"""How much a cumulative series grew between two points, restarts and repeats considered."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.ingest.points import Buckets, Point

FRESH = dt.timedelta(minutes=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A series as last heard."""

    at: dt.datetime
    boot_id: str
    value: float
    count: int | None
    buckets: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """What one point adds to its minute. All zero for a gauge."""

    value: float = 0.0
    count: int = 0
    buckets: Buckets | None = None


def is_repeat(point: Point, boot_id: str, last: Heard | None) -> bool:
    """Whether this point, or a later one of its series, was heard before."""
    return last is not None and last.boot_id == boot_id and point.at <= last.at


def growth(point: Point, boot_id: str, last: Heard | None, *, boot_is_known: bool) -> Growth:
    """What a point adds since `last`.

    A counter starts from zero with each boot, so the first value of a new boot is all growth. So is the first value of
    a series that appears while its boot is already reporting. When neither the series nor the boot was heard of, the
    value may have been collected over days before this store existed: it counts only if counting began just now.
    """
    if not point.cumulative:
        return Growth()
    if last is None:
        just_began = point.at - point.started_at <= FRESH
        return _all_of(point) if boot_is_known or just_began else Growth()
    if last.boot_id != boot_id or _went_back(point, last):
        return _all_of(point)
    return Growth(
        value=point.value - last.value,
        count=(point.count or 0) - (last.count or 0),
        buckets=_bucket_growth(point.buckets, last.buckets),
    )


def merged(ours: Mapping[str, Any] | None, more: Buckets | None) -> dict[str, Any] | None:
    """Bucket sums of one minute with more added. Other bounds than before start the minute's buckets again."""
    if more is None:
        return None if ours is None else dict(ours)
    if ours is None or list(ours["bounds"]) != more.bounds:
        return {"bounds": more.bounds, "counts": more.counts}
    return {"bounds": more.bounds, "counts": [a + b for a, b in zip(ours["counts"], more.counts, strict=True)]}


def _all_of(point: Point) -> Growth:
    return Growth(value=point.value, count=point.count or 0, buckets=point.buckets)


def _went_back(point: Point, last: Heard) -> bool:
    """A cumulative series that shrank, or has other buckets, was started again without a new boot id."""
    if point.count is None:
        return point.value < last.value
    same_bounds = last.buckets is not None and point.buckets is not None
    same_bounds = same_bounds and list(last.buckets["bounds"]) == point.buckets.bounds  # type: ignore[index,union-attr]
    return not same_bounds or point.count < (last.count or 0)


def _bucket_growth(now: Buckets | None, before: Mapping[str, Any] | None) -> Buckets | None:
    if now is None or before is None:
        return now
    counts = [new - old for new, old in zip(now.counts, before["counts"], strict=True)]
    return Buckets(bounds=now.bounds, counts=counts)
