"""Fleet: every engine by group, whether it speaks, whether it runs what was asked, and how it does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pandas as pd
import streamlit as st

from controlplane.clock import utc_now
from dashboard import data, session
from dashboard.charts import fleet
from dashboard.components import fleet_table, notices
from dashboard.components.charting import chart
from dashboard.components.live import live
from dashboard.readings import EngineNow
from dashboard.theme import ENGINE_HEALTH, SYNC
from dashboard.wording import age_text, count_text, percent_text, plural, seconds_text

LAST_GAPS = 100


def page() -> None:
    """Draw the page."""
    st.subheader("Fleet")
    by = st.segmented_control(
        "Colour by", [fleet.BY_HEALTH, fleet.BY_SYNC, fleet.BY_MODE], default=fleet.BY_HEALTH, key="kv_fleet_by"
    )
    live(lambda: _map(by or fleet.BY_HEALTH))
    st.markdown("**Engines**")
    text = st.text_input("Search", placeholder="part of an id, a group, a model, label=value", key="kv_fleet_search")
    live(lambda: _table(text.strip()))


def _shown() -> list[EngineNow]:
    person = session.person()
    return [] if person is None else data.engines_in(person.role, session.filters())


def _map(by: str) -> None:
    engines = _shown()
    if not engines:
        notices.empty("No engine", "An engine appears here when its agent has registered: `kvdeck engine`.")
        return
    notices.line(_chips(engines))
    chart(
        plural(len(engines), "engine"),
        lambda: fleet.fleet_map(engines, by),
        key=f"fleet_map_{by}",
        note="A cell an engine, a block a group. The symbol says what the colour says.",
    )
    left, middle, right = st.columns(3)
    with left:
        chart(
            "Hit rate by engine",
            lambda: fleet.hit_rates(engines),
            key="fleet_hits",
            note=f"Usable over prompt tokens of the last {data.IDLE_MINUTES} minutes.",
            missing=None if any(e.hit_ratio is not None for e in engines) else "No engine had requests lately.",
        )
    with middle:
        chart(
            "How full the tiers are",
            lambda: fleet.tier_fill_of(engines, fleet_table.tier_share),
            key="fleet_tiers",
            note="Live bytes over total bytes, a dot an engine.",
        )
    with right:
        st.markdown("**By group**")
        st.dataframe(_groups(engines), hide_index=True, key="fleet_groups", column_config=fleet_table.COLUMNS)
    _open_gaps(engines)


def _chips(engines: Sequence[EngineNow]) -> str:
    health = Counter(engine.health for engine in engines)
    sync = Counter(engine.view.sync for engine in engines)
    chips = [
        notices.chip(f"{count:,} {looks[name].label}", symbol=looks[name].symbol, color=looks[name].color,
                     title=looks[name].help)
        for counts, looks in ((health, ENGINE_HEALTH), (sync, SYNC))
        for name in looks
        if (count := counts.get(name, 0))
    ]  # fmt: skip
    return "".join(chips)


def _groups(engines: Sequence[EngineNow]) -> pd.DataFrame:
    rows = []
    for group in sorted({engine.view.group for engine in engines}):
        mine = [engine for engine in engines if engine.view.group == group]
        asked = sum(engine.prompt_tokens_lately for engine in mine)
        rows.append(
            {
                "Group": group or "–",
                "Engines": len(mine),
                "Live": sum(engine.health in ("live", "idle") for engine in mine),
                "In sync": sum(engine.view.sync == "in_sync" for engine in mine),
                "Hit rate": fleet_table.tenths_of_percent(
                    sum(engine.usable_tokens_lately for engine in mine) / asked if asked else None
                ),
            }
        )
    return pd.DataFrame(rows)


def _open_gaps(engines: Sequence[EngineNow]) -> None:
    person = session.person()
    if person is None or not any(engine.view.open_gaps for engine in engines):
        return
    total = sum(engine.view.open_gaps for engine in engines)
    with st.expander(
        f"▲ {plural(total, 'open gap')} in the history: spans that were lost, until a snapshot closes them"
    ):
        gaps = data.gaps(person.role, data.scope(person.role, session.filters()))
        now = utc_now()
        st.dataframe(
            pd.DataFrame(
                [
                    {
                        "Prefix": gap.prefix_id,
                        "Versions": f"{gap.first_version:,} to {gap.last_version:,}",
                        "Found": age_text(gap.found_at, now),
                    }
                    for gap in gaps[:LAST_GAPS]
                ]
            ),
            hide_index=True,
            key="fleet_gaps",
        )


def _table(text: str) -> None:
    person = session.person()
    if person is None:
        return
    engines = [engine for engine in _shown() if _matches(engine, text)]
    if not engines:
        notices.empty("No engine matches", "Loosen the search, the engine or the group.")
        return
    frame = fleet_table.rows(engines, utc_now())
    frame.insert(4, "Skew", [_skew_text(engine.view.clock_ahead_seconds) for engine in engines])
    st.dataframe(
        frame,
        hide_index=True,
        key="fleet_table",
        column_config=fleet_table.COLUMNS,
        height=min(720, 38 + 35 * len(engines)),
    )
    asked = sum(engine.prompt_tokens_lately for engine in engines)
    used = sum(engine.usable_tokens_lately for engine in engines)
    st.caption(
        f"{plural(len(engines), 'engine')}, {count_text(sum(e.requests_lately for e in engines))} requests in the last "
        f"{data.IDLE_MINUTES} minutes, hit rate {percent_text(used / asked if asked else None)}."
    )


def _skew_text(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{'+' if seconds > 0 else '-'}{seconds_text(abs(seconds))}"


def _matches(engine: EngineNow, text: str) -> bool:
    view, wanted = engine.view, text.lower()
    known = (view.id, view.group, view.model, *(f"{name}={value}" for name, value in view.labels.items()))
    return not wanted or any(wanted in part.lower() for part in known)
