"""Changing desired state: for whom, a form of every knob, and from there to the review."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

import pandas as pd
import streamlit as st

from controlplane.clock import utc_now
from controlplane.steering.limits import EVICTIONS
from dashboard import data, session
from dashboard.components import desired_apply
from dashboard.desired import (
    BYTE_KNOBS,
    LABELS,
    NAMESPACE_COLUMNS,
    TYPED_KNOBS,
    Whose,
    changes_of,
    form_text,
    namespace_rows,
    read_knob,
    read_namespaces,
)
from dashboard.theme import MODE_HELP, MODES

HOLDS = {"15 minutes": 15, "1 hour": 60, "4 hours": 240, "1 day": 1440, "7 days": 10_080}
UNSET = "not set"
HELP = {
    "cap_prefixes": "How many prefixes an engine may hold, in all tiers.",
    "cap_gpu_bytes": "Of the GPU tier. Over it, prefixes move down, or leave where there is no tier below.",
    "cap_host_bytes": "Of the host tier; 0 switches it off.",
    "cap_disk_bytes": "Of the disk tier; 0 switches it off.",
    "codec": "How offloaded and idle pages are coded: lossless, int8, fp8, int4; the engine knows which it has.",
    "checkpoint_every_tokens": "Windows and tails are kept at every so many tokens; 0: only at the default places.",
    "checkpoint_budget_ratio": "The share of the GPU tier that windows and tails may fill, as 0.3 or 30%.",
    "pin_budget_ratio": "The share of the GPU tier that all pins together may hold, as 0.1 or 10%.",
    "admission_rule": "What is kept at all: all, second_touch, or first_pages:N.",
}
ROWS = (
    ("cap_prefixes", *BYTE_KNOBS),
    ("checkpoint_budget_ratio", "pin_budget_ratio", "checkpoint_every_tokens", "codec"),
)
MODE_TEXT = {**MODE_HELP, "drain": "takes no new requests: for taking an engine away"}


def draw() -> None:
    """The form; its changes are shown as a diff before anything is sent."""
    person, chosen = session.person(), session.filters()
    if person is None:
        return
    whose_of = _scopes(person.role)
    preset = Whose(engine=chosen.engine, group=None if chosen.engine else chosen.group)
    names = list(whose_of)
    with st.container(border=True):
        st.markdown("**Change**")
        index = names.index(preset.words) if preset.words in names else 0
        name = st.selectbox("For", names, index=index, key="kv_desired_scope")
        whose = whose_of[name]
        revision, document = data.standing(person.role, whose.engine, whose.group)
        wanted = _fields(name, revision, document)
    if wanted is None:
        return
    changes = changes_of(document, wanted)
    if not changes:
        st.warning("Nothing is changed: the form says what is desired already.")
        return
    desired_apply.review(whose, revision, document, changes)


def _scopes(role: str) -> dict[str, Whose]:
    engines = [engine.view for engine in data.engines(role)]
    groups = sorted({engine.group for engine in engines if engine.group})
    scopes = [Whose(), *(Whose(group=group) for group in groups), *(Whose(engine=engine.id) for engine in engines)]
    return {whose.words: whose for whose in scopes}


def _fields(scope: str, revision: int, document: Mapping[str, Any]) -> dict[str, Any] | None:
    """The form's fields as a document once it is sent with sound values; otherwise None."""
    # The revision is in the keys: a form filled from an older document must not be sent against a newer one.
    key = f"kv_desired_{scope}_{revision}"
    with st.form(f"{key}_form", border=False):
        texts = {}
        for row in ROWS:
            for place, name in zip(st.columns(len(row)), row, strict=True):
                texts[name] = _typed(place, key, name, document)
        rules = st.columns(4)
        texts["admission_rule"] = _typed(rules[0], key, "admission_rule", document)
        eviction = _chosen(rules[1], key, "eviction", EVICTIONS, document)
        mode = _chosen(rules[2], key, "mode", MODES, document, MODE_TEXT)
        hold = rules[3].selectbox("Hold a degraded mode for", list(HOLDS), index=1, key=f"{key}_hold")
        rows = _namespaces(key, document)
        st.caption("Empty: the engine's own default. Sizes as in 12 GiB.")
        if not st.form_submit_button("Review the change", icon=":material/difference:", shortcut="Ctrl+Enter"):
            return None
    return _read(document, texts, {"eviction": eviction, "mode": mode}, rows, hold)


def _typed(place: Any, key: str, name: str, document: Mapping[str, Any]) -> str:
    value = form_text(name, document.get(name))
    return str(place.text_input(LABELS[name], value=value, placeholder=UNSET, key=f"{key}_{name}", help=HELP.get(name)))


def _chosen(
    place: Any,
    key: str,
    name: str,
    words: tuple[str, ...],
    document: Mapping[str, Any],
    help_of: Mapping[str, str] | None = None,
) -> str | None:
    options = [UNSET, *words]
    chosen = place.selectbox(
        LABELS[name],
        options,
        index=options.index(document.get(name) or UNSET),
        key=f"{key}_{name}",
        help="\n".join(f"- **{word}**: {meaning}" for word, meaning in help_of.items()) if help_of else None,
    )
    return None if chosen == UNSET else str(chosen)


def _namespaces(key: str, document: Mapping[str, Any]) -> list[dict[str, Any]]:
    st.caption("**Caps by namespace**: add a row for each; at least one of its limits.")
    columns = ["Namespace", *NAMESPACE_COLUMNS]
    frame = pd.DataFrame(namespace_rows(document.get("namespace_caps")), columns=columns, dtype=str)
    edited = st.data_editor(
        frame,
        key=f"{key}_namespaces",
        num_rows="dynamic",
        hide_index=True,
        column_config={name: st.column_config.TextColumn(name) for name in columns},
    )
    return [{str(name): value for name, value in row.items()} for row in edited.fillna("").to_dict("records")]


def _read(
    document: Mapping[str, Any],
    texts: Mapping[str, str],
    words: Mapping[str, str | None],
    rows: list[dict[str, Any]],
    hold: str,
) -> dict[str, Any] | None:
    wanted: dict[str, Any] = dict(words)
    try:
        for name in TYPED_KNOBS:
            wanted[name] = read_knob(name, texts[name], document.get(name))
        wanted["namespace_caps"] = read_namespaces(rows, document.get("namespace_caps"))
    except ValueError as error:
        st.error(str(error), icon=":material/block:")
        return None
    if wanted["mode"] not in (None, "normal") and wanted["mode"] != document.get("mode"):
        wanted["mode_expires_at"] = (utc_now() + dt.timedelta(minutes=HOLDS[hold])).replace(microsecond=0).isoformat()
    return wanted
