"""Recovery failure rate with its threshold, and tier I/O latency."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from controlplane.store.queries import bucket_quantile
from dashboard.charts.base import LEGEND, TIME_TICKS, add_line, add_marks, add_threshold, by_minute, time_figure
from dashboard.charts.histograms import merge
from dashboard.theme import GRID, TIERS, VERMILLION, Look, tier_look
from dashboard.wording import seconds_text

_DECADES = (0.001, 0.01, 0.1, 1, 10, 100, 1_000, 10_000)  # ms


def failure_rate(recoveries: pd.DataFrame) -> float | None:
    """(failed + late) / all over the whole frame; None when nothing was recovered.

    `recoveries` has minute, tier, outcome (ok, failed, late), count.
    """
    total = float(recoveries["count"].sum())
    bad = float(recoveries.loc[recoveries["outcome"].isin(["failed", "late"]), "count"].sum())
    return bad / total if total > 0 else None


def recovery_failure_rate(
    recoveries: pd.DataFrame, threshold: float | None, marks: pd.DataFrame, step_minutes: int = 1
) -> go.Figure:
    """The share of recoveries that failed or came late, by minute, with the degrade threshold as a line."""
    figure = time_figure(y_title="failed or late", percent=True)
    total = recoveries.groupby("minute")["count"].sum()
    total = total[total > 0]
    bad = recoveries[recoveries["outcome"].isin(["failed", "late"])].groupby("minute")["count"].sum()
    rate = bad.reindex(total.index, fill_value=0) / total
    look = Look(label="recovery failure rate", color=VERMILLION)
    add_line(figure, rate, look, hover="%{y:.1%} of %{customdata:,.0f}", step_minutes=step_minutes)
    figure.data[0].update(customdata=[float(value) for value in by_minute(total, step_minutes).fillna(0.0)])
    if threshold is not None:
        add_threshold(figure, threshold, f"degrades above {threshold:.0%}")
        figure.update_yaxes(range=[0, max(threshold * 1.6, float(rate.max()) * 1.15 if len(rate) else 0.0)])
    return add_marks(figure, marks)


def latency_quantiles(io: pd.DataFrame) -> pd.DataFrame:
    """p50 and p99 in seconds by minute, tier and direction, with the number of operations.

    `io` has minute, tier, direction, buckets ({"bounds", "counts"}): the growth inside the minute.
    """
    rows = []
    for (minute, tier, direction), group in io.groupby(["minute", "tier", "direction"], sort=True):
        bounds, counts = merge(group["buckets"])
        rows.append(
            {
                "minute": minute,
                "tier": tier,
                "direction": direction,
                "p50": bucket_quantile(bounds, counts, 0.5),
                "p99": bucket_quantile(bounds, counts, 0.99),
                "operations": sum(counts),
            }
        )
    return pd.DataFrame(rows, columns=["minute", "tier", "direction", "p50", "p99", "operations"])


def tier_io_latency(io: pd.DataFrame, marks: pd.DataFrame, step_minutes: int = 1) -> go.Figure:
    """p50 (solid) and p99 (dotted) of each tier's reads and writes on a log scale, reads left and writes right."""
    figure = make_subplots(rows=1, cols=2, shared_yaxes=True, horizontal_spacing=0.06)
    table = latency_quantiles(io)
    for column, direction in ((1, "read"), (2, "write")):
        for tier in [name for name in TIERS if name in set(table["tier"])]:
            rows = table[(table["tier"] == tier) & (table["direction"] == direction)].set_index("minute")
            for name, dash in (("p50", "solid"), ("p99", "dot")):
                values = by_minute(rows[name].astype(float) * 1000.0, step_minutes)
                figure.add_trace(
                    go.Scatter(
                        x=list(values.index),
                        y=[None if pd.isna(value) else float(value) for value in values],
                        name=f"{tier_look(tier).label} {name}",
                        legendgroup=f"{tier} {name}",
                        showlegend=direction == "read"
                        or not len(table[(table["tier"] == tier) & (table["direction"] == "read")]),
                        mode="lines+markers",
                        line={"color": tier_look(tier).color, "dash": dash, "width": 2},
                        marker={"size": 4, "symbol": "circle" if name == "p50" else "triangle-up"},
                        hovertemplate="%{y:,.3~g} ms",
                    ),
                    row=1,
                    col=column,
                )
    figure.update_layout(
        height=300,
        margin={"l": 8, "r": 8, "t": 34, "b": 8},
        hovermode="x unified",
        legend=LEGEND,
        uirevision="keep",
    )
    figure.update_xaxes(gridcolor=GRID, nticks=4, **TIME_TICKS)
    figure.update_xaxes(title_text="reads", row=1, col=1)
    figure.update_xaxes(title_text="writes", row=1, col=2)
    ticks = [seconds_text(tick / 1000) for tick in _DECADES]
    figure.update_yaxes(type="log", gridcolor=GRID, tickvals=_DECADES, ticktext=ticks)
    figure.update_yaxes(title_text="duration (log)", row=1, col=1)
    return add_marks(figure, marks)
