"""Changing desired state: a form, the diff, a reason, apply, and watching until every engine has it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

import streamlit as st

from controlplane.clock import utc_now
from controlplane.errors import Conflict, ControlPlaneError
from dashboard import control, data, session
from dashboard.components import notices
from dashboard.components.desired_views import draw_diff
from dashboard.components.live import live
from dashboard.desired import BYTE_KNOBS, LABELS, changes_of, diff_lines, how_far
from dashboard.theme import BLUE, GREEN, GREY, MODE_HELP, MODES, VERMILLION, Look
from dashboard.wording import bytes_text, parse_bytes

HOLDS = {"15 minutes": 15, "1 hour": 60, "4 hours": 240, "1 day": 1440, "7 days": 10_080}
UNSET = "not set"
STEPS = {
    "applied": Look(label="applied", color=GREEN, symbol="✔"),
    "refused": Look(label="refused", color=VERMILLION, symbol="✖"),
    "waiting": Look(label="waiting", color=BLUE, symbol="◔"),
    "silent": Look(label="silent", color=GREY, symbol="◌"),
}


def draw() -> None:
    """The form; its changes are shown as a diff before anything is sent."""
    person, chosen = session.person(), session.filters()
    if person is None:
        return
    scopes = [session.ALL, *(engine.view.id for engine in data.engines(person.role))]
    with st.container(border=True):
        st.markdown("**Change**")
        preset = scopes.index(chosen.engine) if chosen.engine in scopes else 0
        name = st.selectbox("For", scopes, index=preset, format_func=_scope_text, key="kv_desired_scope")
        scope = None if name == session.ALL else name
        mine = [row for row in data.revisions(person.role, scope) if row.engine_id == scope]
        document = mine[0].document if mine else {}
        revision = mine[0].revision if mine else 0
        wanted = _fields(scope or "fleet", revision, document)
    if wanted is None:
        return
    changes = changes_of(document, wanted)
    if not changes:
        st.warning("Nothing is changed: the form says what is desired already.")
        return
    st.dialog("Review the change", width="large")(_review)(scope, revision, document, changes)


def _scope_text(name: str) -> str:
    return "every engine" if name == session.ALL else name


def _fields(scope: str, revision: int, document: Mapping[str, Any]) -> dict[str, Any] | None:
    """The form's fields as a document once it is sent with sound values; otherwise None."""
    # The revision is in the keys: a form filled from an older document must not be sent against a newer one.
    key = f"kv_desired_{scope}_{revision}"
    with st.form(f"{key}_form", border=False):
        columns = st.columns(4)
        prefixes = columns[0].text_input(
            "Prefixes", value=f"{document.get('cap_prefixes') or '':,}" if document.get("cap_prefixes") else "",
            placeholder=UNSET, key=f"{key}_prefixes",
        )  # fmt: skip
        sizes = {}
        for place, name in zip(columns[1:], BYTE_KNOBS, strict=True):
            value = document.get(name)
            text = "" if value is None else bytes_text(value)
            sizes[name] = place.text_input(LABELS[name], value=text, placeholder=UNSET, key=f"{key}_{name}")
        mode_place, hold_place, _ = st.columns([2, 1, 1])
        options = [UNSET, *MODES]
        mode = mode_place.selectbox(
            "Mode",
            options,
            index=options.index(document.get("mode") or UNSET),
            format_func=lambda name: f"{name}: {MODE_HELP[name]}" if name in MODE_HELP else name,
            key=f"{key}_mode",
        )
        hold = hold_place.selectbox("Hold a degraded mode for", list(HOLDS), index=1, key=f"{key}_hold")
        st.caption("Empty: the engine's own default. Sizes as in 12 GiB.")
        if not st.form_submit_button("Review the change", icon=":material/difference:"):
            return None
    return _read(document, prefixes, sizes, mode, hold)


def _read(
    document: Mapping[str, Any], prefixes: str, sizes: Mapping[str, str], mode: str, hold: str
) -> dict[str, Any] | None:
    wanted: dict[str, Any] = {}
    try:
        wanted["cap_prefixes"] = int(prefixes.replace(",", "").strip()) if prefixes.strip() else None
    except ValueError:
        st.error(f"{prefixes!r} is not a whole number of prefixes.", icon=":material/block:")
        return None
    for name, text in sizes.items():
        kept = document.get(name)
        if kept is not None and text == bytes_text(kept):
            wanted[name] = kept  # not touched: what is shown is rounded, what is kept is not
            continue
        try:
            wanted[name] = parse_bytes(text)
        except ValueError as error:
            st.error(f"{LABELS[name]}: {error}", icon=":material/block:")
            return None
    wanted["mode"] = None if mode == UNSET else mode
    if wanted["mode"] not in (None, "normal") and wanted["mode"] != document.get("mode"):
        wanted["mode_expires_at"] = (utc_now() + dt.timedelta(minutes=HOLDS[hold])).replace(microsecond=0).isoformat()
    return wanted


def _review(scope: str | None, revision: int, document: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    person = session.person()
    if person is None:
        return
    st.markdown(f"For **{scope or 'every engine'}**, on top of revision {revision}:")
    draw_diff(diff_lines(document, changes))
    shrinks = [
        LABELS[name]
        for name, value in changes.items()
        if isinstance(value, int) and isinstance(document.get(name), int) and value < document[name]
    ]
    if shrinks:
        st.warning(f"Smaller: {', '.join(shrinks)}. Engines evict down to the new cap.", icon=":material/warning:")
    with st.form("apply_form", border=False):
        reason = st.text_input("Reason (it goes into the audit)", max_chars=500)
        go = st.form_submit_button("Apply", type="primary", icon=":material/check:")
    if not go:
        return
    if not reason.strip():
        st.error("Write a reason first: whoever reads the audit will ask for it.", icon=":material/edit:")
        return
    try:
        new_revision = control.set_desired(person, scope, changes, reason.strip(), revision)
    except ControlPlaneError as error:
        notices.refused(error)
        if isinstance(error, Conflict):
            st.caption("Close this and look at the newest revision; then make your change again.")
        return
    session.remember("applying", (new_revision, scope))
    data.clear()
    st.rerun()


def watch_applied() -> None:
    """The revision this tab applied, engine by engine, until it is dismissed."""
    applying = session.recall("applying")
    person = session.person()
    if person is None or not isinstance(applying, tuple):
        return
    revision, scope = applying

    def draw_progress() -> None:
        steps = how_far([engine.view for engine in data.engines(person.role)], revision, scope)
        done = sum(step.state == "applied" for step in steps)
        if not steps:
            notices.empty("No engine to apply it", "Engines take it when they register.")
            return
        st.progress(done / len(steps), text=f"{done} of {len(steps)} engines run revision {revision}")
        chips = []
        for step in steps:
            look = STEPS[step.state]
            chips.append(
                notices.chip(f"{step.engine} {look.label}: {step.detail}", symbol=look.symbol, color=look.color)
            )
        notices.line("".join(chips))

    with st.container(border=True):
        left, right = st.columns([8, 1])
        left.markdown(f"**Applying revision {revision}** to {scope or 'every engine'}")
        right.button("Dismiss", on_click=session.forget, args=("applying",), type="tertiary", key="applying_dismiss")
        live(draw_progress, every_seconds=1.0)
