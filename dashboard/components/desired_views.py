"""Desired state on screen: beside what runs, and its history with the way back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from controlplane.store.queries import DesiredView
from dashboard import data, session
from dashboard.components import desired_apply, notices, tables
from dashboard.desired import LABELS, Whose, diff_lines, knob_text
from dashboard.readings import EngineNow
from dashboard.theme import ENGINE_HEALTH
from dashboard.wording import moment_text

MOST_TABLES = 6  # of more engines, one row each: which of them does not run what is desired


def desired_beside_observed() -> None:
    """One table an engine: each knob desired, observed, and whether they agree. Of a fleet, one row an engine."""
    person = session.person()
    if person is None:
        return
    engines = data.engines_in(person.role, session.filters())
    if not engines:
        notices.empty("No engine", "Desired state can be set now; engines take it when they register.")
        return
    wanted = data.effective(person.role)
    if len(engines) > MOST_TABLES:
        st.dataframe(_fleet_rows(engines, wanted), hide_index=True, key="knobs_of_fleet")
        st.caption("Choose an engine above to see each of its knobs, desired beside what runs.")
        return
    for columns_of in (engines[start : start + 2] for start in range(0, len(engines), 2)):
        for place, engine in zip(st.columns(2), columns_of, strict=False):
            with place, st.container(border=True):
                _one_engine(engine, wanted.get(engine.view.id, {}))


def _fleet_rows(engines: Sequence[EngineNow], wanted: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """One row an engine, those that differ first: what it runs otherwise than desired, in words."""
    rows = []
    for engine in engines:
        view, look = engine.view, ENGINE_HEALTH[engine.health]
        knobs = _knobs(wanted.get(view.id, {}), view.observed)
        apart = [f"{row.Knob}: {row.Runs}, not {row.Desired}" for row in knobs.itertuples() if row.Agree == "≠"]
        refused = [f"refused: {view.observed['error']}"] if view.observed.get("error") else []
        rows.append(
            {
                "Engine": view.id,
                "Health": f"{look.symbol} {look.label}",
                "Runs revision": view.observed_revision,
                "Desired": view.desired_revision,
                "Differs": "; ".join([*refused, *apart]) or "✔ in nothing",
                "agrees": not (refused or apart or view.sync == "behind"),
            }
        )
    return pd.DataFrame(rows).sort_values("agrees", kind="stable").drop(columns="agrees")


def _one_engine(engine: EngineNow, wanted: Mapping[str, Any]) -> None:
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
    st.dataframe(_knobs(wanted, view.observed), hide_index=True, key=f"knobs_{view.id}", height="content")


def _knobs(wanted: Mapping[str, Any], observed: Mapping[str, Any]) -> pd.DataFrame:
    rows = []
    for name, label in LABELS.items():
        desired, runs = wanted.get(name), observed.get(name)
        if name == "mode_expires_at":  # no engine reports it: the control plane ends the hold
            if desired is not None:
                rows.append({"Agree": "", "Knob": label, "Desired": knob_text(name, desired), "Runs": ""})
            continue
        agree = "✔" if desired is None or desired == runs else "≠"
        rows.append({"Agree": agree, "Knob": label, "Desired": knob_text(name, desired), "Runs": knob_text(name, runs)})
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
    picked = tables.pick(
        rows,
        identity=lambda row: row.revision,
        frame=_revision_rows,
        key="revisions_table",
        of=(chosen.engine,),
        many=False,
    )
    if not picked or not person.may_act:
        if person.may_act:
            st.caption("Pick a revision to roll back to it.")
        return
    (chosen_row,) = picked
    if st.button(f"Roll back to revision {chosen_row.revision}", icon=":material/undo:"):
        desired_apply.roll_back(chosen_row)


def _revision_rows(rows: Sequence[DesiredView]) -> pd.DataFrame:
    ordered = []
    for position, row in enumerate(rows):
        before = next((older for older in rows[position + 1 :] if _whose(older) == _whose(row)), None)
        old = before.document if before else {}
        changed = {name: row.document.get(name) for name in LABELS if row.document.get(name) != old.get(name)}
        ordered.append(
            {
                "Revision": row.revision,
                "At (UTC)": moment_text(row.at),
                "For": _whose(row).words,
                "Change": "; ".join(f"{name}: {was} → {now}" for name, was, now in diff_lines(old, changed)) or "none",
                "By": row.actor,
                "Reason": row.reason,
                "Trace": tables.trace_cell(row.trace_id),
            }
        )
    return pd.DataFrame(ordered)


def _whose(row: DesiredView) -> Whose:
    return Whose(engine=row.engine_id, group=row.group_name)
