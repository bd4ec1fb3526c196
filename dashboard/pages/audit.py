"""Audit: who did what and why, and the commands with their outcomes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pandas as pd
import streamlit as st

from controlplane.store.queries import AuditView, CommandView
from dashboard import data, session
from dashboard.components import notices, tables
from dashboard.components.follow import STATUSES, outcome_text
from dashboard.components.live import live
from dashboard.wording import moment_text, plural, short_id


def page() -> None:
    """Draw the page."""
    st.subheader("Commands")
    live(_commands)
    st.subheader("Audit")
    live(_audit)


def _commands() -> None:
    person, chosen = session.person(), session.filters()
    if person is None:
        return
    rows = data.commands(person.role, chosen.engine)
    if rows:
        st.dataframe(_command_rows(rows), hide_index=True, key="commands_table")
    else:
        notices.empty("No commands yet", "Evict, warm, pin and the others appear here with their outcomes.")


def _command_rows(rows: Sequence[CommandView]) -> pd.DataFrame:
    found = []
    for row in rows:
        look = STATUSES.get(row.status)
        count = len(row.arguments.get("prefix_ids") or ())
        found.append(
            {
                "Sent (UTC)": moment_text(row.created_at),
                "Command": row.kind,
                "On": f"{row.engine_id}, {plural(count, 'prefix', 'prefixes')}" if count else row.engine_id,
                "Status": f"{look.symbol} {look.label}" if look else row.status,
                "Outcome": outcome_text(row.kind, row.outcome) if row.finished_at else "",
                "By": row.actor,
                "Reason": row.reason,
                "Ended (UTC)": moment_text(row.finished_at),
                "Id": short_id(row.id, 8),
            }
        )
    return pd.DataFrame(found)


def _audit() -> None:
    person, chosen = session.person(), session.filters()
    if person is None:
        return
    rows = data.audit(person.role, chosen.minutes)
    if rows:
        st.dataframe(_audit_rows(rows), hide_index=True, key="audit_table", column_config=tables.trace_column())
    else:
        notices.empty("Nothing was done", "No action in this time range. Choose a longer one above.")


def _audit_rows(rows: Sequence[AuditView]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "At (UTC)": moment_text(row.at),
                "Who": f"{row.actor} ({row.role})",
                "Action": row.action,
                "Target": row.target,
                "Reason": row.reason,
                "Before": _document(row.before),
                "After": _document(row.after),
                "Trace": tables.trace_cell(row.trace_id),
            }
            for row in rows
        ]
    )


def _document(value: dict[str, Any] | None) -> str:
    return "" if value is None else json.dumps(value, sort_keys=True)
