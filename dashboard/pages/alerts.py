"""Alerts: what fires, what is about to, what was resolved; what is kept quiet, and whether receivers hear."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from controlplane.clock import utc_now
from controlplane.store.queries import AlertView
from dashboard import control, data, runbook, session
from dashboard.components import changed, notices, reason, telling
from dashboard.components.live import guarded
from dashboard.wording import age_text, moment_text

STATES = {"firing": "✖ firing", "pending": "◔ pending", "resolved": "✔ resolved"}


def page() -> None:
    """Draw the page."""
    st.subheader("Alerts")
    guarded(_alerts)()
    guarded(telling.draw)()


def _alerts() -> None:
    person, chosen = session.person(), session.filters()
    if person is None:
        return
    scope = data.scope(person.role, chosen)
    rows = data.alerts(person.role, scope)
    changed.notice("Alerts have changed", lambda: _standing(data.alerts(person.role, scope)), key="alerts")
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


def _standing(rows: Sequence[AlertView]) -> frozenset[tuple[int, str, str | None, int | None]]:
    return frozenset((row.id, row.state, row.acknowledged_by, row.silence_id) for row in rows)


def _one(alert: AlertView, *, may_act: bool) -> None:
    with st.container(border=True):
        what, numbers, act = st.columns([5, 2.6, 3.6], vertical_alignment="center")
        what.markdown(f"{STATES.get(alert.state, alert.state)} **{alert.rule.replace('_', ' ')}** on {alert.engine_id}")
        what.caption(f"{alert.severity}: {alert.summary}")
        if alert.silence_id is not None:
            what.caption(f"silence {alert.silence_id} keeps it quiet")
        numbers.caption(f"began {age_text(alert.since, utc_now())}")
        if alert.acknowledged_by:
            numbers.caption(f"acknowledged by {alert.acknowledged_by}: {alert.acknowledged_reason or ''}".rstrip(": "))
        with act, st.container(horizontal=True, horizontal_alignment="right"):
            _runbook(alert)
            if may_act:
                _buttons(alert)


def _runbook(alert: AlertView) -> None:
    if not alert.runbook:
        return
    section = runbook.section(alert.runbook)
    if section is None and alert.runbook.startswith(("http://", "https://")):
        st.link_button("Runbook", alert.runbook, icon=":material/menu_book:")
    elif section is None:
        st.caption(f"what to do: {alert.runbook}")
    elif st.button("Runbook", key=f"runbook_{alert.id}", icon=":material/menu_book:"):
        st.dialog(f"What to do: {alert.rule.replace('_', ' ')}", width="large")(st.markdown)(section)


def _buttons(alert: AlertView) -> None:
    if not alert.acknowledged_by and st.button("Acknowledge", key=f"ack_{alert.id}", icon=":material/check:"):

        def acknowledge(person: session.Person, why: str) -> str:
            control.acknowledge(person, alert.id, why)
            return "Acknowledged: others see that you look after it."

        reason.ask("Acknowledge the alert", alert.summary, "Acknowledge", acknowledge)
    if alert.silence_id is None and st.button(
        "Silence", key=f"silence_{alert.id}", icon=":material/notifications_off:"
    ):
        st.dialog(f"Silence {alert.rule.replace('_', ' ')}")(_silence)(alert)


def _silence(alert: AlertView) -> None:
    everywhere = st.toggle("On every engine, not only on this one", key=f"silence_all_{alert.id}")
    until = telling.until_chosen(f"silence_for_{alert.id}")
    matchers = {"rule": alert.rule} if everywhere else {"rule": alert.rule, "engine": alert.engine_id}
    st.caption(f"Nobody is told until {moment_text(until)} UTC. It is still evaluated and shown, and policies run.")
    person = session.person()
    why = reason.form(f"silence_form_{alert.id}", "Silence")
    if why is None or person is None:
        return
    if reason.done(lambda: control.silence(person, matchers, until, why), "Silenced."):
        st.rerun()


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
                "Told (UTC)": moment_text(row.notified_at),
                "Acknowledged by": row.acknowledged_by or "",
            }
            for row in rows
        ]
    )
