"""What every time chart shares: layout, one point a minute with honest gaps, and marks for what was changed."""

from __future__ import annotations

import datetime as dt

import pandas as pd
import plotly.graph_objects as go

from dashboard.theme import GREY, GRID, MARKS, RULE, Look
from dashboard.wording import bytes_text

MARK_COLUMNS = ("at", "kind", "text")
MOST_MARKED_POINTS = 200
MAX_MARKS = 40  # more become one mark a time slot: a wall of lines hides the curve
# At the top of the whole picture: bound to the plot's edge, it lies over the curves when the window gets wider and it
# needs fewer lines; and bound to the plot's left, six entries stand under each other on a phone.
LEGEND: dict[str, object] = {
    "orientation": "h",
    "yref": "container",
    "yanchor": "top",
    "y": 1.0,
    "xref": "container",
    "xanchor": "left",
    "x": 0,
    "title": {"text": ""},
}
# Times without the date below: no range is longer than a day, and the frame of the page says of which.
TIME_TICKS: dict[str, object] = {
    "type": "date",
    "tickangle": 0,
    "tickformatstops": [
        {"dtickrange": [None, 59_999], "value": "%H:%M:%S"},
        {"dtickrange": [60_000, None], "value": "%H:%M"},
    ],
}


def time_figure(*, y_title: str, height: int = 300, percent: bool = False) -> go.Figure:
    """An empty time chart in UTC with a legend above it."""
    y_axis = {
        "title": {"text": y_title},
        "gridcolor": GRID,
        "zeroline": False,
        "rangemode": "tozero",
        "automargin": True,
        "exponentformat": "SI",  # 1G, not 1B, which reads as a byte
    }
    # In one piece: every update makes plotly look at the whole figure again.
    return go.Figure(
        layout={
            "height": height,
            "margin": {"l": 8, "r": 8, "t": 34, "b": 8},
            "hovermode": "x unified",
            "legend": LEGEND,
            # A chart that is redrawn every few seconds must keep the zoom of the person who is reading it.
            "uirevision": "keep",
            "xaxis": {"gridcolor": GRID, "title": {"text": ""}, "nticks": 6, **TIME_TICKS},
            "yaxis": y_axis | ({"tickformat": ".0%"} if percent else {}),
        }
    )


def by_minute(values: pd.Series, step_minutes: int = 1) -> pd.Series:
    """The series on the full grid of its time slots: a slot without data is a gap, not a line drawn across it."""
    if values.empty:
        return values
    grid = pd.date_range(values.index.min(), values.index.max(), freq=f"{step_minutes}min")
    return values.reindex(grid)


def add_line(
    figure: go.Figure, values: pd.Series, look: Look, *, hover: str, step: bool = False, step_minutes: int = 1
) -> None:
    """One line with its colour and its dash; small markers keep a lone point visible."""
    series = by_minute(values, step_minutes)
    figure.add_trace(
        go.Scatter(
            x=list(series.index),
            y=[None if pd.isna(value) else float(value) for value in series],
            name=look.label,
            mode="lines+markers" if len(series) <= MOST_MARKED_POINTS else "lines",
            line={"color": look.color, "dash": look.dash, "width": 2, "shape": "hv" if step else "linear"},
            marker={"size": 4, "color": look.color},
            hovertemplate=hover,
            connectgaps=False,
        )
    )


def add_threshold(figure: go.Figure, value: float, text: str) -> None:
    """A labelled line across the chart."""
    figure.add_hline(
        y=value,
        line={"color": RULE, "dash": "dash", "width": 1.5},
        annotation_text=text,
        annotation_position="top left",
        annotation_font_size=11,
    )


def byte_axis(figure: go.Figure, largest: float, **where: int) -> None:
    """Ticks of the y axis at round binary sizes: SI prefixes beside GiB in the text would not agree."""
    step = 1.0
    while largest / step > 5:
        step *= 2
    ticks = [step * position for position in range(int(largest // step) + 2)]
    figure.update_yaxes(tickvals=ticks, ticktext=[bytes_text(tick).replace(".0 ", " ") for tick in ticks], **where)


def window(figure: go.Figure, since: dt.datetime, until: dt.datetime) -> go.Figure:
    """Fix the time axis to the chosen range, so that charts beside each other line up."""
    figure.update_xaxes(range=[since, until])
    return figure


def add_marks(figure: go.Figure, marks: pd.DataFrame) -> go.Figure:
    """Changes as thin lines with a symbol on top whose hover text says what was done, by whom and why.

    `marks` has the columns at (aware datetime), kind (a key of theme.MARKS) and text.
    """
    if marks.empty:
        return figure
    shown = _thin_out(marks)
    line = {"color": RULE, "width": 1, "dash": "dot"}
    common = {"type": "line", "xref": "x", "y0": 0, "y1": 1, "yref": "y domain", "line": line}
    # In one step: plotly looks at the whole figure again for every shape that is added.
    figure.update_layout(
        shapes=[*figure.layout.shapes, *({**common, "x0": at, "x1": at} for at in shown["at"])],
        yaxis9={"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True, "showgrid": False},
    )
    for kind, group in shown.groupby("kind", sort=False):
        look = MARKS.get(str(kind), Look(label=str(kind), color=GREY, symbol="circle"))
        figure.add_trace(
            go.Scatter(
                x=list(group["at"]),
                y=[0.97] * len(group),
                yaxis="y9",
                mode="markers",
                name=look.label,
                showlegend=False,  # one line above the charts names the symbols for all of them
                marker={"symbol": look.symbol, "size": 9, "color": look.color, "line": {"width": 1, "color": RULE}},
                text=list(group["text"]),
                hovertemplate="%{text}<extra>" + look.label + "</extra>",
            )
        )
    return figure


def _thin_out(marks: pd.DataFrame) -> pd.DataFrame:
    """Marks of one kind in one minute are one mark, as the curves have a point a minute; where that still leaves more
    than MAX_MARKS, in one wider time slot."""
    ordered = marks.sort_values("at")
    merged = _merge(ordered, ordered["at"].dt.floor("1min"))
    if len(merged) <= MAX_MARKS:
        return merged
    span_seconds = (ordered["at"].max() - ordered["at"].min()).total_seconds()
    slots = max(1, MAX_MARKS // ordered["kind"].nunique())
    slot = ((ordered["at"] - ordered["at"].min()).dt.total_seconds() // (span_seconds / slots + 1e-9)).astype(int)
    return _merge(ordered, slot)


def _merge(ordered: pd.DataFrame, slot: pd.Series) -> pd.DataFrame:
    rows = []
    for (kind, _), group in ordered.groupby(["kind", slot], sort=False):
        texts = list(group["text"])
        more = f"<br>and {len(texts) - 3} more" if len(texts) > 3 else ""
        rows.append({"at": group["at"].iloc[0], "kind": kind, "text": "<br>".join(texts[:3]) + more})
    return pd.DataFrame(rows, columns=list(MARK_COLUMNS))
