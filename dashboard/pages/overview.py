"""Overview: what needs attention first, then whether reuse works, then what the engines do."""

from __future__ import annotations

from collections.abc import Hashable

import pandas as pd
import streamlit as st

from controlplane.clock import utc_now
from controlplane.store import queries
from dashboard import attention, data, session
from dashboard.charts import hits, losses, memory, recovery
from dashboard.charts.base import window
from dashboard.components import fleet_table, follow, items, notices
from dashboard.components.charting import chart
from dashboard.components.live import live
from dashboard.readings import Charts
from dashboard.theme import MARKS
from dashboard.wording import bytes_text, count_text, everywhere, percent_text


def page() -> None:
    """Draw the page."""
    first = st.container()
    live(_numbers)  # the quickest read is drawn first, though it stands second: the doctor looks at every engine
    with first:
        live(_attention)
        follow.tray()
    live(_charts)
    st.subheader("Engines")
    live(_engines)


def _attention() -> None:
    person, chosen = session.person(), session.filters()
    if person is None:
        return
    found = attention.needs_attention(
        health=data.control_plane(),
        findings=data.findings(person.role, chosen),
        alerts=data.alerts(person.role, data.scope(person.role, chosen)),
    )
    st.subheader(f"Needs attention: {items.summary(found)}" if found else "Needs attention")
    if not data.engines(person.role):
        notices.empty("No engine has registered yet", "Start one: `kvdeck engine`, or `kvdeck up` for all of it.")
    elif not found:
        st.success("Nothing needs you right now: the doctor finds nothing, no alert fires.", icon=":material/check:")
    if found:
        items.draw(found, utc_now())


def _numbers() -> None:
    person, chosen = session.person(), session.filters()
    if person is None:
        return
    scope = data.scope(person.role, chosen)
    seen = data.overview(person.role, scope, chosen.namespace, chosen.minutes)
    held, failing, threshold = seen.holdings, seen.recovery_failures, data.degrade_threshold(person.role)
    limit = "" if threshold is None else f" The degrade policy steps down above {threshold:.0%}."
    with st.container(horizontal=True, key="kv_numbers"):
        _metric("Usable hit rate", percent_text(seen.usable.ratio), "usable tokens / prompt tokens")
        _metric("Found (lcp)", percent_text(seen.lcp.ratio), "tokens the index found / prompt tokens")
        _metric("Requests", count_text(seen.requests), f"{count_text(seen.prompt_tokens)} prompt tokens")
        _metric(
            f"Recovery failures{everywhere(chosen.namespace)}",
            percent_text(failing.ratio),
            f"{failing.part:,} failed or late of {failing.whole:,} recoveries.{limit}",
        )
        _metric("Prefixes held", count_text(sum(held.prefixes_by_state.values())), _states(held))
        _metric("Bytes held", bytes_text(sum(held.bytes_by_tier.values())), _tiers(held))


def _metric(label: str, value: str, explained: str) -> None:
    st.metric(label, value, help=explained, width="content")


def _states(held: queries.Holdings) -> str:
    return ", ".join(f"{state} {count:,}" for state, count in sorted(held.prefixes_by_state.items())) or "none"


def _tiers(held: queries.Holdings) -> str:
    return ", ".join(f"{tier} {bytes_text(size)}" for tier, size in held.bytes_by_tier.items())


def _charts() -> None:
    person, chosen = session.person(), session.filters()
    if person is None:
        return
    scope = data.scope(person.role, chosen)
    shown = data.charts(person.role, scope, chosen.namespace, chosen.minutes)
    notices.line(_mark_names())
    of = (person.role, shown.of)
    _reuse_charts(shown, chosen, of)
    why = data.why_miss(person.role, scope, chosen.namespace, chosen.minutes)
    left, right = st.columns(2)
    with left:
        chart(
            "lcp against usable",
            lambda: window(
                hits.lcp_against_usable(shown.requests, shown.marks, shown.step_minutes), *shown.shown_range
            ),
            key="lcp",
            of=of,
            note="What the index found and what could be used. The band between is what was found but not used.",
            missing=_quiet(shown),
        )
    with right:
        lost = [row for row in why.rows if row.tokens]
        chart(
            "Why tokens were no hit",
            lambda: losses.causes_of_the_gap(why),
            key="gap",
            of=(person.role, tuple((row.cause, row.tokens) for row in why.rows)),
            note="Striped: found by the index and not usable, the gap on the left. Hover for what helps.",
            missing=_quiet(shown) or (None if lost else "Everything that was asked for was served."),
        )
    _health_charts(shown, of, data.degrade_threshold(person.role), everywhere(chosen.namespace))


def _quiet(shown: Charts) -> str | None:
    return None if len(shown.requests) else "No requests in this time range."


def _mark_names() -> str:
    """What the symbols on the charts stand for."""
    symbols = {"triangle-down": "▼", "x": "✖", "square": "■", "diamond": "◆", "cross": "✚", "star": "★"}
    marks = (f'<span style="color:{look.color}">{symbols[look.symbol]}</span> {look.label}' for look in MARKS.values())
    return f"Changes marked on the charts, with details on hover: {' · '.join(marks)}"


def _reuse_charts(shown: Charts, chosen: session.Filters, of: Hashable) -> None:
    step, marks = shown.step_minutes, shown.marks
    left, right = st.columns(2)
    with left:
        chart(
            f"Hit rate by object kind{everywhere(chosen.namespace)}",
            lambda: window(hits.hit_rate_by_kind(shown.queries, shown.hits, marks, step), *shown.shown_range),
            key="hits_kind",
            of=of,
            note="Tokens of hits each kind took part in, over prompt tokens.",
            missing=None if len(shown.hits) else "No hits in this time range.",
        )
    with right:
        chart(
            "Hit rate by serving state",
            lambda: window(hits.hit_rate_by_state(shown.requests, marks, step), *shown.shown_range),
            key="hits_state",
            of=of,
            note="Usable tokens by the state of the prefix that served them; the top is the usable hit rate.",
            missing=_quiet(shown),
        )


def _health_charts(shown: Charts, of: Hashable, threshold: float | None, where: str) -> None:
    step, marks = shown.step_minutes, shown.marks
    sampled = f" Read from one minute in {shown.io_every}." if shown.io_every > 1 else ""
    left, right = st.columns(2)
    with left:
        chart(
            f"Recovery failure rate{where}",
            lambda: window(
                recovery.recovery_failure_rate(shown.recoveries, threshold, marks, step),
                *shown.shown_range,
            ),
            key="recovery",
            of=(of, threshold),
            note="Failed and late over all recoveries. The line is where the degrade policy steps down.",
            missing=None if shown.recoveries["count"].sum() else "Nothing was recovered from a lower tier.",
        )
        chart(
            "Fragmentation by page class",
            lambda: window(memory.fragmentation(shown.fragmentation, marks, step), *shown.shown_range),
            key="fragmentation",
            of=of,
            note="Free bytes inside partly used slabs over bytes of used slabs.",
            missing=None if len(shown.fragmentation) else "No engine has reported its memory.",
        )
    with right:
        chart(
            f"Tier I/O latency, p50 and p99{where}",
            lambda: window(recovery.tier_io_latency(shown.io, marks, step), *shown.shown_range),
            key="tier_io",
            of=of,
            note=f"By tier, reads left and writes right, on a log scale.{sampled}",
            missing=None if len(shown.io) else "No reads or writes between tiers.",
        )
        chart(
            "Mode",
            lambda: window(memory.mode_over_time(shown.mode, marks, step), *shown.shown_range),
            key="mode",
            of=of,
            note="The rung of the degradation ladder.",
            missing=None if len(shown.mode) else "No engine has reported its mode.",
        )


def _engines() -> None:
    person = session.person()
    if person is None:
        return
    engines = data.engines_in(person.role, session.filters())
    if not engines:
        notices.empty("No engine", "An engine appears here when its agent has registered.")
        return
    frame: pd.DataFrame = fleet_table.rows(engines, utc_now())
    st.dataframe(frame, hide_index=True, key="engines_table", column_config=fleet_table.COLUMNS)
