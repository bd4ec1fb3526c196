"""A sampled curve as operators read it: usable hit rate against a cap in prefixes or bytes, and which cap to take.

A curve is of pages. What a page takes in bytes, and how many pages a prefix has, is measured where the curve comes
from: in the engine's books, or in a simulation. Both change with the cap: a request adds about as many prefixes, each
with its checkpoint, whatever it missed, so the more hits, the shorter a new prefix and the dearer its pages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.consistency.shards import share_at

LEAST_SAMPLES = 2000
"""Under so many watched references a curve is noise, and none is shown."""
DEFAULT_WITHIN_POINTS = 2.0
GRID_STEPS = 48
_MOST_PAGES = 1e15


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Sums are weighted by age. `bytes_a_page` and `pages_a_prefix` are of what is held now, 0 while nothing is; a page
    without its share of a checkpoint takes `page_bytes`. `answer_pages` were kept without having been looked up."""

    samples: float
    references: float
    requests: float
    prompt_tokens: float
    lcp_tokens: float
    usable_tokens: float
    watched_pages: int
    rate: float
    page_tokens: int
    page_bytes: float
    answer_pages: float
    bytes_a_page: float
    pages_a_prefix: float
    points: tuple[tuple[float, float], ...]

    @property
    def missing_samples(self) -> int:
        """How many more watched references it takes before the curve may be shown."""
        return max(0, LEAST_SAMPLES - int(self.samples))

    @property
    def measured_ratio(self) -> float | None:
        """The usable hit rate that the same requests had."""
        return self.usable_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def usable_of_lcp(self) -> float:
        """What is left of the longest common prefix once all validations passed."""
        return self.usable_tokens / self.lcp_tokens if self.lcp_tokens else 1.0

    def hit_ratio(self, pages: float) -> float:
        """Expected usable tokens over prompt tokens with room for so many pages."""
        if not self.prompt_tokens:
            return 0.0
        in_pages = min(1.0, self.references * self.page_tokens / self.prompt_tokens)
        return share_at(self.points, pages) * in_pages * self.usable_of_lcp

    def prefixes_at(self, pages: float) -> float:
        """How many prefixes so many pages are, were the cap there."""
        if not self.pages_a_prefix:
            return 0.0
        measured = self.lcp_tokens / self.page_tokens / self.references if self.references else 0.0
        return pages / self.pages_a_prefix * self._added(measured) / self._added(share_at(self.points, pages))

    def bytes_at(self, pages: float) -> float:
        """How many bytes so many pages take with their checkpoints, were the cap there."""
        beside = max(0.0, self.bytes_a_page - self.page_bytes) * self.pages_a_prefix  # of a prefix's checkpoints
        return pages * (self.page_bytes or self.bytes_a_page) + self.prefixes_at(pages) * beside

    def _added(self, hits: float) -> float:
        """The pages that requests add when a share of `hits` of what they look up is there; never none."""
        return max(self.references * max(0.0, 1.0 - hits) + self.answer_pages, 1e-3 * self.references, 1e-9)

    @property
    def ceiling_ratio(self) -> float:
        """The hit rate with room for everything that the curve reaches to."""
        return self.hit_ratio(self.points[-1][0]) if self.points else 0.0

    def pages_at(self, *, prefixes: float | None = None, n_bytes: float | None = None) -> float | None:
        """The pages that fit both caps; None without a cap, or while nothing is held to measure it by."""
        fits = []
        if prefixes is not None and self.pages_a_prefix:
            fits.append(_inverse(self.prefixes_at, prefixes))
        if n_bytes is not None and self.bytes_a_page:
            fits.append(_inverse(self.bytes_at, n_bytes))
        return min(fits, default=None)

    def point(self, pages: float) -> dict[str, Any]:
        """One row of the curve."""
        return {
            "pages": round(pages),
            "prefixes": round(self.prefixes_at(pages)) if self.pages_a_prefix else None,
            "bytes": round(self.bytes_at(pages)) if self.bytes_a_page else None,
            "hit_ratio": round(self.hit_ratio(pages), 5),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """A cap, and why: `near_ceiling` is the smallest within `within_points` of the ceiling, `knee` where more begins to
    buy less than it did. The cap recommended is the first of the two; both are shown."""

    near_ceiling: dict[str, Any]
    knee: dict[str, Any]
    ceiling_ratio: float
    within_points: float
    why: str


def curve_of(document: Mapping[str, Any], namespace: str | None = None) -> Curve:
    """One curve of what an engine posts (wire.md, section 3): of all requests, or of a namespace with one of its own.
    Raises KeyError for a namespace that has none."""
    row = document["total"] if namespace is None else document["namespaces"][namespace]
    held = document["held"]
    own = held["total"] if namespace is None else held["namespaces"].get(namespace, held["total"])
    if not own["prefixes"]:
        own = held["total"]
    on_gpu = own if own["gpu_pages"] else held["total"]
    measured = on_gpu["gpu_bytes"] / on_gpu["gpu_pages"] if on_gpu["gpu_pages"] else float(document["page_bytes"])
    return Curve(
        samples=row["samples"],
        references=row["references"],
        requests=row["requests"],
        prompt_tokens=row["prompt_tokens"],
        lcp_tokens=row["lcp_tokens"],
        usable_tokens=row["usable_tokens"],
        watched_pages=row["watched_pages"],
        rate=row["rate"],
        page_tokens=document["page_tokens"],
        page_bytes=float(document["page_bytes"]),
        answer_pages=row["answer_pages"],
        bytes_a_page=measured,
        pages_a_prefix=own["pages"] / own["prefixes"] if own["prefixes"] else 0.0,
        points=tuple((float(pages), float(share)) for pages, share in row["points"]),
    )


def _inverse(rising: Callable[[float], float], wanted: float) -> float:
    """The pages at which a rising function of pages reaches `wanted`, to a thousandth; by bisection."""
    low, high = 1e-3, 1.0
    while rising(high) < wanted and high < _MOST_PAGES:
        high *= 2.0
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if rising(middle) < wanted else (low, middle)
    return high


def grid(curve: Curve, steps: int = GRID_STEPS, reach_pages: float = 0.0) -> list[float]:
    """Capacities in pages, evenly spaced in their logarithm, that show the whole curve and reach to `reach_pages`."""
    if not curve.points:
        return []
    high = max(curve.points[-1][0] * 1.1, reach_pages)
    low = max(1.0, curve.points[0][0] / 2, high / 4096)
    return [low * (high / low) ** (step / (steps - 1)) for step in range(steps)]


def recommend(curve: Curve, within_points: float = DEFAULT_WITHIN_POINTS) -> Recommendation | None:
    """The cap to take, with its evidence; None for a curve with no hit or with too few samples."""
    if not curve.points or curve.missing_samples:
        return None
    ceiling = curve.ceiling_ratio
    least = ceiling - within_points / 100
    near = next(pages for pages, _ in curve.points if curve.hit_ratio(pages) >= least)
    knee = _knee([(pages, curve.hit_ratio(pages)) for pages in grid(curve)])
    why = (
        f"{curve.hit_ratio(near):.1%} at this cap, within {within_points:g} points of the ceiling of {ceiling:.1%}; "
        f"the knee is at {curve.hit_ratio(knee):.1%}"
    )
    return Recommendation(
        near_ceiling=curve.point(near),
        knee=curve.point(knee),
        ceiling_ratio=round(ceiling, 5),
        within_points=within_points,
        why=why,
    )


def _knee(points: Sequence[tuple[float, float]]) -> float:
    """Where the curve lies highest above the line between its ends (Satopaa et al., ICDCSW 2011, without smoothing)."""
    (first, low), (last, high) = points[0], points[-1]
    if high <= low or last <= first:
        return first

    def above(point: tuple[float, float]) -> float:
        return (point[1] - low) / (high - low) - (point[0] - first) / (last - first)

    return max(points, key=above)[0]
