"""Policies: what stands, what it decided last and from which inputs, and running, trying or pausing it."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from controlplane.clock import utc_now
from controlplane.steering.policies.when import When
from controlplane.store.queries import PolicyRunView, PolicyView
from dashboard import data, session
from dashboard.components import notices, policy_actions, tables
from dashboard.components.live import guarded
from dashboard.wording import age_text, bytes_text, clock_text, count_text, moment_text, seconds_text


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
        picked = tables.pick(
            shown,
            identity=lambda run: run.id,
            frame=_run_rows,
            key="policy_runs",
            of=(chosen.engine,),
            many=False,
        )
        if picked:
            _one_run(picked[0])
        else:
            st.caption("Pick a decision to see all it knew, proposed, did and changed.")
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
    if coming := _next(policy, runs):
        last.caption(f"Next: {coming}")
    with act, st.container(horizontal=True, horizontal_alignment="right"):
        policy_actions.why_button(policy)
        if may_act:
            policy_actions.buttons(policy)


def _next(policy: PolicyView, runs: Sequence[PolicyRunView]) -> str:
    """When it runs next by itself; an interval is counted from its last run, as its beat starts with the leader."""
    if policy.paused:
        return ""
    if policy.cron:
        times = When(cron=policy.cron, time_zone=policy.time_zone).next_times(utc_now(), 2)
        return ", ".join(f"{moment_text(at)} UTC" for at in times)
    by_itself = next((run.at for run in runs if run.trigger == "schedule"), None)
    if policy.every_seconds is None or by_itself is None:
        return ""
    coming = by_itself + dt.timedelta(seconds=policy.every_seconds)
    return f"about {clock_text(coming)}" if coming > utc_now() else "due"


def _one_run(run: PolicyRunView) -> None:
    with st.container(border=True):
        st.markdown(f"**{run.policy}** decided {run.decision.replace('_', ' ')} at {moment_text(run.at)} UTC")
        parts = {"Knew": run.inputs, "Proposed": run.proposed, "Did": run.did, "Changed": run.changed}
        for place, (title, value) in zip(st.columns(len(parts)), parts.items(), strict=True):
            with place:
                st.caption(title)
                st.json(value, expanded=1)


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
