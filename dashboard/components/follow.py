"""Following what was asked for until it ends: a command's progress and outcome."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from controlplane.clock import utc_now
from controlplane.errors import ControlPlaneError, NotFound
from controlplane.steering.commands import TERMINAL
from controlplane.store.queries import CommandView
from dashboard import control, data, session
from dashboard.components import notices
from dashboard.components.live import live
from dashboard.theme import BLUE, GREEN, GREY, ORANGE, VERMILLION, Look
from dashboard.wording import age_text, bytes_text, count_text, plural, short_id

STATUSES = {
    "pending": Look(label="pending", color=GREY, symbol="◌", help="waits for the engine to fetch it"),
    "delivered": Look(label="delivered", color=BLUE, symbol="◔", help="the engine has it"),
    "running": Look(label="running", color=BLUE, symbol="◑", help="the engine works on it"),
    "succeeded": Look(label="succeeded", color=GREEN, symbol="✔", help="done"),
    "failed": Look(label="failed", color=VERMILLION, symbol="✖", help="tried, and not done"),
    "refused": Look(label="refused", color=ORANGE, symbol="⊘", help="the engine would not"),
    "expired": Look(label="expired", color=ORANGE, symbol="◷", help="nobody took it in time"),
    "cancelled": Look(label="cancelled", color=GREY, symbol="○", help="stopped before it was taken"),
}


_COUNTED = ("evicted", "warmed", "pinned", "unpinned", "restored", "offloaded", "compressed")
_TOLD = {*_COUNTED, "bytes", "failed", "refused", "reason", "error"}


def outcome_text(kind: str, outcome: Mapping[str, Any]) -> str:
    """A command's outcome as a sentence; whole numbers under other names follow as they are."""
    if "inspected" in outcome:  # the rest is tables, on the prefix's page
        return f"{outcome['state']}, version {outcome['version']}, {plural(outcome['leases'], 'lease')}"
    parts = [f"{name} {count_text(outcome[name])}" for name in _COUNTED if isinstance(outcome.get(name), int)]
    if outcome.get("bytes"):
        parts.append(bytes_text(outcome["bytes"]))
    failed = outcome.get("failed")
    if failed:
        parts.append(f"{len(failed) if isinstance(failed, list) else failed} failed")
    refused = outcome.get("refused")
    if isinstance(refused, list) and refused:
        reasons = sorted({str(row.get("reason")) for row in refused if isinstance(row, dict)})
        parts.append(f"{plural(len(refused), 'prefix', 'prefixes')} refused ({', '.join(reasons)})")
    parts += [str(outcome[name]).replace("_", " ") for name in ("reason", "error") if outcome.get(name)]
    rest = {name: value for name, value in outcome.items() if name not in _TOLD and isinstance(value, int)}
    parts += [f"{name.replace('_', ' ')} {count_text(value)}" for name, value in rest.items()]
    return ", ".join(parts) or f"no details of this {kind}"


def progress_ratio(progress: Mapping[str, Any]) -> float | None:
    """How far a command is, 0 to 1, if it says so."""
    done, total = progress.get("done"), progress.get("total")
    if isinstance(done, int | float) and isinstance(total, int | float) and total > 0:
        return min(1.0, max(0.0, done / total))
    return None


def follow(command_id: str, *, key: str) -> None:
    """Draw one command now and every second, until it has ended."""
    person = session.person()
    if person is None:
        return

    def draw() -> None:
        try:
            command = data.command(person.role, command_id)
        except NotFound:
            notices.empty("Not there yet", "The store does not have this command yet.")
            return
        _draw(person, command, key)
        if command.status in TERMINAL and session.recall(f"ended:{command_id}") is None:
            # Pages around this part show what the command changed only once they are drawn again.
            session.remember(f"ended:{command_id}", True)
            data.clear()

    live(draw, every_seconds=1.0)


def _draw(person: session.Person, command: CommandView, key: str) -> None:
    look = STATUSES.get(command.status, Look(label=command.status, color=GREY))
    mark = notices.chip(look.label, symbol=look.symbol, color=look.color, title=look.help)
    now = utc_now()
    sent = f"{command.kind} on {command.engine_id}, sent {age_text(command.created_at, now)}"
    notices.line(f"{mark}{sent} · id {short_id(command.id, 8)}")
    if command.status not in TERMINAL:
        ratio = progress_ratio(command.progress)
        st.progress(ratio or 0.0, text=_waiting_text(command, ratio))
        if command.cancel_requested_at is not None:
            st.caption("Cancelling: it stops at its next step.")
        elif person.may_act:
            st.button("Cancel", key=f"{key}_cancel", on_click=_cancel, args=(person, command.id))
        return
    text = outcome_text(command.kind, command.outcome)
    show = st.success if command.status == "succeeded" else st.warning if command.status == "cancelled" else st.error
    show(f"**{look.label.capitalize()}**: {text}")


def _waiting_text(command: CommandView, ratio: float | None) -> str:
    if ratio is not None:
        return f"{count_text(command.progress['done'])} of {count_text(command.progress['total'])}"
    return {
        "pending": "Waiting for the engine to fetch it",
        "delivered": "The engine has it",
    }.get(command.status, "The engine works on it")


def _cancel(person: session.Person, command_id: str) -> None:
    try:
        control.cancel(person, command_id, "cancelled from the dashboard")
        session.leave_notice("It is cancelled, or stops at its next step.")
    except ControlPlaneError as error:
        session.leave_notice(f"Not cancelled: {error.message}")


def tray() -> None:
    """The commands this tab sent and still follows, for when their dialogs were closed."""
    items = session.watched()
    if not items:
        return
    with st.expander(f"Your last {plural(len(items), 'command')}", expanded=True, icon=":material/send:"):
        for item in items:
            with st.container(border=True):
                left, right = st.columns([8, 1])
                with left:
                    st.markdown(f"**{item.title}**")
                    follow(item.id, key=f"tray_{item.id}")
                right.button(
                    "Dismiss", key=f"tray_drop_{item.id}", on_click=session.unwatch, args=(item.id,), type="tertiary"
                )
