"""What can be done with a standing policy: dry run, run now, pause, tune, and ask why it did what it did."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

import streamlit as st

from controlplane.clock import utc_now
from controlplane.errors import ControlPlaneError
from controlplane.steering.parameters import Choice, Flag, Knob, Number, Texts, Whole, defaults_of, knobs_of
from controlplane.steering.policies.kinds import KINDS
from controlplane.steering.words import allowed_text, field_label, label_of, parameter_text, when_text
from controlplane.store.queries import PolicyView
from dashboard import control, data, session
from dashboard.components import notices, reason
from dashboard.wording import bytes_text, moment_text, parse_bytes

PAUSES = {"until somebody resumes it": None, "1 hour": 1, "4 hours": 4, "1 day": 24, "7 days": 168}
BEATS = ("every so many seconds", "by a cron expression", "on events only")


def buttons(policy: PolicyView) -> None:
    """The actions of a person who may act."""
    name = policy.name
    if st.button("Dry run", key=f"dry_{name}", icon=":material/science:", help="Decide, and apply nothing."):
        text = "It decides from what is known now and applies nothing."
        reason.ask(f"Dry run of {name}", text, "Dry run", _runner(name, True))
    if st.button("Run now", key=f"run_{name}", icon=":material/play_arrow:", help="Decide and apply, also if paused."):
        text = "It decides from what is known now and applies that."
        reason.ask(f"Run {name} now", text, "Run", _runner(name, False))
    if policy.paused:
        if st.button("Resume", key=f"pause_{name}", icon=":material/resume:"):
            reason.ask(f"Resume {name}", "It runs by itself again.", "Resume", _changer(name, {"paused": False}))
    elif st.button("Pause", key=f"pause_{name}", icon=":material/pause:"):
        st.dialog(f"Pause {name}")(_pause)(name)
    if st.button("Tune", key=f"tune_{name}", icon=":material/tune:", help="Its parameters, and when it runs."):
        st.dialog(f"Tune {name}", width="large")(_tune)(policy)


def _runner(name: str, dry_run: bool) -> Any:
    def run(person: session.Person, why: str) -> str:
        decisions = control.run_policy(person, name, why, dry_run=dry_run)
        told = ", ".join(f"{row.get('engine_id') or 'all'}: {row.get('decision')}" for row in decisions[:5])
        return f"{'Dry run of ' if dry_run else ''}{name}: {told or 'nothing to decide'}."

    return run


def _changer(name: str, changes: Mapping[str, Any]) -> Any:
    def change(person: session.Person, why: str) -> str:
        control.change_policy(person, name, why, **changes)
        return f"{name} is changed."

    return change


def _pause(name: str) -> None:
    hours = PAUSES[st.selectbox("For", list(PAUSES), key=f"pause_for_{name}")]
    if hours is None:
        changes: dict[str, Any] = {"paused": True}
    else:
        until = (utc_now() + dt.timedelta(hours=hours)).replace(microsecond=0)
        st.caption(f"It runs again by itself at {moment_text(until)} UTC.")
        changes = {"paused_until": until.isoformat()}
    _finish(f"pause_form_{name}", "Pause", name, changes)


def _tune(policy: PolicyView) -> None:
    rule = KINDS[policy.kind]
    st.markdown(" ".join((rule.__doc__ or "").split()))
    wanted: dict[str, Any] = {}
    problems: list[str] = []
    for name, knob in knobs_of(rule).items():
        value = policy.parameters.get(name, defaults_of(rule)[name])
        try:
            wanted[name] = _field(policy.name, name, knob, value)
        except ValueError as error:
            problems.append(f"{name}: {error}")
            continue
        if wrong := knob.wrong(wanted[name]):
            problems.append(f"{name} {wrong}")
    beat = _beat(policy)
    for problem in problems:
        st.error(problem, icon=":material/block:")
    standing = {name: policy.parameters.get(name, defaults_of(rule)[name]) for name in wanted}
    changed = {name: value for name, value in wanted.items() if value != _plain(standing[name])}
    changes = {**({"parameters": changed} if changed else {}), **beat}
    for line in _told(policy, standing, changed, beat):
        st.markdown(line)
    if not changes or problems:
        st.caption("Change something above; what will be sent is listed here.")
        return
    _finish(f"tune_form_{policy.name}", "Change", policy.name, changes)


def _told(
    policy: PolicyView, standing: Mapping[str, Any], changed: Mapping[str, Any], beat: Mapping[str, Any]
) -> list[str]:
    """What will be sent, a line a change: what it was and what it is to be."""
    knobs = knobs_of(KINDS[policy.kind])
    lines = []
    for name, value in changed.items():
        was, now = (parameter_text(name, knobs[name], one) for one in (standing[name], value))
        lines.append(f"**{label_of(name)}**: {was} → {now}")
    if beat:
        times: dict[str, Any] = {name: getattr(policy, name) for name in ("every_seconds", "cron", "time_zone")}
        lines.append(f"**runs**: {when_text(**times)} → {when_text(**{**times, **beat})}")
    return lines


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _field(policy: str, name: str, knob: Knob, value: Any) -> Any:
    """A widget that fits the parameter's type, and what it says. Raises ValueError for a text that cannot be read."""
    key, label = f"tune_{policy}_{name}", field_label(name, knob)
    help_text = f"{knob.meaning} Allowed: {allowed_text(knob)}."
    match knob:
        case Flag():
            return st.toggle(label, value=bool(value), key=key, help=help_text)
        case Choice():
            return st.selectbox(label, list(knob.of), index=list(knob.of).index(value), key=key, help=help_text)
        case Whole(unit="bytes"):
            text = st.text_input(label, value=bytes_text(value), key=key, help=help_text)
            return value if text == bytes_text(value) else parse_bytes(text)
        case Whole():
            return int(st.number_input(label, knob.least, knob.most, value=int(value), step=1, key=key, help=help_text))
        case Number(unit=unit) if unit.startswith("as a share"):
            shown = round(value * 100, 6)
            percent = st.number_input(
                label, knob.least * 100.0, knob.most * 100.0, value=shown, format="%g", key=key, help=help_text
            )
            return value if percent == shown else round(percent / 100, 8)
        case Number():
            typed = st.number_input(
                label, float(knob.least), float(knob.most), value=float(value), format="%g", key=key, help=help_text
            )
            return type(value)(typed) if isinstance(value, int) and typed == int(typed) else float(typed)
        case Texts():
            text = st.text_area(f"{label} (one a line)", value="\n".join(value), key=key, help=help_text)
            return [line.strip() for line in text.splitlines() if line.strip()]
        case _:
            return st.text_input(label, value=str(value), key=key, help=help_text).strip()


def _beat(policy: PolicyView) -> dict[str, Any]:
    """When it runs, as changes; empty for as before."""
    index = 1 if policy.cron else 0 if policy.every_seconds else 2
    chosen = st.radio("It runs", BEATS, index=index, horizontal=True, key=f"beat_{policy.name}")
    wanted: dict[str, Any] = {"every_seconds": None, "cron": None}
    if chosen == BEATS[0]:
        wanted["every_seconds"] = int(
            st.number_input("Seconds", 1, 604_800, value=policy.every_seconds or 60, key=f"every_{policy.name}")
        )
    elif chosen == BEATS[1]:
        left, right = st.columns(2)
        wanted["cron"] = left.text_input(
            "Cron", value=policy.cron or "30 6 * * mon-fri", key=f"cron_{policy.name}", help="minute hour day month day"
        ).strip()
        wanted["time_zone"] = right.text_input("Time zone", value=policy.time_zone, key=f"zone_{policy.name}").strip()
    return {name: value for name, value in wanted.items() if value != getattr(policy, name)}


def _finish(key: str, verb: str, name: str, changes: Mapping[str, Any]) -> None:
    person = session.person()
    why = reason.form(key, verb)
    if why is None or person is None:
        return
    if reason.done(lambda: _changer(name, changes)(person, why)):
        st.rerun()


def why_button(policy: PolicyView) -> None:
    """Anybody may ask what a policy had decided at a moment, and why."""
    if st.button("Why?", key=f"why_{policy.name}", icon=":material/help:", help="What it had decided at a moment."):
        st.dialog(f"Why {policy.name} did what it did", width="large")(_why)(policy.name)


def _why(name: str) -> None:
    person = session.person()
    if person is None:
        return
    now = utc_now().replace(second=0, microsecond=0, tzinfo=None)
    at = st.datetime_input("At (UTC)", value=now, key=f"why_at_{name}")
    moment = (at or now).replace(tzinfo=dt.UTC) + dt.timedelta(seconds=59)
    try:
        found = data.policy_why(person.role, name, moment, session.filters().engine)
    except ControlPlaneError as error:
        notices.empty(error.message, error.hint)
        return
    if not found.answers:
        notices.empty("No decision up to then", "It had not run yet.")
    for answer in found.answers:
        with st.container(border=True):
            for sentence in answer.words:
                st.markdown(sentence)
            if answer.acted:
                st.caption("It last acted before that:")
                for sentence in answer.acted_words:
                    st.markdown(sentence)
