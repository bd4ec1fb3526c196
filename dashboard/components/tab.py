"""Staying signed in over a reload of the page, and in a second tab.

Streamlit forgets its session with every reload, and a one-time link is spent by then. So each tab keeps the session
token in its sessionStorage, for this address only, gone when the tab is closed. A new tab has none: it asks the others
of the same address over a BroadcastChannel, and is told of a sign-out in the same way. A cookie would also go to every
other port of the host; localStorage would outlive the browser. A tab also keeps where it wanted to go while somebody
signs in at the identity provider, which sends everybody back to the first page.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

from controlplane.errors import ControlPlaneError
from dashboard import control, session

_JS = """
export default function ({ data, setStateValue }) {
  const key = "kvdeck.session", wantedKey = "kvdeck.wanted";
  const reload = () => window.location.reload(); // late: the other tab may be dropping a provider's cookie
  if (!window.kvdeckTabs) {
    window.kvdeckTabs = { channel: new BroadcastChannel(key), heard: () => {} };
    window.kvdeckTabs.channel.onmessage = ({ data: said }) => {
      const kept = sessionStorage.getItem(key);
      if (said.ask && kept) { window.kvdeckTabs.channel.postMessage({ token: kept }); }
      if (said.token && !kept) { window.kvdeckTabs.heard(said.token); }
      if (said.forget && kept === said.forget) { sessionStorage.removeItem(key); setTimeout(reload, 1000); }
    };
  }
  const tabs = window.kvdeckTabs;
  if (data.forget) {
    const kept = sessionStorage.getItem(key);
    sessionStorage.removeItem(key);
    tabs.heard = () => {};
    if (kept) { tabs.channel.postMessage({ forget: kept }); }
    return;
  }
  if (data.token) {
    sessionStorage.setItem(key, data.token);
    const wanted = sessionStorage.getItem(wantedKey);
    sessionStorage.removeItem(wantedKey);
    if (data.byProvider && wanted) { setStateValue("wanted", wanted); }
    return;
  }
  const query = new URLSearchParams(window.location.search);
  query.delete("token"); // a one-time link is nobody's destination
  sessionStorage.setItem(wantedKey, window.location.pathname + "?" + query);
  tabs.heard = (token) => setStateValue("token", token);
  const kept = sessionStorage.getItem(key);
  if (kept) { tabs.heard(kept); } else { tabs.channel.postMessage({ ask: true }); }
}
"""


def remember_or_restore() -> None:
    """Let the tab keep the token of who is signed in; sign in who was before the reload, or is in another tab."""
    person = session.person()
    forget = session.recall("signed_out") is True
    mount = st.components.v2.component("kvdeck_tab", js=_JS, html="<span></span>")
    said: Any = mount(
        key="kv_tab",
        data={
            "token": person.token if person else None,
            "forget": forget,
            "byProvider": session.recall("id_token_tried") is not None,
        },
        default={"token": None, "wanted": None},
        on_token_change=lambda: None,
        on_wanted_change=lambda: None,
        height=1,
    )
    if person is not None and said.wanted and session.recall("wanted_tried") != said.wanted:
        session.remember("wanted_tried", said.wanted)
        session.remember("wanted", str(said.wanted))
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
