"""Tables: rows that can be picked, and trace ids as links where a tracing backend is known."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from dashboard.control import settings
from dashboard.wording import DASH


def picked_rows(
    frame: pd.DataFrame,
    *,
    key: str,
    many: bool = True,
    height: int | None = None,
    columns: dict[str, Any] | None = None,
) -> list[int]:
    """Draw a table whose rows can be picked; the positions of those that are."""
    state: Any = st.dataframe(
        frame,
        key=key,
        hide_index=True,
        on_select="rerun",
        selection_mode="multi-row" if many else "single-row",
        column_config={**trace_column(), **(columns or {})},
        height=height or "auto",
    )
    return [position for position in state.selection.rows if position < len(frame)]


def number_columns(*names: str) -> dict[str, Any]:
    """Columns of numbers: sorted as numbers, shown with separators."""
    return {name: st.column_config.NumberColumn(name, format="localized") for name in names}


def age_columns(*names: str) -> dict[str, Any]:
    """Columns of moments, shown as how long ago and sorted by time."""
    return {name: st.column_config.DatetimeColumn(name, format="distance") for name in names}


def size_columns(*names: str) -> dict[str, Any]:
    """Columns of bytes: sorted as numbers, shown with a unit that fits."""
    return {name: st.column_config.NumberColumn(name, format="bytes") for name in names}


def trace_cell(trace_id: str | None) -> str:
    """A trace id, as the address of its page if a tracing backend is set (KVDECK_TRACE_URL)."""
    if not trace_id:
        return DASH
    url = settings().trace_url
    return url.replace("{trace_id}", trace_id) if url else trace_id


def trace_column() -> dict[str, Any]:
    """How the column "Trace" is drawn: a link that shows the id, or the plain id."""
    url = settings().trace_url
    if not url:
        return {"Trace": st.column_config.TextColumn("Trace", help="Set KVDECK_TRACE_URL to make ids links.")}
    return {"Trace": st.column_config.LinkColumn("Trace", display_text=r"([0-9a-f]{12})[0-9a-f]{20}")}
