"""The list of what needs attention, as rows a person reads in seconds: what, since when, what helps, where."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import streamlit as st

from dashboard import runbook, session
from dashboard.attention import Item
from dashboard.theme import BLUE, GREY, ORANGE, VERMILLION, Look
from dashboard.wording import age_text, plural

SHOWN = 6
RANKS = {
    -1: Look(label="severe", color=VERMILLION, symbol="✖"),
    0: Look(label="severe", color=VERMILLION, symbol="✖"),
    1: Look(label="warning", color=ORANGE, symbol="▲"),
    2: Look(label="notice", color=BLUE, symbol="●"),
    3: Look(label="taken", color=GREY, symbol="○"),
}


def summary(items: Sequence[Item]) -> str:
    """How bad it is in a few words: "2 severe, 1 warning"."""
    counts: dict[str, int] = {}
    for item in items:
        label = RANKS[item.rank].label
        counts[label] = counts.get(label, 0) + 1
    return ", ".join(f"{count:,} {label}" for label, count in counts.items())


def draw(items: Sequence[Item], now: dt.datetime) -> None:
    """The worst few, and the others behind a fold."""
    with st.container(border=True, key="attention"):
        for position, item in enumerate(items[:SHOWN]):
            _row(item, position, now)
        if len(items) > SHOWN:
            with st.expander(f"{plural(len(items) - SHOWN, 'more thing')}: {summary(items[SHOWN:])}"):
                for position, item in enumerate(items[SHOWN:], start=SHOWN):
                    _row(item, position, now)


def _row(item: Item, position: int, now: dt.datetime) -> None:
    look = RANKS[item.rank]
    what, action, where = st.columns([4.6, 4.2, 3.2], vertical_alignment="center")
    place = f" on {item.engines[0]}" if len(item.engines) == 1 else ""
    since = "" if item.since is None else f" · since {age_text(item.since, now).removesuffix(' ago')}"
    alert = " · alert" if item.alert else ""
    what.markdown(
        f"**{look.symbol} {_sentence(item.what)}**  \n"
        f":small[{look.label} · {item.rule.replace('_', ' ')}{place}{since}{alert}]"
    )
    action.caption(item.action)
    with where.container(horizontal=True, horizontal_alignment="right", vertical_alignment="center", gap="small"):
        _go(item, position)
        _runbook(item)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] if text else text


def _go(item: Item, position: int) -> None:
    pages: Any = session.recall("pages") or {}
    if item.page not in pages or item.page == "overview":
        return
    query = session.link_query()
    if len(item.engines) == 1:
        query["engine"] = item.engines[0]
    with st.container(key=f"attention_link_{position}", width="content"):
        st.page_link(pages[item.page], label=str(pages[item.page].title), query_params=query)


def _runbook(item: Item) -> None:
    if item.runbook.startswith(("http://", "https://")):
        st.link_button("Runbook", item.runbook, type="tertiary")
    elif item.runbook:
        with st.popover("Runbook", type="tertiary", width="content"):
            st.markdown(runbook.section(item.runbook) or item.action)
            st.caption(f"`{item.runbook}`")
