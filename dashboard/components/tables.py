"""Tables: rows that can be picked, and trace ids as links where a tracing backend is known."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import pandas as pd
import streamlit as st

from dashboard import session
from dashboard.control import settings
from dashboard.wording import DASH, byte_unit

Row = TypeVar("Row")


def pick(
    rows: Sequence[Row],
    *,
    identity: Callable[[Row], Hashable],
    frame: Callable[[Sequence[Row]], pd.DataFrame],
    key: str,
    of: tuple[Hashable, ...] = (),
    many: bool = True,
    height: int | None = None,
    columns: dict[str, Any] | None = None,
    sizes: Sequence[str] = (),
) -> list[Row]:
    """Draw a table whose rows can be picked; the rows that are.

    A tick is kept as a position, and rows move as data comes in: a tick would then stand for another row. So while
    one is ticked every row stays where it is (its values are new), and what is asked for otherwise (`of`: the order,
    the filters) begins without ticks. `sizes`: columns of bytes, shown in one unit.
    """
    name = f"{key}_{zlib.crc32(repr(of).encode())}" if of else key
    rows = _held(rows, identity, name) if _ticked(session.value_of(name)) else list(rows)
    session.hold_rows(key, name, rows)
    shown, size_columns = in_one_unit(frame(rows), sizes)
    state: Any = st.dataframe(
        shown,
        key=name,
        hide_index=True,
        on_select="rerun",
        selection_mode="multi-row" if many else "single-row",
        column_config={**trace_column(), **size_columns, **(columns or {})},
        height=height or "auto",
    )
    return [rows[position] for position in _ticked(state) if position < len(rows)]


def _ticked(state: Any) -> list[int]:
    return list(state.selection.rows) if state else []


def _held(rows: Sequence[Row], identity: Callable[[Row], Hashable], name: str) -> list[Row]:
    """The rows as they were drawn last, each as it is now; one that is gone as it was."""
    now = {identity(row): row for row in rows}
    held: list[Row] = session.held_rows(name)
    return [now.get(identity(row), row) for row in held] or list(rows)


def number_columns(*names: str) -> dict[str, Any]:
    """Columns of numbers: sorted as numbers, shown with separators."""
    return {name: st.column_config.NumberColumn(name, format="localized") for name in names}


def age_columns(*names: str) -> dict[str, Any]:
    """Columns of moments, shown as how long ago and sorted by time."""
    return {name: st.column_config.DatetimeColumn(name, format="distance") for name in names}


def in_one_unit(frame: pd.DataFrame, names: Sequence[str]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Columns of bytes as numbers of the unit that suits the largest of them: compared and sorted at a glance."""
    if not names or frame.empty:
        return frame, {}
    values = frame[list(names)].apply(pd.to_numeric)
    largest = values.max().max()
    factor, unit = byte_unit(0.0 if pd.isna(largest) else float(largest))
    shown = frame.assign(**{name: [_readable(value / factor) for value in values[name]] for name in names})
    return shown, {name: st.column_config.NumberColumn(f"{name} ({unit})", format="localized") for name in names}


def _readable(value: float) -> float:
    """One decimal; of what is less than one, two digits that count."""
    return round(value, 1) if abs(value) >= 1 or not value else float(f"{value:.2g}")


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
