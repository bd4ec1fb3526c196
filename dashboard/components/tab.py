"""Staying signed in over a reload of the page.

Streamlit forgets its session with every reload, and a one-time link is spent by then. So the browser tab keeps the
session token in its sessionStorage: for this tab and this address only, gone when the tab is closed. A cookie would
also go to every other port of the host.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

from controlplane.errors import ControlPlaneError
from dashboard import control, session

_JS = """
export default function ({ data, setStateValue }) {
  const key = "kvdeck.session";
  if (data.forget) { sessionStorage.removeItem(key); return; }
  if (data.token) { sessionStorage.setItem(key, data.token); return; }
  const kept = sessionStorage.getItem(key);
  if (kept) { setStateValue("token", kept); }
}
"""


def remember_or_restore() -> None:
    """Let the tab keep the token of who is signed in; sign in who was before the reload."""
    person = session.person()
    forget = session.recall("signed_out") is True
    mount = st.components.v2.component("kvdeck_tab", js=_JS, html="<span></span>")
    said: Any = mount(
        key="kv_tab",
        data={"token": person.token if person else None, "forget": forget},
        default={"token": None},
        on_token_change=lambda: None,
        height=1,
    )
    token = said.token
    if person is not None or forget or not token or session.recall("tab_tried") == token:
        return
    session.remember("tab_tried", token)
    try:
        session.sign_in(control.identify(str(token)))
    except ControlPlaneError as error:
        session.leave_notice(f"You were signed in before, and cannot be now. {error.message}")
        return
    st.rerun()
