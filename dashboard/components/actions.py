"""Commands on prefixes: buttons, and the dialog that shows the blast radius, asks why, sends, and follows."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import streamlit as st

from controlplane.errors import Conflict, ControlPlaneError
from dashboard import control, session
from dashboard.components import notices, reason
from dashboard.components.follow import follow
from dashboard.desired import word_to_type
from dashboard.theme import state_text
from dashboard.wording import bytes_text, count_text, parse_bytes, plural, short_id

ICONS = {"evict": ":material/delete:", "warm": ":material/local_fire_department:", "pin": ":material/keep:"}
ICONS |= {"compress": ":material/compress:", "offload": ":material/move_down:"}
ICONS |= {"unpin": ":material/keep_off:", "scrub": ":material/fact_check:", "compact": ":material/view_compact:"}
HELP = {
    "evict": "Drop these prefixes from every tier. Requests for them miss until they are built again.",
    "warm": "Bring these prefixes back to the GPU before they are asked for.",
    "pin": "Keep these prefixes: no policy and no pressure evicts them until the pin ends.",
    "unpin": "Let these prefixes be evicted again.",
    "scrub": "Read stored objects and compare their checksums; damage goes to quarantine.",
    "compress": "Code their pages with the engine's codec: smaller, on the GPU still.",
    "offload": "Move their pages to the tier below; the next request for them brings them back.",
    "compact": "Move pages together so that partly used slabs come free.",
}
OF_PREFIXES = ("evict", "warm", "pin", "unpin", "compress", "offload")
KEYS = {"evict": "e", "warm": "w", "pin": "i"}  # where one prefix is open; elsewhere a key could mean several
PIN_SECONDS = {"15 minutes": 900, "1 hour": 3600, "8 hours": 28_800, "1 day": 86_400, "7 days": 604_800}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What an action is for: prefixes of one engine, or none for an action on the engine itself."""

    engine: str
    prefix_ids: tuple[str, ...] = ()

    def key(self, kind: str) -> str:
        """A short key of this action on this target, for widgets and for what is kept between runs."""
        text = "/".join((kind, self.engine, *self.prefix_ids))
        return f"{kind}_{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def buttons(target: Target, kinds: Sequence[str], *, place: str) -> None:
    """A button for each kind of command; none for a person who may only look."""
    person = session.person()
    if person is None or not person.may_act:
        return
    with st.container(horizontal=True):
        for kind in kinds:
            count = len(target.prefix_ids)
            label = kind.capitalize() if count < 2 else f"{kind.capitalize()} {count:,}"
            key = f"act_{place}_{target.key(kind)}"
            shortcut = KEYS.get(kind) if place == "one" else None
            if st.button(label, key=key, icon=ICONS.get(kind), help=HELP.get(kind), shortcut=shortcut):
                for name in ("sent", "preview", "nonce"):
                    session.forget(f"{name}:{target.key(kind)}")
                title = f"{kind.capitalize()} {plural(count, 'prefix', 'prefixes') if count else 'on ' + target.engine}"
                st.dialog(title, width="large")(_dialog)(kind, target)


def _dialog(kind: str, target: Target) -> None:
    person = session.person()
    if person is None:
        return
    key = target.key(kind)
    sent = session.recall(f"sent:{key}")
    if sent is not None:
        follow(str(sent), key=f"dialog_{key}")
        st.caption("You can close this: the command goes on, and the page keeps following it.")
        if st.button("Close", key=f"close_{key}"):
            st.rerun()
        return
    st.markdown(HELP.get(kind, ""))
    arguments = _options(kind, target, key)
    if arguments is None:
        return
    radius = _blast_radius(person, kind, target, arguments, key)
    if radius is None:
        return
    if kind == "evict" and radius["versions"]:
        arguments["expect_versions"] = radius["versions"]
    gone = int(radius["prefixes"]) if kind == "evict" else 0
    word = word_to_type({}, gone)
    why = reason.form(f"form_{key}", _verb(kind, radius), icon=ICONS.get(kind), word=word)
    if why is not None:
        _send(person, kind, target, arguments, why)


def _verb(kind: str, radius: Mapping[str, Any]) -> str:
    count = int(radius["prefixes"])
    return f"{kind.capitalize()} {plural(count, 'prefix', 'prefixes')}" if count else kind.capitalize()


def _options(kind: str, target: Target, key: str) -> dict[str, Any] | None:
    """The command's arguments from its widgets; None while one of them is wrong."""
    arguments: dict[str, Any] = {"prefix_ids": list(target.prefix_ids)} if target.prefix_ids else {}
    if kind == "evict":
        arguments["descendants"] = st.checkbox("Also everything below them in the tree", key=f"below_{key}")
    elif kind == "pin":
        chosen = st.selectbox("Pin for", list(PIN_SECONDS), index=1, key=f"ttl_{key}")
        arguments["ttl_s"] = PIN_SECONDS[chosen]
    elif kind == "offload":
        arguments["tier"] = st.selectbox("To", ["host", "disk"], key=f"tier_{key}")
    elif kind in ("warm", "scrub"):
        text = st.text_input("At most", value="1 GiB", key=f"budget_{key}", help="Bytes to read for this command.")
        try:
            arguments["max_bytes"] = parse_bytes(text) or 1 << 30
        except ValueError as error:
            st.error(str(error))
            return None
    return arguments


def _blast_radius(
    person: session.Person, kind: str, target: Target, arguments: Mapping[str, Any], key: str
) -> dict[str, Any] | None:
    """Draw what the command would touch, as it was when the person looked: its versions are what they agree to."""
    asked = repr(sorted(arguments.items()))
    kept = session.recall(f"preview:{key}")
    if not (isinstance(kept, tuple) and kept[0] == asked):
        try:
            kept = (asked, control.preview(person, target.engine, kind, arguments))
        except ControlPlaneError as error:
            notices.refused(error)
            return None
        session.remember(f"preview:{key}", kept)
        session.forget(f"nonce:{key}")  # other arguments are another command
    radius: dict[str, Any] = kept[1]
    if target.prefix_ids:
        _draw_radius(kind, radius)
    return radius


def _draw_radius(kind: str, radius: Mapping[str, Any]) -> None:
    held = radius["bytes_by_tier"]
    touched, tokens, served, size = st.columns(4)
    touched.metric("Prefixes touched", count_text(radius["prefixes"]))
    tokens.metric("Own tokens", count_text(radius["own_tokens"]), help="Each token counted once in the tree.")
    served.metric("Tokens served so far", count_text(radius["tokens_served"]))
    size.metric("Bytes held", bytes_text(sum(held.values())))
    tiers = " · ".join(f"{tier} {bytes_text(held[tier])}" for tier in ("gpu", "host", "disk") if held.get(tier))
    below = f"{plural(radius['descendants'], 'prefix', 'prefixes')} below them in the tree" if kind == "evict" else ""
    pinned = f"{count_text(radius['pinned'])} pinned" if radius["pinned"] else ""
    st.caption(" · ".join(part for part in (tiers, below, pinned) if part))
    if radius["truncated"]:
        st.warning("There is more than was counted: these numbers are a floor.")
    if radius["unknown"]:
        st.warning(f"{plural(len(radius['unknown']), 'prefix is', 'prefixes are')} not there any more.")
    for warning in radius["warnings"]:
        st.warning(warning, icon=":material/warning:")
    if len(radius["largest"]) > 1:
        st.dataframe(_largest(radius["largest"]), hide_index=True, height=210)


def _largest(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "Prefix": short_id(str(row.get("prefix_id", ""))),
                "State": state_text(str(row.get("state", ""))),
                "Tokens": count_text(row.get("tokens")),
                "Bytes": bytes_text(row.get("bytes")),
                "Tokens served": count_text(row.get("tokens_served")),
            }
            for row in rows
        ]
    )


def _send(person: session.Person, kind: str, target: Target, arguments: Mapping[str, Any], why: str) -> None:
    key = target.key(kind)
    nonce = session.recall(f"nonce:{key}") or secrets.token_hex(16)
    session.remember(f"nonce:{key}", nonce)
    try:
        command_id = control.submit(person, target.engine, kind, arguments, why, str(nonce))
    except ControlPlaneError as error:
        notices.refused(error)
        if isinstance(error, Conflict):
            session.forget(f"preview:{key}")
            session.forget(f"nonce:{key}")
            st.button("Look again", key=f"again_{key}")
        return
    count = len(target.prefix_ids)
    title = f"{kind.capitalize()} {plural(count, 'prefix', 'prefixes') if count else ''} on {target.engine}: {why}"
    session.watch(session.Watched(id=command_id, title=title, engine=target.engine))
    session.remember(f"sent:{key}", command_id)
    st.rerun(scope="fragment")
