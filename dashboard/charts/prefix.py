"""One prefix's life: its states as bands over time, and the bytes it held below them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboard.charts.base import LEGEND, byte_axis
from dashboard.theme import GREY, GRID, RULE, STATES, TIERS, Look, tier_look
from dashboard.wording import bytes_text, moment_text


def state_bands(versions: pd.DataFrame, now: dt.datetime) -> pd.DataFrame:
    """One row a stretch in one state: life, version, state, start, end, cause, reason.

    A band ends where the next version of the same life starts; the last ends now, or at once when it is EVICTED.
    `versions` has life, version, state_to, at, cause, reason.
    """
    ordered = versions.sort_values(["life", "version"])
    rows = []
    for life, group in ordered.groupby("life", sort=True):
        records: list[dict[str, Any]] = [
            {str(key): value for key, value in row.items()} for row in group.to_dict("records")
        ]
        for record, following in zip(records, [*records[1:], None], strict=True):
            start = record["at"]
            last_end = start if record["state_to"] == "EVICTED" else now
            rows.append(
                {
                    "life": life,
                    "version": record["version"],
                    "state": record["state_to"],
                    "start": start,
                    "end": max(following["at"] if following else last_end, start),
                    "cause": record["cause"],
                    "reason": record["reason"],
                }
            )
    return pd.DataFrame(rows, columns=["life", "version", "state", "start", "end", "cause", "reason"])


def version_timeline(versions: pd.DataFrame, now: dt.datetime) -> go.Figure:
    """State bands with a numbered mark for every version, over the bytes held by tier (steps)."""
    bands = state_bands(versions, now)
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, row_heights=[0.36, 0.64], vertical_spacing=0.06)
    for state in [name for name in STATES if name in set(bands["state"])]:
        look, group = STATES[state], bands[bands["state"] == state]
        figure.add_trace(
            go.Bar(
                base=list(group["start"]),
                x=[
                    (end - start).total_seconds() * 1000
                    for start, end in zip(group["start"], group["end"], strict=True)
                ],
                y=["state"] * len(group),
                orientation="h",
                width=0.62,
                name=f"{look.symbol} {look.label}",
                marker={"color": look.color, "line": {"width": 1, "color": RULE}},
                customdata=group[["version", "cause", "reason"]].astype(str).to_numpy().tolist(),
                hovertemplate="v%{customdata[0]} by %{customdata[1]} (%{customdata[2]})<extra>"
                + look.label
                + "</extra>",
            ),
            row=1,
            col=1,
        )
    _add_version_marks(figure, bands)
    _add_bytes(figure, versions, now)
    figure.update_layout(
        height=340,
        barmode="overlay",
        margin={"l": 8, "r": 8, "t": 40, "b": 8},
        legend=LEGEND,
        uirevision="keep",
    )
    figure.update_xaxes(type="date", gridcolor=GRID)
    figure.update_yaxes(showticklabels=False, row=1, col=1)
    figure.update_yaxes(gridcolor=GRID, rangemode="tozero", row=2, col=1)
    figure.update_yaxes(title_text="bytes held", row=2, col=1)
    held = versions[["gpu_bytes", "host_bytes", "disk_bytes"]].to_numpy()
    byte_axis(figure, float(held.max()) if held.size else 0.0, row=2, col=1)
    return figure


def _add_version_marks(figure: go.Figure, bands: pd.DataFrame) -> None:
    """A mark at every version, so that a state held for a moment is still seen."""
    figure.add_trace(
        go.Scatter(
            x=list(bands["start"]),
            y=["state"] * len(bands),
            mode="markers",
            name="version",
            marker={"symbol": "line-ns", "size": 34, "color": GREY, "line": {"width": 2, "color": GREY}},
            text=[
                f"v{row['version']} → {row['state']}<br>{moment_text(row['start'])} UTC"
                f"<br>cause {row['cause']}, reason {row['reason']}"
                for row in bands.to_dict("records")
            ],
            hovertemplate="%{text}<extra></extra>",
        ),
        row=1,
        col=1,
    )


def _add_bytes(figure: go.Figure, versions: pd.DataFrame, now: dt.datetime) -> None:
    """Bytes held after each version by tier, as steps up to now."""
    ordered = versions.sort_values(["life", "version"])
    for tier in ("gpu", "host", "disk"):
        held = [float(value) for value in ordered[f"{tier}_bytes"]]
        if not any(held):
            continue
        look: Look = tier_look(tier) if tier in TIERS else Look(label=tier, color=GREY)
        figure.add_trace(
            go.Scatter(
                x=[*ordered["at"], now],
                y=[*held, held[-1]],
                name=f"{look.label} bytes",
                mode="lines",
                line={"color": look.color, "dash": look.dash, "width": 2, "shape": "hv"},
                text=[bytes_text(value) for value in [*held, held[-1]]],
                hovertemplate="%{text}<extra>" + look.label + "</extra>",
            ),
            row=2,
            col=1,
        )
