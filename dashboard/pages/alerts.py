"""Alerts: what fires, what is about to, and what was resolved."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from controlplane.clock import utc_now
from controlplane.store.queries import AlertView
from dashboard import control, data, session
from dashboard.components import notices, reason
from dashboard.components.live import guarded
from dashboard.wording import age_text, moment_text

STATES = {"firing": "✖ firing", "pending": "◔ pending", "resolved": "✔ resolved"}


def page() -> None:
    """Draw the page."""
    st.subheader("Alerts")
    guarded(_alerts)()


def _alerts() -> None:
    person, chosen = session.person(), session.filters()
    if person is None:
        return
    rows = data.alerts(person.role, chosen.engine)
    standing = [row for row in rows if row.state != "resolved"]
    if not standing:
        notices.empty("No alert", "Nothing fires and nothing is about to.")
    for alert in sorted(standing, key=lambda row: (row.state != "firing", -row.since.timestamp())):
        _one(alert, may_act=person.may_act)
    st.markdown("**History**")
    if rows:
        st.dataframe(_rows(rows), hide_index=True, key="alerts_table")
    else:
        notices.empty("No history", "No alert has fired yet.")


def _one(alert: AlertView, *, may_act: bool) -> None:
    with st.container(border=True):
        what, numbers, act = st.columns([5, 3, 2], vertical_alignment="center")
        what.markdown(f"{STATES.get(alert.state, alert.state)} **{alert.rule.replace('_', ' ')}** on {alert.engine_id}")
        what.caption(alert.summary)
        if alert.runbook:
            what.caption(f"{alert.severity}; what to do: {alert.runbook}")
        if alert.silence_id is not None:
            what.caption(f"silence {alert.silence_id} keeps it quiet (`kvdeck alert silences`)")
        numbers.caption(
            f"value {alert.value:,.3g}, threshold {alert.threshold:,.3g}, since {age_text(alert.since, utc_now())}"
        )
        if alert.acknowledged_by:
            act.caption(f"acknowledged by {alert.acknowledged_by}: {alert.acknowledged_reason or ''}".rstrip(": "))
        elif may_act and act.button("Acknowledge", key=f"ack_{alert.id}", icon=":material/check:"):

            def acknowledge(person: session.Person, why: str) -> str:
                control.acknowledge(person, alert.id, why)
                return "Acknowledged: others see that you look after it."

            reason.ask("Acknowledge the alert", alert.summary, "Acknowledge", acknowledge)


def _rows(rows: Sequence[AlertView]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "State": STATES.get(row.state, row.state),
                "Rule": row.rule.replace("_", " "),
                "Severity": row.severity,
                "Engine": row.engine_id,
                "Summary": row.summary,
                "Since (UTC)": moment_text(row.since),
                "Fired (UTC)": moment_text(row.fired_at),
                "Resolved (UTC)": moment_text(row.resolved_at),
                "Acknowledged by": row.acknowledged_by or "",
            }
            for row in rows
        ]
    )
