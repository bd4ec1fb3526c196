"""The what-if curve with the caps that matter on it, and what was foretold beside what came of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from controlplane.insight.live import CurvePoint, PredictionView, WhatIfView
from dashboard.charts.base import LEGEND
from dashboard.theme import BLUE, GREEN, GREY, GRID, ORANGE, RULE, VERMILLION
from dashboard.wording import bytes_text

AXES = {"bytes": "cap in bytes", "prefixes": "cap in prefixes"}
LONGEST_TRIAL = 20


def hit_curve(found: WhatIfView, axis: str) -> go.Figure:
    """Expected usable hit rate against the cap, `axis` one of AXES, on a log scale; now, proposed and recommended are
    marked where they lie on it, and what was measured under the cap in force beside the first."""
    figure = go.Figure()
    placed = [(place, point.hit_ratio) for point in found.curve if (place := _place(point, axis)) is not None]
    figure.add_trace(
        go.Scatter(
            x=[place for place, _ in placed],
            y=[ratio for _, ratio in placed],
            mode="lines",
            name="expected",
            line={"color": BLUE, "width": 2},
            customdata=[_size(place, axis) for place, _ in placed],
            hovertemplate="%{y:.1%} at %{customdata}<extra></extra>",
        )
    )
    for name, point, color, symbol in _marks(found):
        _add_mark(figure, name, point, axis, color, symbol)
    if found.now is not None and found.measured_ratio is not None and (place := _place(found.now, axis)):
        _add(figure, "measured", place, found.measured_ratio, axis, GREY, "x-thin-open")
    figure.update_layout(
        height=340,
        margin={"l": 8, "r": 8, "t": 34, "b": 8},
        hovermode="closest",
        legend=LEGEND,
        uirevision="keep",
    )
    ticks = _ticks([place for place, _ in placed], axis)
    figure.update_xaxes(
        type="log",
        gridcolor=GRID,
        title_text=AXES[axis],
        tickvals=ticks,
        ticktext=[_size(tick, axis) for tick in ticks],
    )
    figure.update_yaxes(title_text="usable hit rate", tickformat=".0%", gridcolor=GRID, rangemode="tozero")
    return figure


def _marks(found: WhatIfView) -> list[tuple[str, CurvePoint | None, str, str]]:
    advice = found.recommendation
    near = None if advice is None else CurvePoint(**advice.near_ceiling)
    knee = None if advice is None else CurvePoint(**advice.knee)
    return [
        ("now", found.now, VERMILLION, "circle"),
        ("proposed", found.proposed, ORANGE, "diamond"),
        ("recommended", near, GREEN, "star"),
        ("knee", knee, GREY, "triangle-up"),
    ]


def _add_mark(figure: go.Figure, name: str, point: CurvePoint | None, axis: str, color: str, symbol: str) -> None:
    place = None if point is None else _place(point, axis)
    if point is None or place is None:
        return
    figure.add_shape(
        type="line", x0=place, x1=place, y0=0, y1=point.hit_ratio, line={"color": RULE, "width": 1, "dash": "dot"}
    )
    _add(figure, name, place, point.hit_ratio, axis, color, symbol)


def _add(figure: go.Figure, name: str, place: float, ratio: float, axis: str, color: str, symbol: str) -> None:
    figure.add_trace(
        go.Scatter(
            x=[place],
            y=[ratio],
            mode="markers",
            name=name,
            marker={"color": color, "size": 12, "symbol": symbol, "line": {"width": 2, "color": color}},
            customdata=[_size(place, axis)],
            hovertemplate=f"{name}: %{{y:.1%}} at %{{customdata}}<extra></extra>",
        )
    )


def _place(point: CurvePoint, axis: str) -> float | None:
    """Where a point lies on the axis; nothing below 1 fits a log scale."""
    value = point.bytes if axis == "bytes" else point.prefixes
    return float(value) if value is not None and value >= 1 else None


def _size(place: float, axis: str) -> str:
    return bytes_text(place) if axis == "bytes" else f"{place:,.0f}"


def _ticks(places: Sequence[float], axis: str) -> list[float]:
    """About six round values: powers of 2 for bytes, of 10 for prefixes."""
    if not places:
        return []
    base = 2.0 if axis == "bytes" else 10.0
    low, high = math.ceil(math.log(min(places), base)), math.floor(math.log(max(places), base))
    step = max(1, round((high - low) / 6))
    return [base**power for power in range(low, high + 1, step)]


def foretold_and_measured(rows: Sequence[PredictionView]) -> go.Figure:
    """Each trial that has ended: foretold and measured usable hit rate joined by a line, the newest on top."""
    done = [row for row in rows if row.predicted_ratio is not None and row.measured_ratio is not None][:LONGEST_TRIAL]
    names = [f"revision {row.revision}{f', {row.namespace}' if row.namespace else ''}" for row in done]
    figure = go.Figure()
    for row, name in zip(done, names, strict=True):
        ends = [row.predicted_ratio, row.measured_ratio]
        figure.add_trace(
            go.Scatter(x=ends, y=[name, name], mode="lines", line={"color": RULE, "width": 2}, showlegend=False)
        )
    for title, values, color, symbol in (
        ("foretold", [row.predicted_ratio for row in done], BLUE, "circle"),
        ("measured", [row.measured_ratio for row in done], GREEN, "diamond"),
    ):
        figure.add_trace(
            go.Scatter(
                x=values, y=names, mode="markers", name=title, marker={"color": color, "size": 11, "symbol": symbol},
                hovertemplate=f"{title} %{{x:.1%}}<extra></extra>",
            )
        )  # fmt: skip
    figure.update_layout(
        height=110 + 34 * len(done),
        margin={"l": 8, "r": 8, "t": 34, "b": 8},
        legend=LEGEND,
        uirevision="keep",
    )
    figure.update_xaxes(tickformat=".0%", gridcolor=GRID, rangemode="tozero", title_text="usable hit rate")
    figure.update_yaxes(autorange="reversed", gridcolor=GRID, automargin=True, type="category")
    return figure
