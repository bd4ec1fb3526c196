"""Desired state on screen: beside what runs, and its history with the way back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import streamlit as st

from controlplane.errors import ControlPlaneError
from controlplane.store.queries import DesiredView
from dashboard import control, data, session
from dashboard.components import notices, tables
from dashboard.desired import LABELS, diff_lines, knob_text
from dashboard.readings import EngineNow
from dashboard.theme import ENGINE_HEALTH
from dashboard.wording import moment_text


def desired_beside_observed() -> None:
    """One table an engine: each knob desired, observed, and whether they agree."""
    person, chosen = session.person(), session.filters()
    if person is None:
        return
    engines = [e for e in data.engines(person.role) if chosen.engine in (None, e.view.id)]
    if not engines:
        notices.empty("No engine", "Desired state can be set now; engines take it when they register.")
        return
    for columns_of in (engines[start : start + 2] for start in range(0, len(engines), 2)):
        for place, engine in zip(st.columns(2), columns_of, strict=False):
            with place, st.container(border=True):
                _one_engine(person.role, engine)


def _one_engine(role: str, engine: EngineNow) -> None:
    view, look = engine.view, ENGINE_HEALTH[engine.health]
    st.markdown(f"**{view.id}** {look.symbol} {look.label}")
    if view.observed.get("error"):
        st.error(f"Refused: {view.observed['error']}", icon=":material/block:")
    if view.sync == "behind":
        st.caption(f"◔ runs revision {view.observed_revision}, {view.desired_revision} is desired")
    else:
        st.caption(
            f"{'✔' if view.sync == 'in_sync' else '✖'} revision {view.observed_revision} of {view.desired_revision}"
        )
    wanted = data.effective(role, view.id)
    st.dataframe(_knobs(wanted, view.observed), hide_index=True, key=f"knobs_{view.id}")


def _knobs(wanted: dict[str, Any], observed: dict[str, Any]) -> pd.DataFrame:
    rows = []
    for name, label in LABELS.items():
        desired, runs = wanted.get(name), observed.get(name)
        if name == "mode_expires_at":  # no engine reports it: the control plane ends the hold
            if desired is not None:
                rows.append({"Knob": label, "Desired": knob_text(name, desired), "Runs": "", "Agree": ""})
            continue
        agree = "✔" if desired is None or desired == runs else "≠"
        rows.append({"Knob": label, "Desired": knob_text(name, desired), "Runs": knob_text(name, runs), "Agree": agree})
    return pd.DataFrame(rows)


def history() -> None:
    """The newest revisions, and rolling back to one of them."""
    person, chosen = session.person(), session.filters()
    if person is None:
        return
    st.markdown("**Revisions**")
    rows = data.revisions(person.role, chosen.engine)
    if not rows:
        notices.empty("No revision yet", "Engines run with their own defaults.")
        return
    picked = tables.picked_rows(_revision_rows(rows), key="revisions_table", many=False)
    if not picked or not person.may_act:
        if person.may_act:
            st.caption("Pick a revision to roll back to it.")
        return
    chosen_row = rows[picked[0]]
    if st.button(f"Roll back to revision {chosen_row.revision}", icon=":material/undo:"):
        st.dialog(f"Roll back to revision {chosen_row.revision}", width="large")(_rollback)(
            chosen_row, _newest(rows, chosen_row)
        )


def _newest(rows: Sequence[DesiredView], like: DesiredView) -> DesiredView:
    """The newest revision of the same scope: what a rollback would replace."""
    return next(row for row in rows if row.engine_id == like.engine_id)


def _revision_rows(rows: Sequence[DesiredView]) -> pd.DataFrame:
    ordered = []
    for position, row in enumerate(rows):
        before = next((older for older in rows[position + 1 :] if older.engine_id == row.engine_id), None)
        old = before.document if before else {}
        changed = {name: row.document.get(name) for name in LABELS if row.document.get(name) != old.get(name)}
        ordered.append(
            {
                "Revision": row.revision,
                "At (UTC)": moment_text(row.at),
                "For": row.engine_id or "every engine",
                "Change": "; ".join(f"{name}: {was} → {now}" for name, was, now in diff_lines(old, changed)) or "none",
                "By": row.actor,
                "Reason": row.reason,
                "Trace": tables.trace_cell(row.trace_id),
            }
        )
    return pd.DataFrame(ordered)


def _rollback(target: DesiredView, newest: DesiredView) -> None:
    person = session.person()
    if person is None:
        return
    changed = {
        name: target.document.get(name) for name in LABELS if target.document.get(name) != newest.document.get(name)
    }
    lines = diff_lines(newest.document, changed)
    if not lines:
        st.info("This is what is desired now: there is nothing to roll back.")
        return
    draw_diff(lines)
    with st.form("rollback_form", border=False):
        reason = st.text_input("Reason (it goes into the audit)", max_chars=500)
        go = st.form_submit_button("Roll back", type="primary", icon=":material/undo:")
    if not go:
        return
    if not reason.strip():
        st.error("Write a reason first: whoever reads the audit will ask for it.", icon=":material/edit:")
        return
    try:
        revision = control.rollback(person, target.revision, reason.strip())
    except ControlPlaneError as error:
        notices.refused(error)
        return
    session.remember("applying", (revision, target.engine_id))
    data.clear()
    st.rerun()


def draw_diff(lines: Sequence[tuple[str, str, str]]) -> None:
    """A change as before and after."""
    st.dataframe(pd.DataFrame(lines, columns=["Knob", "Now", "After"]), hide_index=True)
