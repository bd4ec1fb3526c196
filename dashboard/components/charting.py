"""One way to show a chart: a title that says what it is, a note on how to read it, and what to say when it is empty."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import plotly.graph_objects as go
import streamlit as st

from dashboard.components import notices
from dashboard.theme import CHART_CONFIG

MOST_KEPT = 256  # figures: some 20 KiB each


def chart(
    title: str,
    figure: Callable[[], go.Figure],
    *,
    key: str,
    note: str = "",
    missing: str | None = None,
    of: Hashable = None,
) -> None:
    """Draw a chart under its title. `missing`: nothing to draw, and this is why; then the figure is not made.

    `of` stands for all that the figure shows, the reader's role included: while it is the same, the figure is made
    once for all who look. None: it is made anew.
    """
    st.markdown(f"**{title}**", help=note or None)
    if missing is not None:
        notices.empty("Nothing to draw", missing)
        return
    made = figure() if of is None else _made(key, of, figure)
    st.plotly_chart(made, key=key, config=CHART_CONFIG, alt=f"{title}. {note}")


@st.cache_resource(max_entries=MOST_KEPT, show_spinner=False)
def _made(key: str, of: Hashable, _figure: Callable[[], go.Figure]) -> go.Figure:
    """The figure itself, not a copy: nobody changes it once it is made."""
    return _figure()
