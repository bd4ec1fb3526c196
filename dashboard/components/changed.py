"""Says that a list is no longer as it was drawn. It does not move by itself: what a hand is about to press stays."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import streamlit as st

from dashboard.components.live import live


def notice(what: str, read: Callable[[], Hashable], *, key: str) -> None:
    """A line with a button, once `read` gives something else than it gives now. Called where the list is drawn."""
    drawn = read()

    def look() -> None:
        if read() == drawn:
            return
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(f"▲ **{what}** since this was drawn.", width="content")
            if st.button("Show it", key=f"changed_{key}", icon=":material/refresh:"):
                st.rerun()

    live(look)
