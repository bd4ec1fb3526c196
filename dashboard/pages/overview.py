"""Overview: what needs attention first, then whether reuse works, then what the engines do."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pandas as pd
import streamlit as st

from controlplane.clock import utc_now
from controlplane.store import queries
from dashboard import attention, data, session
from dashboard.charts import hits, memory, recovery
from dashboard.charts.base import window
from dashboard.components import follow, notices
from dashboard.components.charting import chart
from dashboard.components.header import ENGINE_HEALTH
from dashboard.components.live import live
from dashboard.theme import MARKS
from dashboard.wording import age_text, bytes_text, count_text, moment_text, percent_text

SYNC = {"in_sync": "✔ applied", "behind": "◔ behind", "refused": "✖ refused"}
RANKS = ("✖", "▲", "●", "○")  # worst first


def page() -> None:
    """Draw the page."""
    st.subheader("Needs attention")
    live(_attention)
    follow.tray()
    live(_numbers)
    notices.line(_mark_names())
    live(_charts)
    st.subheader("Engines")
    live(_engines)


def _attention() -> None:
    person, chosen, now = session.person(), session.filters(), utc_now()
    if person is None:
        return
    engines = [e for e in data.engines(person.role) if chosen.engine in (None, e.view.id)]
    revisions = data.revisions(person.role, chosen.engine)
    items = attention.needs_attention(
        health=data.control_plane(),
        engines=engines,
        alerts=data.alerts(person.role, chosen.engine),
        damaged=data.damaged(person.role, chosen.engine),
        commands=data.commands(person.role, chosen.engine),
        revised_at=revisions[0].at if revisions else None,
        now=now,
    )
    if not engines:
        notices.empty("No engine has registered yet", "Start one: `kvdeck engine`, or `kvdeck up` for all of it.")
    elif not items:
        st.success("Nothing needs you right now.", icon=":material/check_circle:")
    if items:
        with st.container(border=True, key="attention"):
            for position, item in enumerate(items):
                _item(item, position, now)


def _item(item: attention.Item, position: int, now: dt.datetime) -> None:
    pages: Any = session.recall("pages") or {}
    what, since, action, where = st.columns([5, 0.8, 4, 1.6], vertical_alignment="center")
    what.markdown(f"{RANKS[item.rank]} **{item.what}**")
    since.caption("now" if item.since is None else age_text(item.since, now).removesuffix(" ago"))
    action.caption(item.action)
    if item.page in pages and item.page != "overview":
        key = f"attention_link_{position}"
        with where.container(key=key):
            st.page_link(pages[item.page], label=str(pages[item.page].title), query_params=session.link_query())


def _numbers() -> None:
    person, chosen = session.person(), session.filters()
    if person is None:
        return
    seen = data.overview(person.role, chosen.engine, chosen.minutes)
    held = seen.holdings
    columns = st.columns(6)
    columns[0].metric("Usable hit rate", percent_text(seen.usable.ratio), help="usable tokens / prompt tokens")
    columns[1].metric("Found by the index (lcp)", percent_text(seen.lcp.ratio), help="lcp tokens / prompt tokens")
    columns[2].metric("Requests", count_text(seen.requests), help=f"{count_text(seen.prompt_tokens)} prompt tokens")
    failing = seen.recovery_failures
    columns[3].metric(
        "Recovery failures",
        percent_text(failing.ratio),
        help=f"{failing.part:,} failed or late of {failing.whole:,} recoveries",
    )
    columns[4].metric("Prefixes held", count_text(sum(held.prefixes_by_state.values())), help=_states(held))
    columns[5].metric("Bytes held", bytes_text(sum(held.bytes_by_tier.values())), help=_tiers(held))


def _states(held: queries.Holdings) -> str:
    return ", ".join(f"{state} {count:,}" for state, count in sorted(held.prefixes_by_state.items())) or "none"


def _tiers(held: queries.Holdings) -> str:
    return ", ".join(f"{tier} {bytes_text(size)}" for tier, size in held.bytes_by_tier.items())


def _charts() -> None:
    person, chosen = session.person(), session.filters()
    if person is None:
        return
    shown = data.charts(person.role, chosen.engine, chosen.namespace, chosen.minutes)
    since, until, marks = shown.since, shown.as_of, shown.marks
    everywhere = " Over all namespaces: this metric has none." if chosen.namespace else ""
    quiet = None if len(shown.requests) else "No requests in this time range."
    left, right = st.columns(2)
    with left:
        chart(
            "Hit rate by object kind",
            lambda: window(hits.hit_rate_by_kind(shown.queries, shown.hits, marks), since, until),
            key="hits_kind",
            note=f"Tokens of hits each kind took part in, over prompt tokens.{everywhere}",
            missing=None if len(shown.hits) else "No hits in this time range.",
        )
        chart(
            "lcp against usable",
            lambda: window(hits.lcp_against_usable(shown.requests, marks), since, until),
            key="lcp",
            note="What the index found and what could be used. The band between is what was found but not used.",
            missing=quiet,
        )
    with right:
        chart(
            "Hit rate by serving state",
            lambda: window(hits.hit_rate_by_state(shown.requests, marks), since, until),
            key="hits_state",
            note="Usable tokens by the state of the prefix that served them; the top is the usable hit rate.",
            missing=quiet,
        )
        lost = hits.gap_by_reason(shown.requests)
        chart(
            "Why lcp was not all usable",
            lambda: hits.gap_causes(shown.requests),
            key="gap",
            note="Tokens found but not used in this time range, by reason.",
            missing=quiet or (None if len(lost) else "All that was found was used."),
        )
    _health_charts(person.role, shown, since, until)


def _mark_names() -> str:
    """What the symbols on the charts stand for."""
    symbols = {"triangle-down": "▼", "x": "✖", "square": "■", "diamond": "◆", "cross": "✚", "star": "★"}
    marks = (f'<span style="color:{look.color}">{symbols[look.symbol]}</span> {look.label}' for look in MARKS.values())
    return f"Changes marked on the charts, with details on hover: {' · '.join(marks)}"


def _health_charts(role: str, shown: data.Charts, since: dt.datetime, until: dt.datetime) -> None:
    marks = shown.marks
    left, right = st.columns(2)
    with left:
        chart(
            "Recovery failure rate",
            lambda: window(
                recovery.recovery_failure_rate(shown.recoveries, data.degrade_threshold(role), marks), since, until
            ),
            key="recovery",
            note="Failed and late over all recoveries. The line is where the degrade policy steps down.",
            missing=None if shown.recoveries["count"].sum() else "Nothing was recovered from a lower tier.",
        )
        chart(
            "Fragmentation by page class",
            lambda: window(memory.fragmentation(shown.fragmentation, marks), since, until),
            key="fragmentation",
            note="Free bytes inside partly used slabs over bytes of used slabs.",
            missing=None if len(shown.fragmentation) else "No engine has reported its memory.",
        )
    with right:
        chart(
            "Tier I/O latency, p50 and p99",
            lambda: window(recovery.tier_io_latency(shown.io, marks), since, until),
            key="tier_io",
            note="By tier, reads left and writes right, on a log scale.",
            missing=None if len(shown.io) else "No reads or writes between tiers.",
        )
        chart(
            "Mode",
            lambda: window(memory.mode_over_time(shown.mode, marks), since, until),
            key="mode",
            note="The rung of the degradation ladder.",
            missing=None if len(shown.mode) else "No engine has reported its mode.",
        )


def _engines() -> None:
    person = session.person()
    if person is None:
        return
    engines, now = data.engines(person.role), utc_now()
    if not engines:
        notices.empty("No engine", "An engine appears here when its agent has registered.")
        return
    rows = []
    for engine in engines:
        view, look = engine.view, ENGINE_HEALTH[engine.health]
        stats = view.stats
        asked = float(stats.get("prompt_tokens") or 0)
        rows.append(
            {
                "Engine": view.id,
                "Health": f"{look.symbol} {look.label}",
                "Last word": age_text(view.last_seen_at, now),
                "Sync": f"{SYNC.get(view.sync, view.sync)} ({view.observed_revision} of {view.desired_revision})",
                "Mode": str(view.observed.get("mode") or "–"),
                "Model": view.model,
                "Hit rate since start": percent_text(float(stats.get("usable_tokens") or 0) / asked if asked else None),
                "Requests": count_text(stats.get("requests")),
                "Leases": count_text(stats.get("leases")),
                "Verified": bytes_text(stats.get("verified_bytes")),
                "Wrong bytes": count_text(stats.get("wrong_bytes")),
                "Error": str(view.observed.get("error") or ""),
                "Registered": moment_text(view.registered_at),
            }
        )
    st.dataframe(pd.DataFrame(rows), hide_index=True, key="engines_table")
