"""Why not a hit: what became of the tokens of prompts, over a range and over time."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from controlplane.insight.whymiss import WhyMiss
from dashboard.charts.base import LEGEND, add_marks, by_minute, time_figure
from dashboard.charts.hits import PATTERNS, faint
from dashboard.theme import BLUE, GREEN, GREY, INDIGO, ORANGE, PURPLE, RULE, SKY, VERMILLION, Look, nth_look
from engine.schedule.losses import LOSS_OF_GAP, Loss

FOUND_NOT_USABLE = frozenset(str(cause) for cause in (*LOSS_OF_GAP.values(), Loss.RESTORE_FAILED))
"""Causes between lcp and usable. All others keep tokens from being found at all."""
OTHERS = "all other causes"
MOST_CAUSES = 7
# Those met most come first and have a colour of their own; two of one colour differ in their pattern.
_OFTEN = (
    Loss.NEW_CONTENT,
    Loss.RESTORE_SLOW,
    Loss.CHECKPOINT_MISSING,
    Loss.EVICTED_CAP,
    Loss.DAMAGED,
    Loss.EVICTED_PRESSURE,
)
_CAUSES = tuple(str(cause) for cause in (*_OFTEN, *(cause for cause in Loss if cause not in _OFTEN)))
_CAUSE_COLORS = (BLUE, ORANGE, PURPLE, VERMILLION, INDIGO, SKY)


def cause_text(cause: str) -> str:
    """A cause as the charts name it."""
    return cause.replace("_", " ")


def cause_look(cause: str) -> tuple[Look, str]:
    """How a cause looks, and its pattern, whatever else is shown beside it. Never green: that is a hit."""
    place = _CAUSES.index(cause) if cause in _CAUSES else len(_CAUSES)
    around, turn = place % len(_CAUSE_COLORS), place // len(_CAUSE_COLORS)
    look = Look(label=cause_text(cause), color=_CAUSE_COLORS[around], dash=nth_look(place, cause).dash)
    return look, PATTERNS[1 + (around + turn) % (len(PATTERNS) - 1)]


def top_causes(tokens_by_cause: pd.Series, most: int = MOST_CAUSES) -> list[str]:
    """The causes that lost most, most first."""
    ordered = tokens_by_cause[tokens_by_cause > 0].sort_values(ascending=False)
    return [str(cause) for cause in ordered.index[:most]]


def causes_of_the_gap(why: WhyMiss) -> go.Figure:
    """Tokens lost by cause over the range as shares of prompt tokens, largest on top: found but not usable in orange
    with stripes, never found in grey."""
    rows = [row for row in why.rows if row.tokens > 0][: MOST_CAUSES + 2]
    figure = go.Figure()
    looks = (
        (True, Look(label="found by the index, not usable", color=ORANGE), "/"),
        (False, Look(label="not found", color=GREY), ""),
    )
    for found, look, pattern in looks:
        mine = [row for row in rows if (row.cause in FOUND_NOT_USABLE) is found]
        if not mine:
            continue
        figure.add_trace(
            go.Bar(
                x=[row.share for row in mine],
                y=[cause_text(row.cause) for row in mine],
                orientation="h",
                name=look.label,
                marker={
                    "color": look.color,
                    "pattern": {"shape": pattern, "fillmode": "overlay", "fgcolor": RULE, "size": 7, "solidity": 0.25},
                },
                text=[f"{row.share:.1%}" for row in mine],
                textposition="outside",
                cliponaxis=False,
                customdata=[[row.tokens, row.requests, _broken(row.meaning), _broken(row.advice)] for row in mine],
                hovertemplate="<b>%{y}</b>: %{customdata[0]:,.0f} tokens in %{customdata[1]:,.0f} requests"
                "<br>%{customdata[2]}<br><i>%{customdata[3]}</i><extra></extra>",
            )
        )
    figure.update_layout(
        height=max(230, 70 + 26 * len(rows)),
        margin={"l": 8, "r": 8, "t": 34, "b": 8},
        bargap=0.35,
        barmode="overlay",
        legend={**LEGEND, "traceorder": "normal"},
    )
    largest = max((row.share for row in rows), default=1.0)
    figure.update_xaxes(title_text="share of prompt tokens", tickformat=".0%", range=[0, largest * 1.18])
    order = [cause_text(row.cause) for row in rows][::-1]
    figure.update_yaxes(automargin=True, title_text="", categoryorder="array", categoryarray=order)
    return figure


def losses_over_time(
    losses: pd.DataFrame,
    requests: pd.DataFrame,
    marks: pd.DataFrame,
    step_minutes: int = 1,
    *,
    found_only: bool = False,
) -> go.Figure:
    """Shares of prompt tokens by cause, stacked, most at the bottom.

    `losses` has minute, cause, tokens; `requests` has minute, prompt_tokens, usable_tokens. `found_only`: the gap
    between lcp and usable alone, as shares of prompt tokens; otherwise usable tokens are at the bottom and all is 100%.
    """
    figure = time_figure(y_title="share of prompt tokens", percent=True)
    asked = requests.groupby("minute")["prompt_tokens"].sum()
    asked = asked[asked > 0]
    if found_only:
        losses = losses[losses["cause"].isin(FOUND_NOT_USABLE)]
    else:
        usable = requests.groupby("minute")["usable_tokens"].sum().reindex(asked.index, fill_value=0)
        _add_area(figure, usable / asked, Look(label="usable (the hit)", color=GREEN), "", step_minutes)
    shown = top_causes(losses.groupby("cause")["tokens"].sum())
    for cause in shown:
        look, pattern = cause_look(cause)
        _add_area(figure, _share(losses, [cause], asked), look, pattern, step_minutes)
    rest = [str(cause) for cause in set(losses.loc[losses["tokens"] > 0, "cause"]) if cause not in shown]
    if rest:
        _add_area(figure, _share(losses, rest, asked), Look(label=OTHERS, color=GREY), ".", step_minutes)
    return add_marks(figure, marks)


def _share(losses: pd.DataFrame, causes: Sequence[str], asked: pd.Series) -> pd.Series:
    lost = losses[losses["cause"].isin(causes)].groupby("minute")["tokens"].sum()
    return lost.reindex(asked.index, fill_value=0) / asked


def _add_area(figure: go.Figure, share: pd.Series, look: Look, pattern: str, step_minutes: int) -> None:
    series = by_minute(share, step_minutes)
    figure.add_trace(
        go.Scatter(
            x=list(series.index),
            y=[None if pd.isna(value) else float(value) for value in series],
            name=look.label,
            mode="lines",
            stackgroup="tokens",
            line={"color": look.color, "width": 1.2, "dash": look.dash},
            fillcolor=faint(look.color),
            fillpattern={
                "shape": pattern,
                "fillmode": "overlay",
                "fgcolor": look.color,
                "fgopacity": 0.45,
                "size": 7,
                "solidity": 0.15,
            },
            hovertemplate="%{y:.1%}",
        )
    )


def funnel(why: WhyMiss) -> go.Figure:
    """Prompt tokens, found by the index (lcp), usable: each a bar under the other, with what was lost between them."""
    steps = (
        ("asked for", why.prompt_tokens, GREY),
        ("found (lcp)", why.lcp_tokens, BLUE),
        ("usable (the hit)", why.usable_tokens, GREEN),
    )
    figure = go.Figure(
        go.Funnel(
            y=[name for name, _, _ in steps],
            x=[tokens for _, tokens, _ in steps],
            marker={"color": [color for _, _, color in steps]},
            connector={"fillcolor": "rgba(128,132,140,0.18)", "line": {"color": RULE, "width": 1}},
            texttemplate="%{value:,.3~s}<br>%{percentInitial:.1%}",
            textposition="auto",
            hovertemplate="%{y}: %{x:,.0f} tokens<extra></extra>",
        )
    )
    figure.update_layout(height=260, margin={"l": 8, "r": 8, "t": 10, "b": 8}, showlegend=False)
    figure.update_yaxes(automargin=True)
    return figure


def not_passed_over_time(slots: pd.DataFrame, marks: pd.DataFrame) -> go.Figure:
    """Validations that failed or needed a repair, by slot and reason. `slots` has minute, verdict, reason, count."""
    figure = time_figure(y_title="validations")
    named = slots.assign(name=slots["verdict"] + ": " + slots["reason"].str.replace("_", " "))
    for position, name in enumerate(top_causes(named.groupby("name")["count"].sum())):
        counts = named[named["name"] == name].groupby("minute")["count"].sum()
        look = nth_look(position, name)
        figure.add_trace(
            go.Bar(
                x=list(counts.index),
                y=[float(value) for value in counts],
                name=name,
                marker={
                    "color": look.color,
                    "pattern": {
                        "shape": PATTERNS[position % len(PATTERNS)],
                        "fillmode": "overlay",
                        "fgcolor": RULE,
                        "size": 6,
                    },
                },
                hovertemplate="%{y:,.0f}",
            )
        )
    figure.update_layout(barmode="stack", bargap=0.1)
    figure.update_yaxes(tickformat=",.3~s")
    return add_marks(figure, marks)


def _broken(text: str, width: int = 72) -> str:
    """A long sentence over several lines, as hover boxes do not wrap."""
    lines = [""]
    for word in text.replace("`", "").split():
        if len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "<br>".join(lines)
