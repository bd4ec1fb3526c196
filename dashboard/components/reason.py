"""Asking why before anything is done, and, before what is dangerous, for a word typed by hand."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from controlplane.errors import ControlPlaneError
from dashboard import data, session
from dashboard.components import notices


def ask(
    title: str, explanation: str, verb: str, act: Callable[[session.Person, str], str], *, word: str | None = None
) -> None:
    """Open the dialog. `act` gets the person and the reason and returns the sentence to show when it is done."""
    st.dialog(title)(_dialog)(explanation, verb, act, word)


def _dialog(explanation: str, verb: str, act: Callable[[session.Person, str], str], word: str | None) -> None:
    person = session.person()
    if person is None:
        return
    st.markdown(explanation)
    reason = form("reason_form", verb, word=word)
    if reason is None:
        return
    if done(lambda: act(person, reason)):
        st.rerun()


def done(deed: Callable[[], object], told: str | None = None) -> bool:
    """Do it and leave a sentence, `told` or its own; False, with the refusal on screen, if it was refused."""
    try:
        said = deed()
    except ControlPlaneError as error:
        notices.refused(error)
        return False
    session.leave_notice(told or str(said))
    data.clear()
    return True


def form(key: str, verb: str, *, icon: str | None = None, word: str | None = None) -> str | None:
    """The end of a dialog: the reason and the button. The reason once it is sent whole; until then None.

    `word`: what has to be typed first, since the deed is dangerous.
    """
    with st.form(key, border=False):
        reason = st.text_input("Reason (it goes into the audit)", max_chars=500, placeholder="why, in a few words")
        typed = st.text_input(f"This is dangerous: type {word} to go on", autocomplete="off") if word else None
        go = st.form_submit_button(verb, type="primary", icon=icon)
    if not go:
        return None
    if not reason.strip():
        st.error("Write a reason first: whoever reads the audit will ask for it.", icon=":material/edit:")
        return None
    if word and (typed or "").strip() != word:
        st.error(f"Type {word} as it is written: this is not done by accident.", icon=":material/keyboard:")
        return None
    return reason.strip()
