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

FILTER_KEYS = ("kv_audit_who", "kv_audit_action", "kv_audit_text")


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
    rows = data.commands(person.role, data.scope(person.role, chosen))
    if rows:
        table = _command_rows(rows)
        st.dataframe(table, hide_index=True, key="commands_table", column_config=tables.trace_column())
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
                "Trace": tables.trace_cell((row.traceparent or "").split("-")[1] if row.traceparent else None),
                "Id": short_id(row.id, 8),
            }
        )
    return pd.DataFrame(found)


def _audit() -> None:
    person, chosen = session.person(), session.filters()
    if person is None:
        return
    rows = data.audit(person.role, chosen.minutes)
    if not rows:
        notices.empty("Nothing was done", "No action in this time range. Choose a longer one above.")
        return
    shown = _filtered(rows)
    if not shown:
        notices.empty("Nothing matches", f"{plural(len(rows), 'action')} in this range, none like that.")
        return
    picked = tables.pick(
        shown,
        identity=lambda row: row.id,
        frame=_audit_rows,
        key="audit_table",
        of=tuple(session.value_of(key) for key in FILTER_KEYS),
        many=False,
    )
    if picked:
        _one(picked[0])
    else:
        st.caption(f"{plural(len(shown), 'action')}. Pick one to see what it changed, before and after.")


def _filtered(rows: Sequence[AuditView]) -> list[AuditView]:
    who_place, action_place, text_place = st.columns([1, 1, 2])
    who = who_place.selectbox(
        "Who", [session.ALL, *sorted({row.actor for row in rows})], key=FILTER_KEYS[0], format_func=_everybody
    )
    action = action_place.selectbox(
        "Action", [session.ALL, *sorted({row.action for row in rows})], key=FILTER_KEYS[1], format_func=_anything
    )
    text = (
        text_place.text_input("Search", key=FILTER_KEYS[2], placeholder="part of a target, reason or trace id")
        .strip()
        .lower()
    )
    return [
        row
        for row in rows
        if who in (session.ALL, row.actor)
        and action in (session.ALL, row.action)
        and any(text in str(part).lower() for part in (row.target, row.reason, row.trace_id))
    ]


def _everybody(name: str) -> str:
    return "everybody" if name == session.ALL else name


def _anything(name: str) -> str:
    return "any action" if name == session.ALL else name.replace("_", " ")


def _one(row: AuditView) -> None:
    with st.container(border=True):
        st.markdown(f"**{row.actor}** ({row.role}): {row.action.replace('_', ' ')} {row.target}")
        st.caption(f"{moment_text(row.at)} UTC: {row.reason}")
        before, after = row.before or {}, row.after or {}
        names = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
        if names:
            lines = [(name, _value(before.get(name)), _value(after.get(name))) for name in names]
            st.dataframe(pd.DataFrame(lines, columns=["What", "Before", "After"]), hide_index=True)
        else:
            st.caption("It changed no document.")
        cell = tables.trace_cell(row.trace_id)
        if cell.startswith(("http://", "https://")):
            st.link_button("Open its trace", cell, icon=":material/open_in_new:")
        elif row.trace_id:
            st.caption(f"trace {row.trace_id}")


def _value(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _audit_rows(rows: Sequence[AuditView]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "At (UTC)": moment_text(row.at),
                "Who": f"{row.actor} ({row.role})",
                "Action": row.action.replace("_", " "),
                "Target": row.target,
                "Reason": row.reason,
                "Trace": tables.trace_cell(row.trace_id),
            }
            for row in rows
        ]
    )
