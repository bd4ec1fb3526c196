"""Validations: why found was not usable, what is damaged, and the last failures by reason."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from controlplane.clock import utc_now
from controlplane.insight.whymiss import WhyMiss
from controlplane.store.queries import DamagedView, FailureView
from dashboard import data, frames, session
from dashboard.charts import losses, memory
from dashboard.charts.base import window
from dashboard.charts.hits import reason_text
from dashboard.components import actions, follow, notices, tables
from dashboard.components.charting import chart
from dashboard.components.live import guarded, live
from dashboard.theme import kind_look
from dashboard.wording import age_text, bytes_text, count_text, everywhere, moment_text, short_id

CAUSE_COLUMNS = {
    "Share": st.column_config.NumberColumn("Share", format="percent"),
    "Means": st.column_config.TextColumn("Means", width="large"),
    "What helps": st.column_config.TextColumn("What helps", width="large"),
    **tables.number_columns("Tokens", "Requests"),
}
REASON_COLUMNS = tables.number_columns("Count")


def page() -> None:
    """Draw the page."""
    st.subheader("Why not a hit")
    live(_funnel)
    st.subheader("Validations")
    live(_validations)
    st.subheader("Damaged")
    follow.tray()
    guarded(_damaged)()


def _funnel() -> None:
    person, chosen = session.person(), session.filters()
    if person is None:
        return
    scope = data.scope(person.role, chosen)
    why = data.why_miss(person.role, scope, chosen.namespace, chosen.minutes)
    shown = data.charts(person.role, scope, chosen.namespace, chosen.minutes)
    lost = (why.prompt_tokens, why.lcp_tokens, why.usable_tokens, tuple((row.cause, row.tokens) for row in why.rows))
    quiet = None if why.prompt_tokens else "No requests in this time range."
    left, right = st.columns([2, 3])
    with left:
        chart(
            "From asked for to usable",
            lambda: losses.funnel(why),
            key="funnel",
            of=(person.role, lost),
            note=f"Of {why.requests:,} requests. Between the bars is what was lost, by the causes below.",
            missing=quiet,
        )
    with right:
        chart(
            "From lcp to usable, by cause",
            lambda: window(
                losses.losses_over_time(shown.losses, shown.requests, shown.marks, shown.step_minutes, found_only=True),
                *shown.shown_range,
            ),
            key="gap_over_time",
            of=(person.role, shown.of),
            note="Tokens the index found and no validation let through, as shares of prompt tokens.",
            missing=quiet or (None if why.lcp_tokens > why.usable_tokens else "All that was found was usable."),
        )
    chart(
        "Where all prompt tokens went",
        lambda: window(
            losses.losses_over_time(shown.losses, shown.requests, shown.marks, shown.step_minutes),
            *shown.shown_range,
        ),
        key="losses_over_time",
        of=(person.role, shown.of),
        note="Usable at the bottom; above it what was lost, by cause.",
        missing=quiet,
    )
    if why.rows:
        st.dataframe(_cause_rows(why), hide_index=True, key="causes_table", column_config=CAUSE_COLUMNS)


def _cause_rows(why: WhyMiss) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "Cause": losses.cause_text(row.cause),
                "Between": "lcp and usable" if row.cause in losses.FOUND_NOT_USABLE else "asked for and lcp",
                "Share": round(row.share, 3),
                "Tokens": row.tokens,
                "Requests": row.requests,
                "Means": row.meaning,
                "What helps": row.advice.replace("`", ""),
            }
            for row in why.rows
        ]
    )


def _damaged() -> None:
    person, chosen = session.person(), session.filters()
    if person is None:
        return
    rows = data.damaged(person.role, data.scope(person.role, chosen))
    if not rows:
        notices.empty("Nothing is damaged", "No prefix is in quarantine.")
        return
    st.caption("A quarantined prefix is never served. Evict it, and the next request builds it again.")
    chosen_rows = tables.pick(
        rows,
        identity=lambda row: (row.prefix.engine_id, row.prefix.prefix_id),
        frame=_damaged_frame,
        key="damaged_table",
        of=(chosen.engine, chosen.group),
    )
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
    scope = data.scope(person.role, chosen)
    seen = data.validations(person.role, scope, chosen.minutes)
    verdicts, failures = frames.verdicts_frame(seen.counts), seen.failures
    left, right = st.columns(2)
    with left:
        chart(
            f"How the five validations ended{everywhere(chosen.namespace)}",
            lambda: memory.validation_verdicts(verdicts),
            key="verdicts",
            of=(person.role, frames.version_of([verdicts])),
            note="Repairable means that the plan has a step that makes it pass. Not applicable is never a pass.",
            missing=None if len(verdicts) else "No validation in this time range.",
        )
    with right:
        shown = data.charts(person.role, scope, chosen.namespace, chosen.minutes)
        chart(
            f"Not passed, by reason{everywhere(chosen.namespace)}",
            lambda: window(losses.not_passed_over_time(seen.slots, shown.marks), *shown.shown_range),
            key="not_passed",
            of=(person.role, shown.of, frames.version_of([seen.slots])),
            note="Validations that failed or needed a repair.",
            missing=None if len(seen.slots) else "No validation failed or needed a repair.",
        )
    bad = verdicts[verdicts["verdict"].isin(["fail", "repairable"])]
    if len(bad):
        st.dataframe(_reason_rows(bad), hide_index=True, key="reasons_table", column_config=REASON_COLUMNS)
    st.markdown(f"**Last failed validations{everywhere(chosen.namespace)}**")
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
            "Count": ordered["count"],
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
