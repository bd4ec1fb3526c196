"""Caps and mode: what is desired, what runs, and the way from one to the other."""

from __future__ import annotations

import streamlit as st

from dashboard import session
from dashboard.components import desired_apply, desired_form, desired_views, whatif
from dashboard.components.live import guarded, live


def page() -> None:
    """Draw the page."""
    st.subheader("Caps and mode")
    desired_apply.watch_applied()
    live(desired_views.desired_beside_observed)
    live(whatif.draw)
    person = session.person()
    if person is not None and person.may_act:
        guarded(desired_form.draw)()
    guarded(desired_views.history)()
