"""Validations: why found was not usable, what is damaged, and the last failures by reason."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from controlplane.clock import utc_now
from controlplane.store.queries import DamagedView, FailureView
from dashboard import data, frames, session
from dashboard.charts import memory
from dashboard.charts.hits import reason_text
from dashboard.components import actions, follow, notices, tables
from dashboard.components.charting import chart
from dashboard.components.live import guarded, live
from dashboard.theme import kind_look
from dashboard.wording import age_text, bytes_text, count_text, moment_text, short_id


def page() -> None:
    """Draw the page."""
    st.subheader("Damaged")
    follow.tray()
    guarded(_damaged)()
    st.subheader("Validations")
    live(_validations)


def _damaged() -> None:
    person, chosen = session.person(), session.filters()
    if person is None:
        return
    rows = data.damaged(person.role, chosen.engine)
    if not rows:
        notices.empty("Nothing is damaged", "No prefix is in quarantine.")
        return
    st.caption("A quarantined prefix is never served. Evict it, and the next request builds it again.")
    picked = tables.picked_rows(_damaged_frame(rows), key="damaged_table")
    chosen_rows = [rows[position] for position in picked]
    engines = {row.prefix.engine_id for row in chosen_rows}
    if len(engines) == 1:
        ids = tuple(row.prefix.prefix_id for row in chosen_rows)
        actions.buttons(actions.Target(engine=engines.pop(), prefix_ids=ids), ("evict",), place="damaged")
    elif len(engines) > 1:
        st.caption("Pick rows of one engine to act on them.")
    elif person.may_act:
        st.caption("Pick rows to act on them.")


def _damaged_frame(rows: Sequence[DamagedView]) -> pd.DataFrame:
    now = utc_now()
    return pd.DataFrame(
        [
            {
                "Prefix": short_id(row.prefix.prefix_id),
                "Engine": row.prefix.engine_id,
                "Namespace": row.prefix.namespace,
                "Reason": reason_text(row.reason),
                "Cause": row.cause,
                "Since": age_text(row.at, now),
                "Tokens": count_text(row.prefix.tokens),
                "Held": bytes_text(row.prefix.gpu_bytes + row.prefix.host_bytes + row.prefix.disk_bytes),
                "Trace": tables.trace_cell(row.trace_id),
            }
            for row in rows
        ]
    )


def _validations() -> None:
    person, chosen = session.person(), session.filters()
    if person is None:
        return
    counts, failures = data.validations(person.role, chosen.engine, chosen.minutes)
    verdicts = frames.verdicts_frame(counts)
    left, right = st.columns([3, 2])
    with left:
        chart(
            "How the five validations ended",
            lambda: memory.validation_verdicts(verdicts),
            key="verdicts",
            note="Repairable means that the plan has a step that makes it pass. Not applicable is never a pass.",
            missing=None if len(verdicts) else "No validation in this time range.",
        )
    with right:
        st.markdown("**Not passed, by reason**")
        bad = verdicts[verdicts["verdict"].isin(["fail", "repairable"])]
        if bad.empty:
            notices.empty("All passed", "No validation failed or needed a repair.")
        else:
            st.dataframe(_reason_rows(bad), hide_index=True, key="reasons_table")
    st.markdown("**Last failed validations**")
    if failures:
        st.dataframe(
            _failure_rows(failures), hide_index=True, key="failures_table", column_config=tables.trace_column()
        )
    else:
        notices.empty("None failed", "No failed validation in this time range.")


def _reason_rows(bad: pd.DataFrame) -> pd.DataFrame:
    ordered = bad.sort_values("count", ascending=False)
    return pd.DataFrame(
        {
            "Validation": ordered["validation"],
            "Verdict": ["✖ fail" if verdict == "fail" else "▲ repairable" for verdict in ordered["verdict"]],
            "Reason": [reason_text(str(reason)) for reason in ordered["reason"]],
            "Count": [count_text(count) for count in ordered["count"]],
        }
    )


def _failure_rows(failures: Sequence[FailureView]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "At (UTC)": moment_text(row.at),
                "Validation": row.validation,
                "Reason": reason_text(row.reason),
                "Object": kind_look(row.object_kind).label,
                "Boundary": count_text(row.boundary),
                "Prefix": short_id(row.prefix_id),
                "Engine": row.engine_id,
                "Trace": tables.trace_cell(row.trace_id),
            }
            for row in failures
        ]
    )
