"""Memory: what each tier holds, slab classes and their fragmentation, queues and leases."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from dashboard import data, session
from dashboard.charts import memory
from dashboard.charts.base import window
from dashboard.components import actions, follow, notices
from dashboard.components.charting import chart
from dashboard.components.live import live
from dashboard.wording import bytes_text, count_text, percent_text, seconds_text


def page() -> None:
    """Draw the page."""
    st.subheader("Memory")
    _engine_actions()
    follow.tray()
    live(_over_time)
    live(_tiers)


def _engine_actions() -> None:
    engine = session.filters().engine
    if engine:
        actions.buttons(actions.Target(engine=engine), ("compact", "scrub"), place="memory")


def _tiers() -> None:
    person, chosen = session.person(), session.filters()
    if person is None:
        return
    engines = data.engines_in(person.role, chosen)
    if not engines:
        notices.empty("No engine", "An engine's memory appears here when its agent has registered.")
    for engine in engines:
        stats = engine.view.stats
        with st.container(border=True):
            st.markdown(f"**{engine.view.id}**")
            if engine.health in ("stale", "unreachable"):
                st.caption(f"▲ {engine.health}: these are its last known numbers.")
            _one_engine(engine.view.id, stats)


def _one_engine(name: str, stats: dict[str, Any]) -> None:
    left, right = st.columns([3, 2])
    with left:
        tiers = stats.get("tiers") or {}
        chart(
            "Tiers",
            lambda: memory.tier_fill(tiers),
            key=f"tiers_{name}",
            note="Pinned, live and free as shares of each tier's total.",
            missing=None if tiers else "This engine has not reported its tiers.",
        )
        st.caption(
            f"{count_text(stats.get('leases'))} leases, the oldest {seconds_text(stats.get('oldest_lease_s'))} old"
        )
    with right:
        st.markdown("**Queues by form**")
        queues = stats.get("queues") or {}
        rows = [
            {"Form": form, "Waiting": count_text(queue.get("depth")), "Bound": count_text(queue.get("bound"))}
            for form, queue in sorted(queues.items())
        ]
        st.dataframe(pd.DataFrame(rows, columns=["Form", "Waiting", "Bound"]), hide_index=True, key=f"queues_{name}")
    classes = stats.get("classes") or {}
    if classes:
        st.markdown("**Page classes**")
        ratios = stats.get("fragmentation") or {}
        st.dataframe(_class_rows(classes, ratios), hide_index=True, key=f"classes_{name}")


def _class_rows(classes: dict[str, Any], ratios: dict[str, Any]) -> pd.DataFrame:
    rows = []
    for page_class, row in sorted(classes.items()):
        slots, used = int(row.get("slots") or 0), int(row.get("used_slots") or 0)
        rows.append(
            {
                "Class": page_class,
                "Slot": bytes_text(row.get("slot_bytes")),
                "Slabs": count_text(row.get("slabs")),
                "Used slots": f"{used:,} of {slots:,}",
                "Filled": percent_text(used / slots if slots else None),
                "Fragmentation": percent_text(ratios.get(page_class)),
                "Held by used slots": bytes_text(used * float(row.get("slot_bytes") or 0)),
            }
        )
    return pd.DataFrame(rows)


def _over_time() -> None:
    person, chosen = session.person(), session.filters()
    if person is None:
        return
    shown = data.charts(person.role, data.scope(person.role, chosen), chosen.namespace, chosen.minutes)
    left, right = st.columns(2)
    with left:
        chart(
            "Bytes in use by tier",
            lambda: window(
                memory.tier_bytes_over_time(shown.tier_bytes, shown.marks, shown.step_minutes), shown.since, shown.as_of
            ),
            key="tier_bytes",
            note="Live and pinned bytes.",
            missing=None if len(shown.tier_bytes) else "No engine has reported its tiers in this time range.",
        )
    with right:
        chart(
            "Fragmentation by page class",
            lambda: window(
                memory.fragmentation(shown.fragmentation, shown.marks, shown.step_minutes), shown.since, shown.as_of
            ),
            key="fragmentation_memory",
            note="Free bytes inside partly used slabs over bytes of used slabs.",
            missing=None if len(shown.fragmentation) else "No engine has reported its memory in this time range.",
        )
