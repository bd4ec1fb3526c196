"""Who is told of alerts, what keeps them quiet, and the forms to change both."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from controlplane.clock import utc_now
from controlplane.steering.alerts.receivers import ReceiverView
from controlplane.steering.alerts.rule import SEVERITIES
from controlplane.steering.alerts.silences import KEYS
from controlplane.store.queries_alerts import SilenceView
from dashboard import control, data, session
from dashboard.components import notices, reason
from dashboard.wording import moment_text

SILENCES = {"1 hour": 1, "4 hours": 4, "1 day": 24, "7 days": 168}


def draw() -> None:
    """Silences and receivers, with what could not be delivered."""
    person = session.person()
    if person is None:
        return
    receivers, silences = data.telling(person.role)
    st.markdown("**Silences**")
    _silences(person, silences)
    if person.may_act:
        with st.expander("Silence what matches", icon=":material/notifications_off:"):
            _new_silence(person)
    st.markdown("**Receivers**")
    _receivers(receivers)
    if person.role == "admin":
        with st.expander("Add a receiver", icon=":material/webhook:"):
            _new_receiver(person)
        if receivers:
            with st.expander("Change a receiver", icon=":material/edit:"):
                _change_receiver(person, receivers)
    for late in data.undelivered(person.role)[:5]:
        if late.last_error:
            st.caption(
                f"✖ {late.receiver}: alert {late.alert_id} {late.state}, {late.status} after {late.attempts} tries: "
                f"{late.last_error}"
            )


def until_chosen(key: str) -> dt.datetime:
    """The end of a silence, chosen as a length from now."""
    hours = SILENCES[st.selectbox("For", list(SILENCES), key=key)]
    return (utc_now() + dt.timedelta(hours=hours)).replace(microsecond=0)


def _silences(person: session.Person, silences: Sequence[SilenceView]) -> None:
    if not silences:
        notices.empty("Nothing is silenced", "Who is told hears of everything that fires.")
    for row in silences:
        left, right = st.columns([8, 2], vertical_alignment="center")
        matched = ", ".join(f"{key} {value}" for key, value in row.matchers.items())
        left.caption(f"{row.id}: {matched}, until {moment_text(row.until)} UTC, by {row.actor}: {row.reason}")
        if person.may_act and right.button("End it", key=f"unsilence_{row.id}"):
            _end(row.id, matched)


def _end(silence_id: int, matched: str) -> None:
    def end(person: session.Person, why: str) -> str:
        control.unsilence(person, silence_id, why)
        return "The silence is over."

    reason.ask("End the silence", f"What still fires and matches {matched} is told then.", "End it", end)


def _new_silence(person: session.Person) -> None:
    turn = _turn("silence")
    st.caption("All that is filled in must match; `*` stands for any text. Alerts are still evaluated and shown.")
    fields = dict(zip(KEYS, st.columns(len(KEYS)), strict=True))
    given = {
        key: place.text_input(key.capitalize(), key=f"silence_{key}_{turn}", placeholder="any")
        for key, place in fields.items()
    }
    until = until_chosen(f"silence_until_{turn}")
    why = reason.form(f"new_silence_{turn}", "Silence")
    matchers = {key: value.strip() for key, value in given.items() if value.strip()}
    if why is not None:
        _do("silence", lambda: control.silence(person, matchers, until, why), "Silenced.")


def _receivers(receivers: Sequence[ReceiverView]) -> None:
    if not receivers:
        notices.empty("Nobody is told", "An admin adds a webhook here, or with `kvdeck alert add-receiver`.")
        return
    shown = [
        {
            "Receiver": row.name,
            "At": row.host,
            "Signed": "✔ yes" if row.signed else "◌ no",
            "State": "✔ on" if row.enabled else "◌ off",
            "From": row.least_severity,
            "Waiting": row.pending,
            "Arrived": row.delivered,
            "Failed": row.failed,
            "Dropped": row.dropped,
        }
        for row in receivers
    ]
    st.dataframe(pd.DataFrame(shown), hide_index=True, key="receivers_table")


def _new_receiver(person: session.Person) -> None:
    turn = _turn("receiver")
    name_at, url_at, secret_at, severity_at = st.columns([2, 4, 3, 2])
    name = name_at.text_input("Name", key=f"receiver_name_{turn}", placeholder="on-call")
    # Hidden as it is typed: the path of a webhook is often its only secret. It is never read back.
    hidden: Any = {"type": "password", "autocomplete": "off"}
    url = url_at.text_input("URL", key=f"receiver_url_{turn}", placeholder="https://…", **hidden)
    secret = secret_at.text_input("Secret that signs (may be empty)", key=f"receiver_secret_{turn}", **hidden)
    severity = severity_at.selectbox("From severity", SEVERITIES, index=1, key=f"receiver_severity_{turn}")
    why = reason.form(f"new_receiver_{turn}", "Add")
    if why is None:
        return
    signed = {"secret": secret} if secret else {}

    def add() -> None:
        control.add_receiver(person, name.strip(), url.strip(), why, least_severity=severity, **signed)

    _do("receiver", add, f"{name.strip()} is told from now on.")


def _change_receiver(person: session.Person, receivers: Sequence[ReceiverView]) -> None:
    by_name = {row.name: row for row in receivers}
    which, what, level = st.columns(3)
    row = by_name[which.selectbox("Receiver", list(by_name), key="receiver_which")]
    switch = "Switch off" if row.enabled else "Switch on"
    deed = what.selectbox("What", [switch, "Tell from another severity", "Remove"], key="receiver_what")
    severity = row.least_severity
    if deed.startswith("Tell"):
        severity = level.selectbox("From severity", SEVERITIES, SEVERITIES.index(severity), key="receiver_level")
    if deed == "Remove":
        st.caption(f"What waits for {row.name} ends as failed: {row.pending:,} notifications.")
    why = reason.form("change_receiver", deed, word=row.name if deed == "Remove" else None)
    if why is None:
        return

    def change() -> None:
        if deed == "Remove":
            control.remove_receiver(person, row.name, why)
        elif deed == switch:
            control.change_receiver(person, row.name, why, enabled=not row.enabled)
        else:
            control.change_receiver(person, row.name, why, least_severity=severity)

    _do("receiver", change, f"{row.name}: {deed.lower()}, done.")


def _turn(form: str) -> int:
    """How often this form was sent: its fields are empty again after each."""
    turn = session.recall(f"turn_{form}")
    return turn if isinstance(turn, int) else 0


def _do(form: str, deed: Callable[[], object], told: str) -> None:
    if reason.done(deed, told):
        session.remember(f"turn_{form}", _turn(form) + 1)
        st.rerun()
