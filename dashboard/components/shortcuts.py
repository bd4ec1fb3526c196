"""The keys that press buttons, and the dialog that lists them. Streamlit keeps C and R for itself."""

from __future__ import annotations

import streamlit as st

from dashboard import session
from dashboard.components import actions

EVERYWHERE = {"p": "pause the refresh, or resume it", "f": "read everything again now", "h": "this list"}
TABLES = {"Shift + Space": "tick the row of a table that the arrows are on, or take the tick away"}
FORMS = {"Ctrl + Enter": "review the change, on Caps and mode", "Esc": "close a dialog"}


def button(person: session.Person) -> None:
    """The button that opens the list."""
    if st.button("Keys", icon=":material/keyboard:", type="tertiary", key="kv_keys", shortcut="h"):
        st.dialog("Keyboard")(_listed)(person)


def _listed(person: session.Person) -> None:
    keys = EVERYWHERE | TABLES
    if person.may_act:
        keys |= {key: f"{kind} the prefix that is open" for kind, key in actions.KEYS.items()} | FORMS
    st.markdown("\n".join(f"- `{key.upper() if len(key) == 1 else key}` {what}" for key, what in keys.items()))
    st.caption("Outside of fields. Tab and Enter reach everything else; a dialog keeps the focus until it is closed.")
