"""One action on whatever a selector chooses, on many engines: the blast radius of each, a reason, an outcome each."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import pandas as pd
import streamlit as st

from controlplane.errors import ControlPlaneError
from dashboard import control, data, session
from dashboard.components import actions, notices, reason
from dashboard.components.follow import STATUSES, outcome_text
from dashboard.components.live import live
from dashboard.desired import word_to_type
from dashboard.wording import bytes_text, count_text, plural

KINDS = ("evict", "warm", "pin", "offload", "compress")
ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "pin": {"ttl_s": 3600},
    "warm": {"max_bytes": 1 << 30},
    "offload": {"tier": "host"},
}
ANY = "any"


def button() -> None:
    """The way in, for a person who may act."""
    person = session.person()
    if person is None or not person.may_act:
        return
    if st.button("Act on a selection", icon=":material/checklist:", key="batch_open"):
        for name in ("batch_preview", "batch_sent"):
            session.forget(name)
        st.dialog("Act on a selection", width="large")(_dialog)()


def _dialog() -> None:
    person = session.person()
    if person is None:
        return
    sent = session.recall("batch_sent")
    if isinstance(sent, str):
        _follow(person, sent)
        return
    kind, group, selector = _selector(person.role)
    arguments = ARGUMENTS.get(kind, {})
    if not selector:
        st.caption("Choose by something: a namespace, a state, how long idle, or how little it served.")
        return
    radius = _radius(person, kind, arguments, selector, group)
    if radius is None:
        return
    _draw(kind, radius)
    if not radius["prefixes"]:
        return
    word = word_to_type({}, radius["prefixes"] if kind == "evict" else 0)
    verb = f"{kind.capitalize()} {plural(radius['prefixes'], 'prefix', 'prefixes')}"
    why = reason.form("batch_form", verb, icon=actions.ICONS.get(kind), word=word)
    if why is None:
        return
    try:
        batch = control.submit_batch(person, kind, arguments, radius["selected"], group, why, radius["key"])
    except ControlPlaneError as error:
        notices.refused(error)
        return
    session.remember("batch_sent", batch)
    data.clear()
    st.rerun(scope="fragment")


def _selector(role: str) -> tuple[str, str | None, dict[str, Any]]:
    chosen = session.filters()
    groups = sorted({engine.view.group for engine in data.engines(role) if engine.view.group})
    first = st.columns(3)
    kind = first[0].selectbox("Do", KINDS, key="batch_kind")
    group = first[1].selectbox("On the engines of", [session.ALL, *groups], key="batch_group")
    spaces = [ANY, *data.namespaces(role)]
    space = first[2].selectbox(
        "Namespace",
        spaces,
        index=spaces.index(chosen.namespace) if chosen.namespace in spaces else 0,
        key="batch_namespace",
    )
    second = st.columns(3)
    idle = second[0].number_input("Idle for at least (minutes)", 0, 100_000, value=0, key="batch_idle")
    tier = second[1].selectbox("Holds bytes in", [ANY, "gpu", "host", "disk"], key="batch_tier")
    least = second[2].number_input(
        "Only the least useful", 0, 1000, value=0, key="batch_least", help="By tokens served a byte held; 0: all."
    )
    selector = {
        "namespace": None if space == ANY else space,
        "idle_s": idle * 60 or None,
        "tier": None if tier == ANY else tier,
        "least_useful": least or None,
    }
    wanted = {name: value for name, value in selector.items() if value is not None}
    return kind, None if group == session.ALL else group, wanted


def _radius(
    person: session.Person, kind: str, arguments: Mapping[str, Any], selector: Mapping[str, Any], group: str | None
) -> dict[str, Any] | None:
    """What it would touch, as it was when the person looked; `key` makes a second click the same batch."""
    asked = repr((kind, sorted(selector.items()), group))
    kept = session.recall("batch_preview")
    if isinstance(kept, tuple) and kept[0] == asked:
        found: dict[str, Any] = kept[1]
        return found
    try:
        radius = control.preview_batch(person, kind, arguments, selector, group)
    except ControlPlaneError as error:
        notices.refused(error)
        return None
    radius["key"] = secrets.token_hex(12)
    session.remember("batch_preview", (asked, radius))
    return radius


def _draw(kind: str, radius: Mapping[str, Any]) -> None:
    touched, tokens, size, leases = st.columns(4)
    touched.metric("Prefixes touched", count_text(radius["prefixes"]))
    tokens.metric("To compute again", f"{count_text(radius['refill_tokens'])} tokens")
    size.metric("Bytes held", bytes_text(sum(radius["bytes_by_tier"].values())))
    leases.metric("Leases there", count_text(radius["leases"]))
    if kind == "evict" and radius["descendants"]:
        st.warning(f"{plural(radius['descendants'], 'prefix', 'prefixes')} below them in the tree.")
    rows = [
        {
            "Engine": engine,
            "Prefixes": count_text(one["prefixes"]),
            "Bytes": bytes_text(sum(one["bytes_by_tier"].values())),
            "Matched": count_text(one["matched"]),
            "Left out": ", ".join(f"{count} {why.replace('_', ' ')}" for why, count in one["left_out"].items()),
        }
        for engine, one in radius["engines"].items()
    ]
    rows += [{"Engine": row["engine_id"], "Left out": row["why"]} for row in radius["skipped"]]
    if rows:
        st.dataframe(pd.DataFrame(rows).fillna(""), hide_index=True)


def _follow(person: session.Person, batch_id: str) -> None:
    def draw() -> None:
        batch = control.batch(person, batch_id)
        commands = batch["commands"]
        ended = sum(one["finished_at"] is not None for one in commands)
        st.progress(ended / len(commands), text=f"{ended} of {plural(len(commands), 'engine')} are done")
        rows = [
            {
                "Engine": one["engine_id"],
                "Status": f"{STATUSES[one['status']].symbol} {one['status']}" if one["status"] in STATUSES else "",
                "Outcome": outcome_text(one["kind"], one["outcome"]) if one["finished_at"] else "",
            }
            for one in commands
        ]
        st.dataframe(pd.DataFrame(rows), hide_index=True)
        if not batch["over"] and st.button("Cancel what is not done", key="batch_cancel"):
            reason.done(lambda: control.cancel_batch(person, batch_id, "cancelled from the dashboard"), "Cancelled.")

    live(draw, every_seconds=1.0)
    st.caption("You can close this: it goes on, and Audit shows each command.")
    if st.button("Close", key="batch_close"):
        st.rerun()
