"""Adding histograms up, so that a quantile is taken of all samples and never averaged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def merge(histograms: Iterable[Mapping[str, Any] | None]) -> tuple[list[float], list[int]]:
    """The sum of histograms with equal bounds as (bounds, counts); other bounds than the first's are left out."""
    bounds: list[float] = []
    counts: list[int] = []
    for histogram in histograms:
        if not histogram or not histogram.get("counts"):
            continue
        if not counts:
            bounds, counts = list(histogram["bounds"]), [0] * len(histogram["counts"])
        if list(histogram["bounds"]) == bounds:
            counts = [mine + int(theirs) for mine, theirs in zip(counts, histogram["counts"], strict=True)]
    return bounds, counts
