"""What policies decided last, in words: a table, and one decision with all it knew and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from controlplane.steering.parameters import knobs_of
from controlplane.steering.policies.kinds import KINDS
from controlplane.steering.words import (
    changes_text,
    deeds_text,
    label_of,
    parameter_text,
    proposals_text,
    value_text,
    values_text,
)
from controlplane.store.queries import PolicyRunView
from dashboard.components import notices, tables
from dashboard.wording import moment_text


def draw(runs: Sequence[PolicyRunView], kinds: Mapping[str, str], engine: str | None) -> None:
    """The newest decisions, of one engine or of all, and the one that is picked. `kinds`: of each standing policy."""
    st.markdown("**Last decisions**")
    shown = [run for run in runs if engine in (None, run.engine_id)]
    if not shown:
        notices.empty("No decision yet", "A policy's decisions appear here, also when it decides to do nothing.")
        return
    picked = tables.pick(
        shown, identity=lambda run: run.id, frame=_run_rows, key="policy_runs", of=(engine,), many=False
    )
    if picked:
        _one_run(picked[0], kinds.get(picked[0].policy, ""))
    else:
        st.caption("Pick a decision to see all it knew, proposed, did and changed.")


def reason_text(run: PolicyRunView) -> str:
    """Why it decided so, in one line: its own sentence, or what it saw where it left none."""
    return run.error or str(run.inputs.get("why") or "") or values_text(_seen(run))


def _seen(run: PolicyRunView) -> dict[str, Any]:
    """What the decision was made from, without what it was set to then."""
    return {key: value for key, value in run.inputs.items() if key not in ("parameters", "why")}


def _one_run(run: PolicyRunView, kind: str) -> None:
    with st.container(border=True):
        st.markdown(f"**{run.policy}** decided {run.decision.replace('_', ' ')} at {moment_text(run.at)} UTC")
        knew, came = st.columns(2)
        with knew:
            if why := run.inputs.get("why"):
                st.markdown(f"Because: {why}")
            st.caption("What it knew")
            _facts({label_of(name): value_text(name, value) for name, value in _seen(run).items()})
            if parameters := run.inputs.get("parameters"):
                st.caption("What it was set to then")
                knobs = knobs_of(KINDS[kind]) if kind in KINDS else {}
                _facts({label_of(name): parameter_text(name, knobs.get(name), parameters[name]) for name in parameters})
        with came:
            st.caption("What came of it")
            _facts(
                {
                    "proposed": proposals_text(run.proposed),
                    "did": run.error or deeds_text(run.did),
                    "changed": changes_text(run.changed),
                }
            )
            with st.expander("As recorded", icon=":material/data_object:"):
                st.json({"inputs": run.inputs, "proposed": run.proposed, "did": run.did, "changed": run.changed})


def _facts(rows: dict[str, str]) -> None:
    """Names and values under each other; as text, so that they can be copied."""
    st.table(pd.DataFrame(rows.items(), columns=["", " "]), hide_index=True, hide_header=True, border="horizontal")


def _run_rows(runs: Sequence[PolicyRunView]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "At (UTC)": moment_text(run.at),
                "Policy": run.policy,
                "Engine": run.engine_id or "all",
                "Decision": run.decision.replace("_", " ") + (" (dry run)" if run.dry_run else ""),
                "Trigger": run.trigger,
                "Why": reason_text(run),
                "Inputs": values_text(_seen(run)),
                "Proposed": proposals_text(run.proposed),
                "Did": run.error or deeds_text(run.did),
                "Changed": changes_text(run.changed),
            }
            for run in runs
        ]
    )
