"""Fragmentation, what each tier holds, and the mode over time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from dashboard.charts.base import LEGEND, add_line, add_marks, byte_axis, time_figure
from dashboard.theme import (
    BLUE,
    GREEN,
    GREY,
    GRID,
    MODES,
    ORANGE,
    RULE,
    TIERS,
    VALIDATIONS,
    VERMILLION,
    Look,
    nth_look,
    tier_look,
)
from dashboard.wording import bytes_text

MOST_MODE_LINES = 6
_PARTS = (
    ("pinned_bytes", Look(label="pinned", color=ORANGE, symbol="x")),
    ("live_bytes", Look(label="live", color=GREEN)),
    ("free_bytes", Look(label="free", color="rgba(128,132,140,0.35)", symbol="/")),
)


def _pattern(look: Look) -> dict[str, Any]:
    """A bar's pattern over its colour, so that bars differ without colour too."""
    shape = look.symbol if look.symbol in ("x", "/", ".") else ""
    return {"shape": shape, "fillmode": "overlay", "fgcolor": RULE, "fgopacity": 0.6, "size": 7, "solidity": 0.2}


def fragmentation(points: pd.DataFrame, marks: pd.DataFrame, step_minutes: int = 1) -> go.Figure:
    """Free bytes inside partly used slabs over bytes of used slabs, by page class.

    `points` has minute, page_class, ratio.
    """
    figure = time_figure(y_title="fragmentation", percent=True)
    classes = sorted(set(points["page_class"]), key=lambda name: (name == "all", name))
    for position, page_class in enumerate(classes):
        values = points[points["page_class"] == page_class].groupby("minute")["ratio"].mean()
        look = (
            Look(label="all classes", color=GREY, dash="dot") if page_class == "all" else nth_look(position, page_class)
        )
        add_line(figure, values, look, hover="%{y:.1%}", step_minutes=step_minutes)
    return add_marks(figure, marks)


def tier_fill(tiers: Mapping[str, Mapping[str, Any]]) -> go.Figure:
    """One bar a tier, cut into pinned, live and free as shares of its total; the text has the bytes.

    `tiers` is an engine's `stats["tiers"]`: tier -> total_bytes, live_bytes, free_bytes, pinned_bytes.
    """
    names = [name for name in TIERS if name in tiers and float(tiers[name].get("total_bytes") or 0) > 0][::-1]
    figure = go.Figure()
    for key, look in _PARTS:
        sizes = [float(tiers[name].get(key) or 0) for name in names]
        totals = [float(tiers[name]["total_bytes"]) for name in names]
        shares = [size / total for size, total in zip(sizes, totals, strict=True)]
        figure.add_trace(
            go.Bar(
                y=[tier_look(name).label for name in names],
                x=shares,
                name=look.label,
                orientation="h",
                marker={"color": look.color, "pattern": _pattern(look)},
                text=[bytes_text(size) if share > 0.06 else "" for size, share in zip(sizes, shares, strict=True)],
                textposition="inside",
                insidetextanchor="middle",
                customdata=[[bytes_text(size), bytes_text(total)] for size, total in zip(sizes, totals, strict=True)],
                hovertemplate="%{customdata[0]} of %{customdata[1]} (%{x:.1%})<extra>" + look.label + "</extra>",
            )
        )
    figure.update_layout(
        barmode="stack",
        height=80 + 46 * max(1, len(names)),
        margin={"l": 8, "r": 28, "t": 30, "b": 8},
        legend={**LEGEND, "traceorder": "normal"},
    )
    figure.update_xaxes(tickformat=".0%", range=[0, 1], dtick=0.25, gridcolor=GRID)
    return figure


def tier_bytes_over_time(points: pd.DataFrame, marks: pd.DataFrame, step_minutes: int = 1) -> go.Figure:
    """Bytes in use (live and pinned) by tier. `points` has minute, tier, used_bytes."""
    figure = time_figure(y_title="bytes in use")
    largest = 0.0
    for tier in [name for name in TIERS if name in set(points["tier"])]:
        values = points[points["tier"] == tier].groupby("minute")["used_bytes"].sum()
        add_line(figure, values, tier_look(tier), hover="%{customdata}", step_minutes=step_minutes)
        figure.data[-1].update(customdata=[bytes_text(value) for value in figure.data[-1].y])
        largest = max(largest, float(values.max()))
    byte_axis(figure, largest)
    return add_marks(figure, marks)


def mode_over_time(points: pd.DataFrame, marks: pd.DataFrame, step_minutes: int = 1) -> go.Figure:
    """The rung of the degradation ladder each engine was on; of a fleet, how many engines were on each lower rung.

    `points` has minute, engine, mode (0 to 4).
    """
    if points["engine"].nunique() > MOST_MODE_LINES:
        return _modes_of_many(points, marks, step_minutes)
    figure = time_figure(y_title="", height=230)
    for position, engine in enumerate(sorted(set(points["engine"]))):
        values = points[points["engine"] == engine].groupby("minute")["mode"].max()
        look = nth_look(position, engine) if points["engine"].nunique() > 1 else Look(label=engine, color=BLUE)
        add_line(figure, values, look, hover="%{customdata}", step=True, step_minutes=step_minutes)
        names = [MODES[int(level)] if level is not None else "" for level in figure.data[-1].y]
        figure.data[-1].update(customdata=names)
    figure.update_yaxes(
        tickvals=list(range(len(MODES))), ticktext=list(MODES), range=[-0.4, len(MODES) - 0.4], rangemode="normal"
    )
    figure.update_layout(showlegend=True)
    return add_marks(figure, marks)


def _modes_of_many(points: pd.DataFrame, marks: pd.DataFrame, step_minutes: int) -> go.Figure:
    figure = time_figure(y_title="engines not in mode normal", height=230)
    minutes = pd.Index(sorted(set(points["minute"])))
    for level, name in enumerate(MODES[1:], start=1):
        counts = points[points["mode"] == level].groupby("minute")["engine"].nunique()
        if len(counts):
            values = counts.reindex(minutes, fill_value=0)
            add_line(figure, values, nth_look(level, name), hover="%{y:,.0f}", step=True, step_minutes=step_minutes)
    figure.update_yaxes(tickformat=",d")
    figure.update_layout(showlegend=True)
    return add_marks(figure, marks)


def validation_verdicts(rollups: pd.DataFrame) -> go.Figure:
    """How each of the five validations ended over the range. `rollups` has validation, verdict, count."""
    looks = {
        "pass": Look(label="pass", color=GREEN),
        "repairable": Look(label="repairable", color=ORANGE, symbol="/"),
        "fail": Look(label="fail", color=VERMILLION, symbol="x"),
        "not_applicable": Look(label="not applicable", color="rgba(128,132,140,0.45)", symbol="."),
    }
    seen = set(rollups["validation"])
    names = [name for name in (*VALIDATIONS, *sorted(seen - set(VALIDATIONS))) if name in seen][::-1]
    totals = rollups.groupby("validation")["count"].sum()
    figure = go.Figure()
    for verdict, look in looks.items():
        counts = (
            rollups[rollups["verdict"] == verdict].groupby("validation")["count"].sum().reindex(names, fill_value=0)
        )
        figure.add_trace(
            go.Bar(
                y=names,
                x=[float(counts[name]) / float(totals[name]) for name in names],
                name=look.label,
                orientation="h",
                marker={"color": look.color, "pattern": _pattern(look)},
                customdata=[float(counts[name]) for name in names],
                hovertemplate="%{customdata:,.0f} (%{x:.2%})<extra>" + look.label + "</extra>",
            )
        )
    figure.update_layout(
        barmode="stack",
        height=90 + 36 * max(1, len(names)),
        margin={"l": 8, "r": 28, "t": 30, "b": 8},
        legend={**LEGEND, "traceorder": "normal"},
    )
    figure.update_xaxes(tickformat=".0%", range=[0, 1], dtick=0.25, gridcolor=GRID)
    figure.update_yaxes(automargin=True)
    return figure
