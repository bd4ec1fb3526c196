"""A dialog that asks why before it does something small: run a policy, pause it, acknowledge an alert."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from controlplane.errors import ControlPlaneError
from dashboard import data, session
from dashboard.components import notices


def ask(title: str, explanation: str, verb: str, act: Callable[[session.Person, str], str]) -> None:
    """Open the dialog. `act` gets the person and the reason and returns the sentence to show when it is done."""
    st.dialog(title)(_dialog)(explanation, verb, act)


def _dialog(explanation: str, verb: str, act: Callable[[session.Person, str], str]) -> None:
    person = session.person()
    if person is None:
        return
    st.markdown(explanation)
    with st.form("reason_form", border=False):
        reason = st.text_input("Reason (it goes into the audit)", max_chars=500)
        go = st.form_submit_button(verb, type="primary")
    if not go:
        return
    if not reason.strip():
        st.error("Write a reason first: whoever reads the audit will ask for it.", icon=":material/edit:")
        return
    try:
        session.leave_notice(act(person, reason.strip()))
    except ControlPlaneError as error:
        notices.refused(error)
        return
    data.clear()
    st.rerun()
