"""Policies: what stands, what it decided last and from which inputs, and running, trying or pausing it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import streamlit as st

from controlplane.clock import utc_now
from controlplane.steering.parameters import knobs_of
from controlplane.steering.policies.kinds import KINDS
from controlplane.steering.policies.when import When
from controlplane.steering.words import label_of, parameters_text, when_text
from controlplane.store.queries import PolicyRunView, PolicyView
from dashboard import data, session
from dashboard.components import changed, decisions, notices, policy_actions
from dashboard.components.live import guarded
from dashboard.wording import age_text, clock_text, moment_text


def page() -> None:
    """Draw the page."""
    st.subheader("Policies")
    guarded(_policies)()


def _policies() -> None:
    person, chosen = session.person(), session.filters()
    if person is None:
        return
    standing, runs = data.policies(person.role)
    changed.notice("Policies have changed or decided", lambda: _state_of(*data.policies(person.role)), key="policies")
    if not standing:
        notices.empty("No policies yet", "The control plane adds the standing ones when it starts.")
        return
    for policy in standing:
        mine = [run for run in runs if run.policy == policy.name]
        with st.container(border=True):
            _one(policy, mine, may_act=person.may_act)
    decisions.draw(runs, {policy.name: policy.kind for policy in standing}, chosen.engine)


def _state_of(standing: Sequence[PolicyView], runs: Sequence[PolicyRunView]) -> tuple[object, ...]:
    newest = max((run.id for run in runs), default=0)
    return newest, *((policy.name, policy.paused, policy.paused_until, str(policy.parameters)) for policy in standing)


def _one(policy: PolicyView, runs: Sequence[PolicyRunView], *, may_act: bool) -> None:
    title, last, act = st.columns([3, 3.2, 3.8], vertical_alignment="center")
    title.markdown(f"**{policy.name}** {_state(policy)}")
    title.caption(_set_to(policy), help=_meanings(policy.kind))
    if runs:
        newest = runs[0]
        last.markdown(f"{newest.decision.replace('_', ' ')}, {age_text(newest.at, utc_now())}")
        last.caption(decisions.reason_text(newest))
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


def _state(policy: PolicyView) -> str:
    where = ", ".join(f"{key} {value}" for key, value in policy.scope.items())
    if policy.paused:
        until = f" until {moment_text(policy.paused_until)}" if policy.paused_until else ""
        return f"◌ paused{until} {where}"
    return f"▶ {when_text(policy.every_seconds, policy.cron, policy.time_zone)} {where}"


def _set_to(policy: PolicyView) -> str:
    """Its kind, unless its name says it, and what it is set to."""
    said = parameters_text(KINDS.get(policy.kind), policy.parameters) or "no parameters"
    return said if policy.name.replace("-", "_") == policy.kind else f"{policy.kind.replace('_', ' ')}: {said}"


def _meanings(kind: str) -> str | None:
    if kind not in KINDS:
        return None
    return "\n".join(f"- **{label_of(name)}**: {knob.meaning}" for name, knob in knobs_of(KINDS[kind]).items()) or None
