"""One way to show a chart: a title that says what it is, a note on how to read it, and what to say when it is empty."""

from __future__ import annotations

from collections.abc import Callable

import plotly.graph_objects as go
import streamlit as st

from dashboard.components import notices
from dashboard.theme import CHART_CONFIG


def chart(title: str, figure: Callable[[], go.Figure], *, key: str, note: str = "", missing: str | None = None) -> None:
    """Draw a chart under its title. `missing`: nothing to draw, and this is why; then the figure is not made."""
    st.markdown(f"**{title}**", help=note or None)
    if missing is not None:
        notices.empty("Nothing to draw", missing)
        return
    st.plotly_chart(figure(), key=key, config=CHART_CONFIG, alt=f"{title}. {note}")
