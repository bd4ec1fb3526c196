"""What only the engine knows of one prefix: its leases and slot generations. Asked for by a person, once a click."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

import pandas as pd
import streamlit as st

from controlplane.clock import utc_now
from controlplane.errors import ControlPlaneError
from controlplane.steering.commands import ASK_SECONDS, TERMINAL
from controlplane.store.queries import CommandView
from dashboard import control, data, session
from dashboard.components import notices
from dashboard.components.live import live
from dashboard.theme import kind_look, tier_look
from dashboard.wording import DASH, age_text, bytes_text, count_text, moment_text, plural, seconds_text

CURRENT = {True: "✔ yes", False: "✖ stale", None: DASH}
WHY_NOT = {
    "unknown_prefix": "The engine does not hold this prefix any more.",
    "engine_silent": "The engine was not heard of: see the Fleet page.",
    "engine_left": "The engine said goodbye: nobody is there to ask.",
    "not_taken_in_time": f"The engine did not fetch the question within {ASK_SECONDS} seconds: see the Fleet page.",
    "cancelled": "The question was cancelled.",
}


def part(engine: str, prefix_id: str) -> None:
    """The button, and below it the newest answer that this tab asked for."""
    person = session.person()
    if person is None:
        return
    st.markdown("**Leases and generations**", help="They change with every request, so the store does not have them.")
    if not person.may_act:
        notices.empty("An operator can ask the engine", "It costs the engine a command, so a viewer cannot.")
        return
    key = f"inspect:{engine}/{prefix_id}"
    if st.button("Ask the engine", icon=":material/frame_inspect:", key="inspect", help="It changes nothing."):
        try:
            session.remember(key, control.inspect(person, engine, prefix_id))
        except ControlPlaneError as error:
            session.forget(key)
            notices.refused(error)
            return
    command_id = session.recall(key)
    if not isinstance(command_id, str):
        return

    def draw() -> None:
        command = data.command(person.role, command_id)
        if command.status in TERMINAL:
            session.remember(f"inspected:{command_id}", True)
        _draw(command)

    ended = session.recall(f"inspected:{command_id}") is not None
    live(draw, every_seconds=None if ended else 1.0)


def _draw(command: CommandView) -> None:
    now = utc_now()
    if command.status not in TERMINAL:
        late = f" It has not answered within {ASK_SECONDS} seconds." if now > command.expires_at else ""
        st.caption(f"Asked {age_text(command.created_at, now)}, waiting for the engine.{late}")
        return
    if command.status != "succeeded":
        st.warning(f"**No answer.** {why_not(command.status, command.outcome)}", icon=":material/help:")
        return
    said = command.outcome
    st.caption(summary_text(said, now))
    left, right = st.columns([2, 3])
    with left:
        if said["leases"]:
            st.dataframe(leases_frame(said), hide_index=True, key="leases_table")
        else:
            notices.empty("No lease", "No request was reading it.")
    with right:
        st.dataframe(objects_frame(said), hide_index=True, key="generations_table")


def why_not(status: str, outcome: Mapping[str, Any]) -> str:
    """Why there is no answer, as a sentence."""
    reason = str(outcome.get("reason") or outcome.get("error") or "")
    return next((text for word, text in WHY_NOT.items() if word in reason), f"The command {status}: {reason or DASH}.")


def summary_text(said: Mapping[str, Any], now: dt.datetime) -> str:
    """As of when it is, and what holds the prefix, as one line."""
    at = _moment(said["at_unix_s"])
    parts = [f"As of **{moment_text(at)} UTC** ({age_text(at, now)})", f"version {said['version']}"]
    shown = len(said["oldest_leases"])
    parts.append(plural(said["leases"], "lease") + (f", the oldest {shown}" if shown < said["leases"] else ""))
    pinned = said["pinned_until_unix_s"]
    parts.append(f"pinned until {moment_text(_moment(pinned))} UTC" if pinned else "not pinned")
    if said["busy"]:
        parts.append("its bytes are being copied")
    if said["checkpoints_told"] < said["checkpoints"]:
        parts.append(f"the deepest {said['checkpoints_told']} of {said['checkpoints']:,} checkpoints")
    return " · ".join(parts)


def leases_frame(said: Mapping[str, Any]) -> pd.DataFrame:
    """A row a lease, oldest first."""
    return pd.DataFrame(
        [
            {
                "Lease": str(row["lease_id"]),
                "Age": seconds_text(row["age_s"]),
                "Ends in": seconds_text(row["left_s"]) if row["left_s"] > 0 else "past its deadline",
                "Usable tokens": count_text(row["usable_tokens"]),
                "Pointers current": CURRENT[row["current"]],
            }
            for row in said["oldest_leases"]
        ]
    )


def objects_frame(said: Mapping[str, Any]) -> pd.DataFrame:
    """A row an object and tier."""
    return pd.DataFrame(
        [
            {
                "Object": kind_look(row["kind"]).label,
                "At": "pages" if row["boundary"] is None else f"checkpoint {count_text(row['boundary'])}",
                "Tier": tier_look(row["tier"]).label if row["tier"] else "missing",
                "Slots": count_text(row["pages"]),
                "Bytes": bytes_text(row["bytes"]),
                "Generation": _generation(row["generation_min"], row["generation_max"]),
                "Pointer current": CURRENT[row["current"]],
                "Codec": row["codec"] or DASH,
            }
            for row in said["objects"]
        ]
    )


def _generation(first: int | None, last: int | None) -> str:
    if first is None or last is None:
        return DASH
    return str(first) if first == last else f"{first} to {last}"


def _moment(unix_s: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(unix_s, dt.UTC)
