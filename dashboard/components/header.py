"""The frame of every page: filters, refresh, and the health of what stands behind the numbers."""

from __future__ import annotations

import datetime as dt
import html
from collections import Counter

import streamlit as st

from controlplane.clock import utc_now
from controlplane.errors import ControlPlaneError
from dashboard import data, session
from dashboard.components import notices, shortcuts
from dashboard.readings import ControlPlaneHealth, EngineNow
from dashboard.theme import ENGINE_HEALTH, GREEN, GREY, ORANGE, VERMILLION, Look
from dashboard.wording import age_text, clock_text, plural

CONTROL_PLANE = {
    "up": Look(label="control plane up", color=GREEN, symbol="●"),
    "unreachable": Look(label="control plane unreachable", color=VERMILLION, symbol="✖"),
    "database unreadable": Look(label="control plane: database unreadable", color=ORANGE, symbol="▲"),
}
MOST_CHIPS = 5
GROUP = "group "  # no id of an engine has a space


def draw(person: session.Person) -> None:
    """The filters and the status line."""
    _filters()
    session.sync_filters()
    session.remember("drawn_from_store", data.unreadable() is None)
    # Not guarded as other parts are: it is what says that the store cannot be read.
    st.fragment(_status, run_every=session.refresh_seconds())()
    notice = session.take_notice()
    if notice:
        st.toast(notice)
    with st.sidebar:
        st.caption(f"Signed in as **{person.name}** ({person.role})")
        shortcuts.button(person)
        st.button("Sign out", icon=":material/logout:", on_click=session.sign_out, type="tertiary")


def _filters() -> None:
    chosen = session.filters()
    engine_ids, groups, names = _known(chosen)
    group_of = {f"{GROUP}{group}": group for group in groups}
    scope = chosen.engine or (f"{GROUP}{chosen.group}" if chosen.group else None)
    for key, value in (("engine", scope), ("namespace", chosen.namespace), ("range", chosen.range_name)):
        session.preset(f"kv_w_{key}", value or session.ALL)
    with st.container(key="kv_filters"):
        engine, namespace, time_range, refresh = st.columns([2, 2, 2.2, 2.7], vertical_alignment="bottom")
    with engine:
        st.selectbox(
            "Engine",
            [session.ALL, *group_of, *engine_ids],
            key="kv_w_engine",
            on_change=_chosen,
            format_func=lambda name: "all engines" if name == session.ALL else name,
        )
    with namespace:
        st.selectbox(
            "Namespace",
            [session.ALL, *names],
            key="kv_w_namespace",
            on_change=_chosen,
            format_func=lambda name: "all namespaces" if name == session.ALL else name,
        )
    with time_range:
        st.segmented_control("Time range", list(session.RANGES), key="kv_w_range", on_change=_chosen, required=True)
    with refresh, st.container(horizontal=True, horizontal_alignment="right"):
        paused = session.paused()
        st.button(
            "Resume" if paused else "Pause",
            key="kv_pause",  # one button under two labels: as two, both hear the key until the page is drawn again
            icon=":material/play_arrow:" if paused else ":material/pause:",
            on_click=session.set_paused,
            args=(not paused,),
            shortcut="p",
            help="Paused: numbers stand still." if paused else f"Refreshes every {session.REFRESH_SECONDS:.0f} s.",
        )
        st.button(
            "Refresh", icon=":material/refresh:", on_click=data.clear, help="Read everything again now.", shortcut="f"
        )


def _known(chosen: session.Filters) -> tuple[list[str], list[str], list[str]]:
    """Engines, groups and namespaces to choose from; what the address names is among them even if it is gone."""
    person = session.person()
    role = person.role if person else ""
    try:
        engines, names = data.engines(role), data.namespaces(role)
    except ControlPlaneError:
        engines, names = [], []
    engine_ids = [engine.view.id for engine in engines]
    groups = sorted({engine.view.group for engine in engines if engine.view.group})
    return (
        _with(engine_ids, chosen.engine),
        _with(groups, chosen.group),
        _with(names, chosen.namespace),
    )


def _with(known: list[str], chosen: str | None) -> list[str]:
    return [*known, chosen] if chosen and chosen not in known else known


def _chosen() -> None:
    scope, namespace, time_range = (session.value_of(f"kv_w_{key}") for key in ("engine", "namespace", "range"))
    group = str(scope).removeprefix(GROUP) if str(scope).startswith(GROUP) else None
    session.choose(
        engine=None if group or not scope else str(scope),
        group=group,
        namespace=str(namespace) if namespace else None,
        range_name=str(time_range) if time_range else None,
    )


def _status() -> None:
    person = session.person()
    if person is None:
        return
    health = data.control_plane()
    look = CONTROL_PLANE[health.state]
    parts = [notices.chip(look.label, symbol=look.symbol, color=look.color, title=health.detail)]
    unreadable = data.unreadable()
    if session.recall("drawn_from_store") is not (unreadable is None):
        st.rerun()  # all of the page: parts that do not draw themselves again must not stand there from before
    if unreadable is None:
        try:
            engines = data.engines_in(person.role, session.filters())
            parts.append(_engine_chips(engines))
            session.remember("as_of", max((engine.view.last_seen_at for engine in engines), default=None))
        except ControlPlaneError as error:
            unreadable = error
    if unreadable is not None:
        parts.append(notices.chip("store unreadable", symbol="▲", color=ORANGE, title=str(unreadable)))
    parts.append(_as_of(health.checked_at))
    notices.line("".join(parts))
    if unreadable is None or health.state == "unreachable":
        _banner(health)
    if unreadable is not None:
        notices.database_unreadable(unreadable)


def _engine_chips(engines: list[EngineNow]) -> str:
    if not engines:
        return notices.chip("no engine has registered", symbol="○", color=GREY)
    if len(engines) > MOST_CHIPS:
        counts = Counter(engine.health for engine in engines)
        return "".join(
            notices.chip(f"{plural(count, 'engine')} {name}", symbol=look.symbol, color=look.color, title=look.help)
            for name, look in ENGINE_HEALTH.items()
            if (count := counts.get(name, 0))
        )
    now, chips = utc_now(), []
    for engine in engines:
        look = ENGINE_HEALTH[engine.health]
        age = "" if engine.health in ("live", "idle") else f", {age_text(engine.view.last_seen_at, now)}"
        label = f"{engine.view.id} {look.label}{age}"
        chips.append(notices.chip(label, symbol=look.symbol, color=look.color, title=look.help))
    return "".join(chips)


def _as_of(read_at: dt.datetime) -> str:
    heard = session.recall("as_of")
    if isinstance(heard, dt.datetime):
        said = f"data as of <b>{html.escape(clock_text(heard))}</b>"
        help_text = f"The newest word of an engine. Read at {clock_text(read_at)}."
    else:
        said, help_text = "<b>no data yet</b>", "No engine has spoken."
    paused = " · <b>refresh is paused</b>" if session.paused() else ""
    return f'<span title="{html.escape(help_text, quote=True)}">{said}</span>{paused}'


def _banner(health: ControlPlaneHealth) -> None:
    if health.state == "unreachable":
        st.error(
            "**The control plane is unreachable.** What you see is what the store last had. Engines go on with their "
            "last settings; actions are refused until it is back. Look at its log, or start it: `kvdeck serve`.",
            icon=":material/cloud_off:",
        )
    elif health.state == "database unreadable":
        st.warning(
            f"**The control plane answers, but cannot read its database.** {health.detail} "
            "Nothing new is stored until then.",
            icon=":material/database_off:",
        )
