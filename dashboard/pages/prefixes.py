"""Prefixes: the list with its filters, and one prefix's life with what can be done about it."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from controlplane.store.queries import PrefixView
from dashboard import data, session
from dashboard.charts import families
from dashboard.components import actions, batch, follow, notices, prefix_detail, tables
from dashboard.components.charting import chart
from dashboard.components.live import guarded, live
from dashboard.theme import STATES, state_text
from dashboard.wording import clock_text, plural, short_id

ORDERS = {
    "tokens served": "served",
    "bytes held": "bytes",
    "memory wasted": "wasted",
    "last changed": "changed",
    "last served": "recent",
    "tokens": "tokens",
    "requests": "requests",
    "oldest": "oldest",
}
LIMITS = (50, 200, 1000)
TREE_SECONDS = 30.0  # as often as it is read: to draw it costs some 20 ms and 150 KB a tab
COLUMNS = {
    **tables.number_columns("Tokens", "Tokens served", "Requests"),
    **tables.age_columns("Changed", "Served"),
    "Labels": st.column_config.ListColumn("Labels"),
}


def page() -> None:
    """Draw the page."""
    selected = session.selected_prefix()
    if selected is not None:
        prefix_detail.draw(*selected)
        return
    st.subheader("Prefixes")
    follow.tray()
    _tree()
    guarded(_list)()


def _tree() -> None:
    with st.expander("Families: who holds the memory, and what they served for it", expanded=True):
        by = st.segmented_control(
            "Colour by", [families.BY_SERVED, families.BY_STATE], default=families.BY_SERVED, key="kv_families_by"
        )
        live(lambda: _families(by or families.BY_SERVED), every_seconds=None if session.paused() else TREE_SECONDS)


def _families(by: str) -> None:
    person, chosen = session.person(), session.filters()
    if person is None:
        return
    scope = data.scope(person.role, chosen)
    found, read_at = data.prefix_families(person.role, scope, chosen.namespace)
    nothing = not found.shown and not found.rest
    chart(
        "Prefix families by bytes held",
        lambda: families.family_tree(found, by),
        key=f"families_{by}",
        note=f"The {len(found.shown):,} largest with all above them; the others are one cell a namespace. "
        "Chains of one child each are one cell. Click a cell to see it from there, the bar on top to go back.",
        missing="No prefixes yet: they appear with the first commit of an engine." if nothing else None,
        of=(person.role, scope, chosen.namespace, read_at),
    )
    if not nothing:
        st.caption(f"Read at {clock_text(read_at)}; read again about every half minute.")


def _list() -> None:
    person, chosen = session.person(), session.filters()
    if person is None:
        return
    with st.container(key="kv_list_filters"):
        search, states, tier, order, limit = st.columns([3, 3, 1.6, 2, 1.2])
    text = search.text_input(
        "Search", placeholder="start of an id, part of a namespace, label=value", key="kv_prefix_search"
    )
    picked_states = states.multiselect("State", list(STATES)[:-1], format_func=state_text, key="kv_prefix_states")
    held_in = tier.selectbox("Holds bytes in", ["any", "gpu", "host", "disk"], key="kv_prefix_tier")
    by = order.selectbox("Order by", list(ORDERS), key="kv_prefix_order")
    most = limit.selectbox("Rows", LIMITS, index=1, key="kv_prefix_limit")
    page_of = data.prefixes(
        person.role,
        data.scope(person.role, chosen),
        chosen.namespace,
        tuple(picked_states),
        text or "",
        ORDERS[by],
        most,
        "" if held_in == "any" else held_in,
    )
    rows = page_of.rows
    if not rows:
        _nothing_found(page_of.total, bool(text or picked_states or held_in != "any" or chosen.namespace))
        return
    shown = f"{len(rows):,} of {plural(page_of.total, 'prefix', 'prefixes')}, by {by}"
    st.caption(f"{shown}. Pick rows to act on them or to open one; while any is picked, rows stay in place.")
    picked = tables.pick(
        rows,
        identity=lambda row: (row.engine_id, row.prefix_id),
        frame=_rows,
        key="prefix_table",
        of=(by, most, text, held_in, *picked_states, chosen.engine, chosen.group, chosen.namespace),
        height=460,
        columns=COLUMNS,
        sizes=("GPU", "Host", "Disk"),
    )
    _act(picked)
    if not picked:
        batch.button()


def _nothing_found(total: int, filtered: bool) -> None:
    if total or filtered:
        notices.empty("No prefix matches", "Loosen the search, the state, the tier or the namespace.")
    else:
        notices.empty("No prefixes yet", "They appear with the first commit of an engine.")


def _act(picked: Sequence[PrefixView]) -> None:
    if not picked:
        return
    if len(picked) == 1:
        one = picked[0]
        st.button(
            f"Open prefix {short_id(one.prefix_id)}",
            icon=":material/open_in_full:",
            on_click=session.select_prefix,
            args=(one.engine_id, one.prefix_id),
            type="primary",
        )
    engines = {row.engine_id for row in picked}
    if len(engines) > 1:
        st.caption("Pick rows of one engine to act on them: a command goes to one engine.")
        return
    target = actions.Target(engine=engines.pop(), prefix_ids=tuple(row.prefix_id for row in picked))
    actions.buttons(target, actions.OF_PREFIXES, place="list")


def _rows(rows: Sequence[PrefixView]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "Prefix": short_id(row.prefix_id),
                "Engine": row.engine_id,
                "Namespace": row.namespace,
                "State": state_text(row.state),
                "Pinned": "◉ yes" if row.pinned else "",
                "Tokens": row.tokens,
                "GPU": row.gpu_bytes,
                "Host": row.host_bytes,
                "Disk": row.disk_bytes,
                "Tokens served": row.tokens_served,
                "Requests": row.requests_served,
                "Changed": row.changed_at,
                "Served": row.served_at,
                "Labels": [f"{name}={value}" for name, value in sorted(row.labels.items())],
            }
            for row in rows
        ]
    )
