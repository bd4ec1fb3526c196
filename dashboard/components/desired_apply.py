"""From a change of desired state to engines that run it: what it would evict, the diff, a reason, and watching."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from controlplane.errors import Conflict, ControlPlaneError
from controlplane.store.queries import DesiredView
from dashboard import control, data, session
from dashboard.components import notices, reason
from dashboard.components.follow import follow
from dashboard.components.live import live
from dashboard.desired import Whose, diff_lines, how_far, word_to_type
from dashboard.theme import BLUE, GREEN, GREY, VERMILLION, Look
from dashboard.wording import bytes_text, count_text, plural

STEPS = {
    "applied": Look(label="applied", color=GREEN, symbol="✔"),
    "refused": Look(label="refused", color=VERMILLION, symbol="✖"),
    "waiting": Look(label="waiting", color=BLUE, symbol="◔"),
    "silent": Look(label="silent", color=GREY, symbol="◌"),
}
MOST_FOLLOWED = 4


def review(whose: Whose, revision: int, document: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    """Open the dialog for a change made in the form."""
    session.forget("trial")

    def draw(person: session.Person) -> None:
        st.markdown(f"For **{whose.words}**, on top of revision {revision}:")

        def apply(why: str) -> int:
            return control.set_desired(person, whose, changes, why, revision)

        _decide(person, whose, {"changes": changes}, diff_lines(document, changes), "Apply", apply)

    _open("Review the change", draw)


def roll_back(target: DesiredView) -> None:
    """Open the dialog for going back to an earlier revision of the same scope."""
    session.forget("trial")
    whose = Whose(engine=target.engine_id, group=target.group_name)

    def draw(person: session.Person) -> None:
        st.markdown(f"**{whose.words}** would get what revision {target.revision} said, as a new revision.")

        def apply(why: str) -> int:
            return control.rollback(person, target.revision, why)

        _decide(person, whose, {"revision": target.revision}, None, "Roll back", apply)

    _open(f"Roll back to revision {target.revision}", draw)


def _open(title: str, draw: Callable[[session.Person], None]) -> None:
    def inside() -> None:
        person = session.person()
        if person is not None:
            draw(person)

    st.dialog(title, width="large")(inside)()


def _decide(
    person: session.Person,
    whose: Whose,
    asked: Mapping[str, Any],
    lines: Sequence[tuple[str, str, str]] | None,
    verb: str,
    apply: Callable[[str], int],
) -> None:
    trial = _trial(person, whose, asked)
    if trial is None:
        return
    if lines is None:
        lines = diff_lines(trial["before"], {name: after for name, (_, after) in trial["diff"].items()})
    if not lines:
        st.info("This is what is desired now: there is nothing to change.")
        return
    draw_diff(lines)
    evicted = _foreseen(person, whose, asked, trial)
    changed = {name: after for name, (_, after) in trial["diff"].items()}
    why = reason.form("apply_form", verb, icon=":material/check:", word=word_to_type(changed, evicted))
    if why is None:
        return
    try:
        revision = apply(why)
    except ControlPlaneError as error:
        notices.refused(error)
        if isinstance(error, Conflict):
            st.caption("Close this and look at the newest revision; then make your change again.")
        return
    session.remember("applying", (revision, whose))
    session.forget("trial")
    data.clear()
    st.rerun()


def _trial(person: session.Person, whose: Whose, asked: Mapping[str, Any]) -> dict[str, Any] | None:
    kept = session.recall("trial")
    if isinstance(kept, dict):
        return kept
    try:
        trial = control.try_desired(person, whose, **asked)
    except ControlPlaneError as error:
        notices.refused(error)
        return None
    session.remember("trial", trial)
    return trial


def _foreseen(person: session.Person, whose: Whose, asked: Mapping[str, Any], trial: Mapping[str, Any]) -> int:
    """Draw what would leave which engine; how many prefixes would be gone in all."""
    engines = trial["engines"]
    evicted = int(sum(row["estimate"]["evicted"] for row in engines))
    away = sum(row["estimate"]["leave_gpu"] for row in engines)
    if not engines:
        st.caption("No engine is reached by it yet.")
        return 0
    if evicted or away:
        st.warning(
            f"By the store, {plural(evicted, 'prefix', 'prefixes')} would be evicted and {count_text(away)} would "
            "leave the GPU.",
            icon=":material/warning:",
        )
    else:
        st.caption("By the store, nothing would be evicted.")
    st.dataframe(_per_engine(engines), hide_index=True)
    sent = [row for row in engines if row["command_id"]]
    for row in sent[:MOST_FOLLOWED]:
        follow(row["command_id"], key=f"foresee_{row['command_id']}")
    if len(sent) > MOST_FOLLOWED:
        st.caption(f"{plural(len(sent), 'engine')} were asked; all answers are under Audit.")
    if not sent and st.button("Ask the engines", icon=":material/science:", help="Exact, and it changes nothing."):
        try:
            session.remember("trial", control.try_desired(person, whose, ask=True, **asked))
        except ControlPlaneError as error:
            notices.refused(error)
            return evicted
        st.rerun(scope="fragment")
    return evicted


def _per_engine(engines: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    rows = []
    for row in engines:
        guess = row["estimate"]
        rows.append(
            {
                "Engine": row["engine_id"],
                "Evicted": ("at least " if guess["certainty"] == "floor" else "") + count_text(guess["evicted"]),
                "Tokens lost": count_text(guess["evicted_tokens"]),
                "Bytes freed": bytes_text(sum(guess["evicted_bytes_by_tier"].values())),
                "Leave the GPU": f"{count_text(guess['leave_gpu'])}, {bytes_text(guess['leave_gpu_bytes'])}",
                "Served so far": f"{count_text(guess['tokens_served'])} tokens",
                "Not asked": row["not_asked"] or "",
            }
        )
    return pd.DataFrame(rows)


def watch_applied() -> None:
    """The revision this tab applied, engine by engine, until it is dismissed."""
    applying = session.recall("applying")
    person = session.person()
    if person is None or not isinstance(applying, tuple):
        return
    revision, whose = applying

    def draw_progress() -> None:
        steps = how_far([engine.view for engine in data.engines(person.role)], revision, whose)
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
        left.markdown(f"**Applying revision {revision}** to {whose.words}")
        right.button("Dismiss", on_click=session.forget, args=("applying",), type="tertiary", key="applying_dismiss")
        live(draw_progress, every_seconds=1.0)


def draw_diff(lines: Sequence[tuple[str, str, str]]) -> None:
    """A change as before and after."""
    st.dataframe(pd.DataFrame(lines, columns=["Knob", "Now", "After"]), hide_index=True)
