"""Policies: what stands, what it decided last and from which inputs, and running, trying or pausing it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from controlplane.clock import utc_now
from controlplane.store.queries import PolicyRunView, PolicyView
from dashboard import control, data, session
from dashboard.components import notices, reason
from dashboard.components.live import guarded
from dashboard.wording import age_text, bytes_text, count_text, moment_text, seconds_text


def page() -> None:
    """Draw the page."""
    st.subheader("Policies")
    guarded(_policies)()


def _policies() -> None:
    person, chosen = session.person(), session.filters()
    if person is None:
        return
    standing, runs = data.policies(person.role)
    if not standing:
        notices.empty("No policies yet", "The control plane adds the standing ones when it starts.")
        return
    for policy in standing:
        mine = [run for run in runs if run.policy == policy.name]
        with st.container(border=True):
            _one(policy, mine, may_act=person.may_act)
    st.markdown("**Last decisions**")
    shown = [run for run in runs if chosen.engine in (None, run.engine_id)]
    if shown:
        st.dataframe(_run_rows(shown), hide_index=True, key="policy_runs")
    else:
        notices.empty("No decision yet", "A policy's decisions appear here, also when it decides to do nothing.")


def _one(policy: PolicyView, runs: Sequence[PolicyRunView], *, may_act: bool) -> None:
    title, last, act = st.columns([3, 3.2, 3.8], vertical_alignment="center")
    title.markdown(f"**{policy.name}** {_state(policy)}")
    title.caption(f"{policy.kind}: {inputs_text(policy.parameters) or 'no parameters'}")
    if runs:
        newest = runs[0]
        last.markdown(f"{newest.decision.replace('_', ' ')}, {age_text(newest.at, utc_now())}")
        last.caption(newest.error or inputs_text(_seen(newest)))
    else:
        last.caption("It has not run yet.")
    if may_act:
        with act, st.container(horizontal=True, horizontal_alignment="right"):
            _buttons(policy)


def _buttons(policy: PolicyView) -> None:
    name = policy.name
    if st.button("Dry run", key=f"dry_{name}", icon=":material/science:", help="Decide, and apply nothing."):
        reason.ask(
            f"Dry run of {name}",
            "It decides from what is known now and applies nothing.",
            "Dry run",
            _runner(name, True),
        )
    if st.button("Run now", key=f"run_{name}", icon=":material/play_arrow:", help="Decide and apply, also if paused."):
        reason.ask(
            f"Run {name} now", "It decides from what is known now and applies that.", "Run", _runner(name, False)
        )
    label = "Resume" if policy.paused else "Pause"
    if st.button(label, key=f"pause_{name}", icon=":material/pause:" if not policy.paused else ":material/resume:"):
        paused = not policy.paused

        def change(person: session.Person, why: str) -> str:
            control.pause_policy(person, name, why, paused=paused)
            return f"{name} is {'paused' if paused else 'running again'}."

        reason.ask(f"{label} {name}", "Until somebody changes it back.", label, change)


def _runner(name: str, dry_run: bool) -> Any:
    def run(person: session.Person, why: str) -> str:
        decisions = control.run_policy(person, name, why, dry_run=dry_run)
        told = ", ".join(f"{row.get('engine_id') or 'all'}: {row.get('decision')}" for row in decisions[:5])
        return f"{'Dry run of ' if dry_run else ''}{name}: {told or 'nothing to decide'}."

    return run


def _run_rows(runs: Sequence[PolicyRunView]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "At (UTC)": moment_text(run.at),
                "Policy": run.policy,
                "Engine": run.engine_id or "all",
                "Decision": run.decision.replace("_", " ") + (" (dry run)" if run.dry_run else ""),
                "Trigger": run.trigger,
                "Inputs": inputs_text(_seen(run)),
                "Proposed": json.dumps(run.proposed) if run.proposed else "nothing",
                "Did": run.error or inputs_text(run.did),
                "Changed": inputs_text(run.changed),
            }
            for run in runs
        ]
    )


def _state(policy: PolicyView) -> str:
    where = ", ".join(f"{key} {value}" for key, value in policy.scope.items())
    if policy.paused:
        until = f" until {moment_text(policy.paused_until)}" if policy.paused_until else ""
        return f"◌ paused{until} {where}"
    if policy.cron:
        return f"▶ {policy.cron} ({policy.time_zone}) {where}"
    return f"▶ {f'every {seconds_text(policy.every_seconds)}' if policy.every_seconds else 'on events'} {where}"


def _seen(run: PolicyRunView) -> dict[str, Any]:
    """What the decision was made from; the parameters as they were then stand in `kvdeck policy why`."""
    return {key: value for key, value in run.inputs.items() if key != "parameters"}


def inputs_text(values: Mapping[str, Any]) -> str:
    """Named values in one line, each in its unit."""
    parts = []
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            text = json.dumps(value) if isinstance(value, list | dict) else "–" if value is None else str(value)
        elif name.endswith("bytes"):
            text = bytes_text(value)
        elif name.endswith(("_seconds", "_s")):
            text, name = seconds_text(value), name.removesuffix("_seconds").removesuffix("_s")
        else:
            text = count_text(value) if isinstance(value, int) else f"{value:,.3g}"
        parts.append(f"{name.replace('_', ' ')} {text}")
    return ", ".join(parts)
