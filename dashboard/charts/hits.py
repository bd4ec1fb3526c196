"""Hit rate by object kind and serving state, and what stands between lcp and usable."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from dashboard.charts.base import add_line, add_marks, by_minute, time_figure
from dashboard.theme import BLUE, GREEN, GREY, KINDS, STATES, Look, kind_look, nth_look

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
OTHER_REASONS = "all other reasons"
_PATTERNS = ("", "/", "\\", ".", "x", "-", "+")


def reason_text(reason: str) -> str:
    """A reason code in words where we have some; the code itself otherwise."""
    return REASON_WORDS.get(reason, reason.replace("_", " "))


def hit_rate_by_kind(queries: pd.DataFrame, hits: pd.DataFrame, marks: pd.DataFrame) -> go.Figure:
    """Tokens served by each object kind over tokens asked for, by minute.

    `queries` has minute, tokens; `hits` has minute, kind, tokens (both counters' growth inside the minute).
    """
    figure = time_figure(y_title="share of prompt tokens", percent=True)
    asked = queries.groupby("minute")["tokens"].sum()
    asked = asked[asked > 0]
    for kind in [name for name in KINDS if name in set(hits["kind"])]:
        served = hits[hits["kind"] == kind].groupby("minute")["tokens"].sum().reindex(asked.index, fill_value=0.0)
        add_line(figure, served / asked, kind_look(kind), hover="%{y:.1%}")
    return add_marks(figure, marks)


def hit_rate_by_state(requests: pd.DataFrame, marks: pd.DataFrame) -> go.Figure:
    """Usable tokens over prompt tokens, stacked by the state of the prefix that served them.

    `requests` has minute, state, prompt_tokens, usable_tokens. The top of the stack is the usable hit rate.
    """
    figure = time_figure(y_title="share of prompt tokens", percent=True)
    asked = requests.groupby("minute")["prompt_tokens"].sum()
    asked = asked[asked > 0]
    served_by = requests[requests["usable_tokens"] > 0]
    for position, state in enumerate(name for name in STATES if name in set(served_by["state"])):
        served = served_by[served_by["state"] == state].groupby("minute")["usable_tokens"].sum()
        share = by_minute(served.reindex(asked.index, fill_value=0) / asked)
        look = STATES[state]
        figure.add_trace(
            go.Scatter(
                x=list(share.index),
                y=[None if pd.isna(value) else float(value) for value in share],
                name=f"{look.symbol} {look.label}",
                mode="lines",
                stackgroup="state",
                line={"color": look.color, "width": 1.5, "dash": look.dash},
                fillcolor=_faint(look.color),
                fillpattern={
                    "shape": _PATTERNS[position % len(_PATTERNS)],
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


def lcp_against_usable(requests: pd.DataFrame, marks: pd.DataFrame) -> go.Figure:
    """What the index found (lcp) and what could be used, as shares of prompt tokens; the band between is the gap."""
    figure = time_figure(y_title="share of prompt tokens", percent=True)
    sums = requests.groupby("minute")[["prompt_tokens", "lcp_tokens", "usable_tokens"]].sum()
    sums = sums[sums["prompt_tokens"] > 0]
    usable, lcp = sums["usable_tokens"] / sums["prompt_tokens"], sums["lcp_tokens"] / sums["prompt_tokens"]
    add_line(figure, usable, Look(label="usable (the hit)", color=GREEN), hover="%{y:.1%}")
    add_line(figure, lcp, Look(label="lcp (found by the index)", color=BLUE, dash="dash"), hover="%{y:.1%}")
    if len(figure.data) == 2:
        figure.data[1].update(fill="tonexty", fillcolor="rgba(230,159,0,0.22)")
    return add_marks(figure, marks)


def _faint(color: str) -> str:
    """A colour as a light filling of itself."""
    red, green, blue = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.28)"


def gap_by_reason(requests: pd.DataFrame) -> pd.DataFrame:
    """Tokens found but not used, by reason, largest first: columns reason, tokens, requests."""
    gaps = requests.assign(tokens=requests["lcp_tokens"] - requests["usable_tokens"])
    gaps = gaps[gaps["tokens"] > 0].groupby("reason", as_index=False)[["tokens", "requests"]].sum()
    return gaps.sort_values("tokens", ascending=False).reset_index(drop=True)


def gap_causes(requests: pd.DataFrame, most: int = 8) -> go.Figure:
    """Why lcp was not all usable: tokens lost by reason over the range, largest on top."""
    gaps = gap_by_reason(requests)
    if len(gaps) > most:
        rest = gaps.iloc[most - 1 :][["tokens", "requests"]].sum()
        gaps = pd.concat(
            [gaps.iloc[: most - 1], pd.DataFrame([{"reason": OTHER_REASONS, **rest.to_dict()}])],
            ignore_index=True,
        )
    total = float(gaps["tokens"].sum())
    figure = go.Figure()
    # Bars are drawn from the bottom up, so the largest comes last.
    for position, row in reversed(list(enumerate(gaps.to_dict("records")))):
        label, tokens = reason_text(str(row["reason"])), float(row["tokens"])
        color = GREY if row["reason"] == OTHER_REASONS else nth_look(position, label).color
        detail = f"in {row['requests']:,.0f} requests<br>code: {row['reason']}"
        figure.add_trace(
            go.Bar(
                x=[tokens],
                y=[label],
                orientation="h",
                marker={"color": color},
                text=[f"{tokens:,.0f} tokens ({tokens / total:.0%})"],
                textposition="outside",
                cliponaxis=False,
                hovertemplate=f"{label}<br>%{{x:,.0f}} tokens {detail}<extra></extra>",
                showlegend=False,
            )
        )
    figure.update_layout(height=max(150, 60 + 34 * len(gaps)), margin={"l": 8, "r": 8, "t": 10, "b": 8}, bargap=0.35)
    figure.update_xaxes(title_text="tokens found but not used", tickformat=",.3~s", automargin=True)
    # Text stands outside the bars, where it is readable on every colour: leave it room.
    figure.update_xaxes(range=[0, float(gaps["tokens"].max()) * 1.85 if len(gaps) else 1])
    figure.update_yaxes(automargin=True, title_text="")
    return figure
