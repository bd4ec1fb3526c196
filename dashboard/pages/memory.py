"""Memory: what each tier holds, slabs by page class and what no longer fits, devices in trouble, queues and leases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import streamlit as st

from dashboard import data, session
from dashboard.charts import memory, slabs
from dashboard.charts.base import window
from dashboard.components import actions, fleet_table, follow, notices, tables
from dashboard.components.charting import chart
from dashboard.components.live import guarded, live
from dashboard.readings import EngineNow
from dashboard.wording import bytes_text, count_text, percent_text, seconds_text

MOST_IN_FULL = 2  # more engines are a table, and one of them is shown in full
BREAKERS = {"closed": "✔ closed", "half_open": "◔ half open", "open": "✖ open"}
COLUMNS = {
    **fleet_table.COLUMNS,
    "Fragmentation": st.column_config.ProgressColumn("Fragmentation", format="percent", min_value=0.0, max_value=1.0),
    "Cannot be served": st.column_config.TextColumn(
        "Cannot be served", help="Page classes with no free slot and no room for a slab: a new page evicts another."
    ),
    **tables.number_columns("Stuck calls", "Quarantined"),
}


def page() -> None:
    """Draw the page."""
    st.subheader("Memory")
    follow.tray()
    live(_over_time)
    guarded(_choice)()
    live(_one_or_two)


def _choice() -> None:
    """The engine that is looked at, and what can be done with it."""
    engine = session.filters().engine or _picked()
    if engine:
        actions.buttons(actions.Target(engine=engine), ("compact", "scrub"), place="memory")


def _picked() -> str | None:
    """With many engines: the table of all, and the one whose row is picked."""
    person = session.person()
    engines = [] if person is None else data.engines_in(person.role, session.filters())
    if len(engines) <= MOST_IN_FULL:
        return None
    st.caption("Pick an engine to see its slabs, and to compact it.")
    picked = tables.pick(
        engines,
        identity=lambda engine: engine.view.id,
        frame=_engine_rows,
        key="memory_engines",
        many=False,
        columns=COLUMNS,
        sizes=("Pinned", "Pin budget"),
    )
    found = picked[0].view.id if picked else None
    session.remember("memory_engine", found)
    return found


def _engine_rows(engines: Sequence[EngineNow]) -> pd.DataFrame:
    return pd.DataFrame([_engine_row(engine) for engine in engines])


def _engine_row(engine: EngineNow) -> dict[str, Any]:
    stats = engine.view.stats
    io, pins = stats.get("io") or {}, stats.get("pins") or {}
    full = _full_classes(stats)
    return {
        "Engine": engine.view.id,
        **{label: fleet_table.tier_share(engine, tier) for tier, label in fleet_table.TIERS},
        "Fragmentation": (stats.get("fragmentation") or {}).get("all"),
        "Cannot be served": f"✖ {', '.join(full)}" if full else "✔ none",
        "Breakers": _breakers(io),
        "Stuck calls": sum(int(tier.get("stuck") or 0) for tier in io.values()),
        "Quarantined": (stats.get("prefixes") or {}).get("QUARANTINED", 0),
        "Pinned": pins.get("bytes"),
        "Pin budget": pins.get("budget_bytes"),
    }


def _breakers(io: dict[str, Any]) -> str:
    bad = [
        f"{tier} {BREAKERS.get(str(row['breaker']), str(row['breaker']))}"
        for tier, row in sorted(io.items())
        if row.get("breaker") not in (None, "closed")
    ]
    return ", ".join(bad) if bad else "✔ closed"


def _full_classes(stats: dict[str, Any]) -> list[str]:
    gpu = (stats.get("tiers") or {}).get("gpu") or {}
    return slabs.unserved_classes(stats.get("classes") or {}, float(gpu.get("free_bytes") or 0))


def _one_or_two() -> None:
    person, chosen = session.person(), session.filters()
    if person is None:
        return
    engines = data.engines_in(person.role, chosen)
    if not engines:
        notices.empty("No engine", "An engine's memory appears here when its agent has registered.")
    picked = session.recall("memory_engine")
    shown = engines if len(engines) <= MOST_IN_FULL else [e for e in engines if e.view.id == picked]
    for engine in shown:
        with st.container(border=True):
            st.markdown(f"**{engine.view.id}**")
            if engine.health in ("stale", "unreachable", "left"):
                st.caption(f"▲ {engine.health}: these are its last known numbers.")
            _one_engine(engine.view.id, engine.view.stats)


def _one_engine(name: str, stats: dict[str, Any]) -> None:
    tiers, classes = stats.get("tiers") or {}, stats.get("classes") or {}
    _trouble(stats)
    left, right = st.columns(2)
    with left:
        chart(
            "Slabs by page class",
            lambda: slabs.slab_map(classes),
            key=f"slabs_{name}",
            note="Used slots, then slots that are free inside slabs and serve this class alone.",
            missing=None if classes else "This engine has not reported its page classes.",
        )
    with right:
        chart(
            "Tiers against their budgets",
            lambda: memory.tier_fill(tiers),
            key=f"tiers_{name}",
            note="Pinned, live and free as shares of each tier's budget.",
            missing=None if tiers else "This engine has not reported its tiers.",
        )
        pins = stats.get("pins") or {}
        st.caption(
            f"{count_text(stats.get('leases'))} leases, the oldest {seconds_text(stats.get('oldest_lease_s'))} old · "
            f"{count_text(pins.get('prefixes'))} pinned prefixes, {bytes_text(pins.get('bytes'))} of "
            f"{bytes_text(pins.get('budget_bytes'))}"
        )
    left, middle, right = st.columns([3, 2, 2])
    with left:
        st.markdown("**Page classes**")
        st.dataframe(_class_rows(classes, stats.get("fragmentation") or {}), hide_index=True, key=f"classes_{name}")
    with middle:
        st.markdown("**Devices**", help="Breakers stop restores from a tier that fails; stuck calls did not come back.")
        st.dataframe(_device_rows(stats.get("io") or {}), hide_index=True, key=f"devices_{name}")
    with right:
        st.markdown("**Queues by form**")
        st.dataframe(_queue_rows(stats.get("queues") or {}), hide_index=True, key=f"queues_{name}")


def _trouble(stats: dict[str, Any]) -> None:
    """What stands in the way, in sentences; nothing where nothing does."""
    full, io = _full_classes(stats), stats.get("io") or {}
    if full:
        st.warning(
            f"No new page of class **{full[0]}** fits without evicting one: no slot is free and no slab's worth of "
            "bytes. Compact joins partly used slabs; a larger GPU cap gives more.",
            icon=":material/warning:",
        )
    for tier, row in sorted(io.items()):
        if row.get("breaker") not in (None, "closed"):
            st.error(f"The breaker of tier **{tier}** is {row['breaker']}: nothing is restored from it.", icon="✖️")
        if row.get("stuck"):
            st.error(f"{count_text(row['stuck'])} calls to tier **{tier}** did not come back.", icon="✖️")
    held = (stats.get("prefixes") or {}).get("QUARANTINED", 0)
    if held:
        st.caption(f"✖ {held:,} prefixes in quarantine: see Validations.")


def _device_rows(io: dict[str, Any]) -> pd.DataFrame:
    rows = [
        {
            "Tier": tier,
            "Breaker": BREAKERS.get(str(row.get("breaker")), str(row.get("breaker") or "–")),
            "Retries": count_text(row.get("retries")),
            "Stuck": count_text(row.get("stuck")),
            "Leaving": bytes_text(row.get("leaving_bytes")),
        }
        for tier, row in sorted(io.items())
    ]
    return pd.DataFrame(rows, columns=["Tier", "Breaker", "Retries", "Stuck", "Leaving"])


def _queue_rows(queues: dict[str, Any]) -> pd.DataFrame:
    rows = [
        {"Form": form, "Waiting": count_text(queue.get("depth")), "Bound": count_text(queue.get("bound"))}
        for form, queue in sorted(queues.items())
    ]
    return pd.DataFrame(rows, columns=["Form", "Waiting", "Bound"])


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
                "Held": bytes_text(used * float(row.get("slot_bytes") or 0)),
            }
        )
    columns = ["Class", "Slot", "Slabs", "Used slots", "Filled", "Fragmentation", "Held"]
    return pd.DataFrame(rows, columns=columns)


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
                memory.tier_bytes_over_time(shown.tier_bytes, shown.marks, shown.step_minutes),
                *shown.shown_range,
            ),
            key="tier_bytes",
            of=(person.role, shown.of),
            note="Live and pinned bytes, of all chosen engines together.",
            missing=None if len(shown.tier_bytes) else "No engine has reported its tiers in this time range.",
        )
    with right:
        chart(
            "Fragmentation by page class",
            lambda: window(
                memory.fragmentation(shown.fragmentation, shown.marks, shown.step_minutes), *shown.shown_range
            ),
            key="fragmentation_memory",
            of=(person.role, shown.of),
            note="Free bytes inside partly used slabs over bytes of used slabs; the mean of the chosen engines.",
            missing=None if len(shown.fragmentation) else "No engine has reported its memory in this time range.",
        )
