"""The fleet in one picture: a cell an engine, by group, coloured by one thing at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import plotly.graph_objects as go

from dashboard.charts.base import LEGEND
from dashboard.readings import EngineNow
from dashboard.theme import ENGINE_HEALTH, MODES, RULE, SYNC, Look, nth_look
from dashboard.wording import count_text, percent_text

BY_HEALTH, BY_SYNC, BY_MODE = "health", "sync", "mode"
CELLS_A_ROW = 10


def look_of(engine: EngineNow, by: str) -> Look:
    """How an engine looks when cells are coloured by one of the three."""
    if by == BY_SYNC:
        return SYNC[engine.view.sync]
    if by == BY_MODE:
        mode = str(engine.view.observed.get("mode") or MODES[0])
        place = MODES.index(mode) if mode in MODES else len(MODES)
        look = nth_look((2, 0, 1, 3, 4, 5)[place], mode)
        return Look(label=mode, color=look.color, symbol="●○◐◑✖?"[place])
    return ENGINE_HEALTH[engine.health]


def fleet_map(engines: Sequence[EngineNow], by: str = BY_HEALTH) -> go.Figure:
    """Engines as cells, a block a group, each with the symbol of its state; the worst states are named first."""
    figure = go.Figure()
    places, labels, rows = _places(engines)
    looks: dict[str, Look] = {}
    for engine in engines:
        look = look_of(engine, by)
        looks.setdefault(look.label, look)
    for label, look in looks.items():
        mine = [engine for engine in engines if look_of(engine, by).label == label]
        figure.add_trace(
            go.Scatter(
                x=[places[engine.view.id][0] for engine in mine],
                y=[places[engine.view.id][1] for engine in mine],
                mode="markers+text",
                name=f"{look.symbol} {label}: {len(mine):,}",
                marker={"symbol": "square", "size": 25, "color": look.color, "line": {"width": 1, "color": RULE}},
                text=[look.symbol] * len(mine),
                textfont={"color": "white", "size": 13},
                customdata=[_about(engine) for engine in mine],
                hovertemplate="<b>%{customdata[0]}</b> · %{customdata[1]}<br>%{customdata[2]} · %{customdata[3]}"
                "<br>mode %{customdata[4]} · hit rate %{customdata[5]}"
                "<br>%{customdata[6]} requests lately<extra></extra>",
            )
        )
    figure.update_layout(
        height=70 + 34 * rows,
        margin={"l": 8, "r": 8, "t": 30, "b": 8},
        legend=LEGEND,
        uirevision="keep",
    )
    figure.update_xaxes(visible=False, range=[-0.7, CELLS_A_ROW - 0.3], fixedrange=True)
    figure.update_yaxes(
        range=[-rows + 0.4, 0.6],
        tickvals=[-row for row in labels],
        ticktext=list(labels.values()),
        showgrid=False,
        zeroline=False,
        fixedrange=True,
        automargin=True,
    )
    return figure


def _places(engines: Sequence[EngineNow]) -> tuple[dict[str, tuple[int, int]], dict[int, str], int]:
    """Engine -> (column, minus row); row -> the group that starts there; how many rows."""
    places: dict[str, tuple[int, int]] = {}
    labels: dict[int, str] = {}
    row = 0
    for group in sorted({engine.view.group for engine in engines}):
        mine = [engine for engine in engines if engine.view.group == group]
        labels[row] = group or "no group"
        for number, engine in enumerate(sorted(mine, key=lambda one: one.view.id)):
            places[engine.view.id] = (number % CELLS_A_ROW, -(row + number // CELLS_A_ROW))
        row += math.ceil(len(mine) / CELLS_A_ROW)
    return places, labels, max(1, row)


def _about(engine: EngineNow) -> list[str]:
    view = engine.view
    return [
        view.id,
        view.group or "no group",
        ENGINE_HEALTH[engine.health].label,
        f"{SYNC[view.sync].label} ({view.observed_revision} of {view.desired_revision})",
        str(view.observed.get("mode") or "–"),
        percent_text(engine.hit_ratio),
        count_text(engine.requests_lately),
    ]


def hit_rates(engines: Sequence[EngineNow]) -> go.Figure:
    """The hit rate of every engine that has one, lowest to the left, as dots: an outlier stands apart."""
    rated = sorted((e for e in engines if e.hit_ratio is not None), key=lambda e: (e.hit_ratio or 0.0, e.view.id))
    figure = go.Figure(
        go.Scatter(
            x=list(range(1, len(rated) + 1)),
            y=[engine.hit_ratio for engine in rated],
            mode="markers",
            marker={"size": 9, "color": ENGINE_HEALTH["live"].color, "line": {"width": 1, "color": RULE}},
            customdata=[_about(engine) for engine in rated],
            hovertemplate="<b>%{customdata[0]}</b> · %{customdata[1]}<br>hit rate %{y:.1%}"
            "<br>%{customdata[6]} requests<extra></extra>",
        )
    )
    return _share_axis(figure, "engines, lowest first")


def tier_fill_of(engines: Sequence[EngineNow], share: Callable[[EngineNow, str], float | None]) -> go.Figure:
    """How full each tier of each engine is, as dots in a strip a tier; `share` gives live over total bytes."""
    figure = go.Figure()
    for place, (tier, symbol) in enumerate((("gpu", "circle"), ("host", "square"), ("disk", "diamond"))):
        filled = [(engine, part) for engine in engines if (part := share(engine, tier)) is not None]
        if not filled:
            continue
        figure.add_trace(
            go.Scatter(
                x=[place + _spread(number, len(filled)) for number in range(len(filled))],
                y=[part for _, part in filled],
                mode="markers",
                name=tier,
                marker={"size": 8, "symbol": symbol, "color": nth_look(place, tier).color,
                        "line": {"width": 1, "color": RULE}},
                customdata=[engine.view.id for engine, _ in filled],
                hovertemplate="<b>%{customdata}</b> %{y:.1%}<extra>" + tier + "</extra>",
            )
        )  # fmt: skip
    figure = _share_axis(figure, "")
    figure.update_xaxes(showticklabels=True, tickvals=[0, 1, 2], ticktext=["GPU", "host", "disk"], range=[-0.5, 2.5])
    return figure


def _spread(number: int, count: int) -> float:
    """Beside each other, so that a hundred dots are not one."""
    return 0.0 if count < 2 else -0.35 + 0.7 * number / (count - 1)


def _share_axis(figure: go.Figure, x_title: str) -> go.Figure:
    figure.update_layout(height=280, margin={"l": 8, "r": 8, "t": 20, "b": 8}, showlegend=False, uirevision="keep")
    figure.update_xaxes(title_text=x_title, showgrid=False, zeroline=False, showticklabels=False)
    figure.update_yaxes(tickformat=".0%", range=[0, 1.04], gridcolor="rgba(128,132,140,0.22)", zeroline=False)
    return figure
