"""Quantiles from histogram buckets, the way Prometheus estimates them: linear inside a bucket."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def quantile(bounds: Sequence[float], counts: Sequence[float], q: float) -> float | None:
    """The q-quantile (0 to 1) of a histogram with len(bounds) + 1 counts; None without samples.

    A quantile that falls into the last, open bucket is reported as that bucket's lower bound: the true value is at
    least that.
    """
    total = sum(counts)
    if total <= 0:
        return None
    rank, seen = q * total, 0.0
    for position, count in enumerate(counts):
        if count > 0 and seen + count >= rank:
            if position >= len(bounds):
                return float(bounds[-1]) if bounds else None
            lower = float(bounds[position - 1]) if position else 0.0
            return lower + (float(bounds[position]) - lower) * (rank - seen) / count
        seen += count
    return float(bounds[-1]) if bounds else None


def merge(histograms: Iterable[Mapping[str, Any] | None]) -> tuple[list[float], list[float]]:
    """The sum of histograms with equal bounds as (bounds, counts); other bounds than the first's are left out."""
    bounds: list[float] = []
    counts: list[float] = []
    for histogram in histograms:
        if not histogram or not histogram.get("counts"):
            continue
        if not counts:
            bounds, counts = list(histogram["bounds"]), [0.0] * len(histogram["counts"])
        if list(histogram["bounds"]) == bounds:
            counts = [mine + float(theirs) for mine, theirs in zip(counts, histogram["counts"], strict=True)]
    return bounds, counts
