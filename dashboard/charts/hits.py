"""Hit rate by object kind and serving state, and what stands between lcp and usable."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from dashboard.charts.base import add_line, add_marks, by_minute, time_figure
from dashboard.theme import BLUE, GREEN, KINDS, STATES, Look, kind_look

REASON_WORDS = {
    "none": "nothing was missing",
    "absent": "the object is not there",
    "window_stale": "the window is stale",
    "window_absent": "no window at the boundary",
    "tail_absent": "no tail at the boundary",
    "no_checkpoint": "no checkpoint at a deep enough boundary",
    "replay_costs_more": "no checkpoint, and a replay would save nothing",
    "weights_changed": "the model's weights have changed",
    "restore_late": "the restore missed its deadline",
    "restore_failed": "the restore failed",
    "checksum_mismatch": "checksum mismatch",
    "indexer_behind": "indexer older than the KV",
    "mode": "the mode skips this tier",
    "quarantined": "the prefix is quarantined",
}
PATTERNS = ("", "/", "\\", ".", "x", "-", "+")


def reason_text(reason: str) -> str:
    """A reason code in words where we have some; the code itself otherwise."""
    return REASON_WORDS.get(reason, reason.replace("_", " "))


def hit_rate_by_kind(
    queries: pd.DataFrame, hits: pd.DataFrame, marks: pd.DataFrame, step_minutes: int = 1
) -> go.Figure:
    """Tokens served by each object kind over tokens asked for, by minute.

    `queries` has minute, tokens; `hits` has minute, kind, tokens (both counters' growth inside the minute).
    """
    figure = time_figure(y_title="share of prompt tokens", percent=True)
    asked = queries.groupby("minute")["tokens"].sum()
    asked = asked[asked > 0]
    for kind in [name for name in KINDS if name in set(hits["kind"])]:
        served = hits[hits["kind"] == kind].groupby("minute")["tokens"].sum().reindex(asked.index, fill_value=0.0)
        add_line(figure, served / asked, kind_look(kind), hover="%{y:.1%}", step_minutes=step_minutes)
    return add_marks(figure, marks)


def hit_rate_by_state(requests: pd.DataFrame, marks: pd.DataFrame, step_minutes: int = 1) -> go.Figure:
    """Usable tokens over prompt tokens, stacked by the state of the prefix that served them.

    `requests` has minute, state, prompt_tokens, usable_tokens. The top of the stack is the usable hit rate.
    """
    figure = time_figure(y_title="share of prompt tokens", percent=True)
    asked = requests.groupby("minute")["prompt_tokens"].sum()
    asked = asked[asked > 0]
    served_by = requests[requests["usable_tokens"] > 0]
    for position, state in enumerate(name for name in STATES if name in set(served_by["state"])):
        served = served_by[served_by["state"] == state].groupby("minute")["usable_tokens"].sum()
        share = by_minute(served.reindex(asked.index, fill_value=0) / asked, step_minutes)
        look = STATES[state]
        figure.add_trace(
            go.Scatter(
                x=list(share.index),
                y=[None if pd.isna(value) else float(value) for value in share],
                name=f"{look.symbol} {look.label}",
                mode="lines",
                stackgroup="state",
                line={"color": look.color, "width": 1.5, "dash": look.dash},
                fillcolor=faint(look.color),
                fillpattern={
                    "shape": PATTERNS[position % len(PATTERNS)],
                    "fillmode": "overlay",
                    "fgcolor": look.color,
                    "fgopacity": 0.45,
                    "size": 7,
                    "solidity": 0.15,
                },
                hovertemplate="%{y:.1%}",
            )
        )
    return add_marks(figure, marks)


def lcp_against_usable(requests: pd.DataFrame, marks: pd.DataFrame, step_minutes: int = 1) -> go.Figure:
    """What the index found (lcp) and what could be used, as shares of prompt tokens; the band between is the gap."""
    figure = time_figure(y_title="share of prompt tokens", percent=True)
    sums = requests.groupby("minute")[["prompt_tokens", "lcp_tokens", "usable_tokens"]].sum()
    sums = sums[sums["prompt_tokens"] > 0]
    usable, lcp = sums["usable_tokens"] / sums["prompt_tokens"], sums["lcp_tokens"] / sums["prompt_tokens"]
    add_line(figure, usable, Look(label="usable (the hit)", color=GREEN), hover="%{y:.1%}", step_minutes=step_minutes)
    add_line(
        figure,
        lcp,
        Look(label="lcp (found by the index)", color=BLUE, dash="dash"),
        hover="%{y:.1%}",
        step_minutes=step_minutes,
    )
    if len(figure.data) == 2:
        figure.data[1].update(fill="tonexty", fillcolor="rgba(230,159,0,0.22)")
    return add_marks(figure, marks)


def faint(color: str) -> str:
    """A colour as a light filling of itself."""
    red, green, blue = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.28)"
