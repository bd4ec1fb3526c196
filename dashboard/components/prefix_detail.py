"""One prefix: what it is made of, how it came to be so, where it can resume, and what went wrong."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from controlplane.clock import utc_now
from controlplane.store.queries import PrefixDetail, PrefixView
from dashboard import data, frames, session
from dashboard.charts import prefix as prefix_charts
from dashboard.charts.hits import reason_text
from dashboard.components import actions, follow, inspection, notices, tables
from dashboard.components.charting import chart
from dashboard.components.live import guarded, live
from dashboard.theme import kind_look, state_text, tier_look
from dashboard.wording import age_text, bytes_text, count_text, moment_text, plural, short_id

TIERS = ("gpu", "host", "disk")


def draw(engine: str, prefix_id: str) -> None:
    """Draw the page of one prefix."""
    person = session.person()
    if person is None:
        return
    st.button("All prefixes", icon=":material/arrow_back:", on_click=session.select_prefix, args=(None, None))
    st.subheader(f"Prefix {short_id(prefix_id)}")
    st.caption(f"`{prefix_id}` on {engine}")
    actions.buttons(actions.Target(engine=engine, prefix_ids=(prefix_id,)), actions.OF_PREFIXES, place="one")
    follow.tray()

    def now_and_history() -> None:
        detail = data.prefix(person.role, engine, prefix_id)
        _now(detail)
        _history(detail)

    live(now_and_history)
    inspection.part(engine, prefix_id)
    guarded(lambda: _tree(person.role, engine, prefix_id))()


def _now(detail: PrefixDetail) -> None:
    now, row = utc_now(), detail.now
    with st.container(horizontal=True, key="kv_numbers"):
        for label, value, explained in (
            ("State", state_text(row.state), None),
            ("Version", f"{row.version:,}", f"Of life {row.life}; a life ends with an eviction."),
            ("Tokens", count_text(row.tokens), plural(row.pages, "page")),
            ("Tokens served", count_text(row.tokens_served), plural(row.requests_served, "request")),
            ("Changed", age_text(row.changed_at, now), None),
            ("Pinned", "yes" if row.pinned else "no", None),
        ):
            st.metric(label, value, help=explained, width="content")
    _held_by_whom(detail.now)
    left, right = st.columns(2)
    with left:
        st.markdown("**Objects by kind and tier**")
        st.dataframe(_objects(row), hide_index=True, key="objects_table")
    with right:
        st.markdown("**Checkpoints**", help="Boundaries at which generation may resume.")
        if detail.checkpoints:
            st.dataframe(_checkpoints(detail), hide_index=True, key="checkpoints_table")
        else:
            notices.empty("No checkpoint", "It can be matched, but only replay can resume from it.")


def _held_by_whom(row: PrefixView) -> None:
    """Labels, namespace, and the leases of its engine: those on this prefix it tells when asked (`inspection`)."""
    person = session.person()
    engines = [] if person is None else data.engines(person.role)
    stats = next((engine.view.stats for engine in engines if engine.view.id == row.engine_id), {})
    labels = " ".join(f"`{name}={value}`" for name, value in sorted(row.labels.items())) or "no labels"
    st.caption(
        f"Namespace **{row.namespace}** · {labels} · this life began {moment_text(row.created_at)} UTC · "
        f"its engine has {count_text(stats.get('leases'))} leases on all its prefixes"
    )


def _objects(row: PrefixView) -> pd.DataFrame:
    rows = []
    for kind, tiers in row.objects.items():
        sizes = {tier: int((tiers or {}).get(tier) or 0) for tier in TIERS}
        held = {tier_look(tier).label: bytes_text(size) if size else "–" for tier, size in sizes.items()}
        rows.append({"Object": kind_look(kind).label, **held, "Total": bytes_text(sum(sizes.values()))})
    return pd.DataFrame(rows, columns=["Object", *(tier_look(tier).label for tier in TIERS), "Total"])


def _checkpoints(detail: PrefixDetail) -> pd.DataFrame:
    now = utc_now()
    return pd.DataFrame(
        [
            {
                "Boundary": count_text(row.boundary),
                "Objects": ", ".join(kind_look(kind).label for kind in row.kinds),
                "Tiers": ", ".join(row.tiers),
                "Changed": age_text(row.changed_at, now),
            }
            for row in sorted(detail.checkpoints, key=lambda row: -row.boundary)
        ]
    )


def _history(detail: PrefixDetail) -> None:
    versions = frames.versions_frame(detail.versions)
    chart(
        "Versions",
        lambda: prefix_charts.version_timeline(versions, utc_now()),
        key="version_timeline",
        note="A band a state, a mark a version; below, the bytes held.",
        missing=None if len(versions) else "The history of this prefix is not kept any more.",
    )
    for gap in detail.gaps:
        if gap.closed_at is None:
            st.warning(
                f"Versions {gap.first_version} to {gap.last_version} are missing: their spans were lost. "
                "A snapshot of the engine closes the gap.",
                icon=":material/warning:",
            )
    if detail.versions:
        st.dataframe(
            _version_rows(detail),
            hide_index=True,
            key="versions_table",
            column_config=tables.trace_column(),
        )
        if detail.versions_total > len(detail.versions):
            st.caption(f"The newest {len(detail.versions):,} of {detail.versions_total:,} versions.")
    st.markdown("**Failed validations**")
    if detail.failures:
        st.dataframe(_failures(detail), hide_index=True, key="prefix_failures", column_config=tables.trace_column())
    else:
        notices.empty("None failed", "No validation of this prefix has failed.")


def _version_rows(detail: PrefixDetail) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "Version": f"v{row.version}",
                "At (UTC)": moment_text(row.at),
                "From": state_text(row.state_from),
                "To": state_text(row.state_to),
                "Cause": row.cause,
                "Reason": reason_text(row.reason) if row.reason != "none" else "",
                "Moved": bytes_text(row.bytes_moved) if row.bytes_moved else "–",
                "Command": short_id(row.command_id, 8),
                "Told by": "snapshot" if row.repaired else "span",
                "Trace": tables.trace_cell(row.trace_id),
                "Caused by trace": row.cause_trace_id or "–",
            }
            for row in detail.versions
        ]
    )


def _failures(detail: PrefixDetail) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "At (UTC)": moment_text(row.at),
                "Validation": row.validation,
                "Reason": reason_text(row.reason),
                "Object": kind_look(row.object_kind).label,
                "Boundary": count_text(row.boundary),
                "Trace": tables.trace_cell(row.trace_id),
            }
            for row in detail.failures
        ]
    )


def _tree(role: str, engine: str, prefix_id: str) -> None:
    detail = data.prefix(role, engine, prefix_id)
    st.markdown("**In the tree**")
    parent, children = st.columns([1, 3])
    with parent:
        if detail.now.parent_id:
            st.button(
                f"Parent {short_id(detail.now.parent_id)}",
                icon=":material/arrow_upward:",
                on_click=session.select_prefix,
                args=(engine, detail.now.parent_id),
            )
        else:
            st.caption("It starts at the root.")
    with children, st.container(horizontal=True):
        if not detail.children:
            st.caption("Nothing below it.")
        for child in detail.children[:12]:
            st.button(
                f"{state_text(child.state)[0]} {short_id(child.prefix_id)} · {count_text(child.tokens)} tokens",
                key=f"child_{child.prefix_id}",
                on_click=session.select_prefix,
                args=(engine, child.prefix_id),
            )
        if len(detail.children) > 12:
            st.caption(f"and {len(detail.children) - 12:,} more")
