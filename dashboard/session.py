"""What one browser tab remembers: who is signed in, the filters, whether refresh is paused. Owns `st.session_state`.

Filters live in the URL, so that a link shows what its sender saw. Streamlit drops the query on a change of page;
`sync_filters` puts it back on every run.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from typing import Any

import streamlit as st

RANGES = {"15m": 15, "1h": 60, "6h": 360, "24h": 1440}  # minutes
DEFAULT_RANGE = "15m"
REFRESH_SECONDS = 5.0
ALL = "all"
ROLES = ("viewer", "operator", "admin")
MOST_WATCHED = 6

_WRITTEN = "kv_written"
_PERSON, _FILTERS, _PAUSED, _NOTICE, _WATCHED = "kv_person", "kv_filters", "kv_paused", "kv_notice", "kv_watched"
_HELD = "kv_held"


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Who is signed in, and the token the control plane knows them by."""

    name: str
    role: str
    token: str

    @property
    def may_act(self) -> bool:
        """Whether action buttons are shown. The server checks again on every call."""
        return self.role in ("operator", "admin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """What every page looks at. None: all engines, all namespaces. An engine goes before a group."""

    engine: str | None = None
    group: str | None = None
    namespace: str | None = None
    range_name: str = DEFAULT_RANGE

    @property
    def minutes(self) -> int:
        """The length of the time range."""
        return RANGES[self.range_name]

    def since(self, now: dt.datetime) -> dt.datetime:
        """The start of the time range."""
        return now - dt.timedelta(minutes=self.minutes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A command or a revision this tab submitted and follows until it ends."""

    id: str
    title: str
    engine: str


def person() -> Person | None:
    """Who is signed in in this tab."""
    found = st.session_state.get(_PERSON)
    return found if isinstance(found, Person) else None


def sign_in(someone: Person) -> None:
    """Remember who signed in."""
    st.session_state[_PERSON] = someone
    forget("signed_out")


def sign_out(notice: str | None = None) -> None:
    """Forget who was signed in and what they followed."""
    for key in (_PERSON, _WATCHED):
        st.session_state.pop(key, None)
    remember("signed_out", True)  # the tab must forget its token too
    if notice:
        st.session_state[_NOTICE] = notice


def take_link_token() -> str | None:
    """The one-time token of the address, once: it is removed from the address at the same time."""
    token = st.query_params.get("token")
    if token is not None:
        del st.query_params["token"]
    return token or None


def take_notice() -> str | None:
    """A sentence left for the next run, once."""
    notice = st.session_state.pop(_NOTICE, None)
    return str(notice) if notice else None


def leave_notice(text: str) -> None:
    """Leave a sentence for the next run, where it is shown once."""
    st.session_state[_NOTICE] = text


def filters() -> Filters:
    """The filters as chosen: from this tab's memory; from the address at its first run, and when a link changed it."""
    found = st.session_state.get(_FILTERS)
    if isinstance(found, Filters) and not _came_by_link():
        return found
    query = st.query_params
    range_name = query.get("range", DEFAULT_RANGE)
    chosen = Filters(
        engine=query.get("engine") or None,
        group=query.get("group") or None,
        namespace=query.get("ns") or None,
        range_name=range_name if range_name in RANGES else DEFAULT_RANGE,
    )
    st.session_state[_FILTERS] = chosen
    st.session_state[_WRITTEN] = _in_address()
    return chosen


def _came_by_link() -> bool:
    """Whether the address says something that this tab did not write. An empty one is a change of page."""
    said, written = _in_address(), st.session_state.get(_WRITTEN)
    return any(said.values()) and written is not None and said != written


def _in_address() -> dict[str, str | None]:
    return {name: st.query_params.get(name) or None for name in ("engine", "group", "ns", "range")}


def choose(*, engine: str | None, group: str | None, namespace: str | None, range_name: str | None) -> None:
    """Set the filters; `all` and None mean no filter, a range that is unknown leaves the old one."""
    old = filters()
    st.session_state[_FILTERS] = replace(
        old,
        engine=None if engine == ALL else engine,
        group=None if group == ALL else group,
        namespace=None if namespace == ALL else namespace,
        range_name=range_name if range_name in RANGES else old.range_name,
    )


def sync_filters() -> Filters:
    """Write the filters into the address if it says something else, and return them."""
    chosen = filters()
    for name, value in _addressed(chosen).items():
        if value is None and name in st.query_params:
            del st.query_params[name]
        elif value is not None and st.query_params.get(name) != value:
            st.query_params[name] = value
    st.session_state[_WRITTEN] = _in_address()
    return chosen


def link_query() -> dict[str, str]:
    """The filters as query parameters, for links to other pages."""
    return {name: value for name, value in _addressed(filters()).items() if value}


def _addressed(chosen: Filters) -> dict[str, str | None]:
    return {
        "engine": chosen.engine,
        "group": chosen.group,
        "ns": chosen.namespace,
        "range": chosen.range_name,
    }


def selected_prefix() -> tuple[str, str] | None:
    """The prefix the address names, as (engine, prefix id)."""
    parts = (st.query_params.get("prefix") or "").split("/", 1)
    return (parts[0], parts[1]) if len(parts) == 2 and all(parts) else None


def select_prefix(engine: str | None, prefix_id: str | None) -> None:
    """Put a prefix into the address, or take it out."""
    if engine and prefix_id:
        st.query_params["prefix"] = f"{engine}/{prefix_id}"
    elif "prefix" in st.query_params:
        del st.query_params["prefix"]


def paused() -> bool:
    """Whether live refresh is paused in this tab."""
    return bool(st.session_state.get(_PAUSED, False))


def set_paused(wanted: bool) -> None:
    """Pause live refresh, or let it run again.

    Not a toggle: Streamlit tells of one press with the press and once more with each part that refreshes just then.
    """
    st.session_state[_PAUSED] = wanted


def refresh_seconds() -> float | None:
    """How often live parts draw themselves again; None while paused."""
    return None if paused() else REFRESH_SECONDS


def watch(item: Watched) -> None:
    """Follow a command until this tab is told to stop; the newest few are kept."""
    st.session_state[_WATCHED] = [item, *watched()][:MOST_WATCHED]


def watched() -> list[Watched]:
    """What this tab follows, newest first."""
    return [item for item in st.session_state.get(_WATCHED, []) if isinstance(item, Watched)]


def unwatch(identifier: str) -> None:
    """Stop following a command."""
    st.session_state[_WATCHED] = [item for item in watched() if item.id != identifier]


def remember(key: str, value: object) -> None:
    """Keep a value of one dialog or form between its runs."""
    st.session_state[f"kv_kept_{key}"] = value


def recall(key: str) -> object | None:
    """The value kept under this key."""
    return st.session_state.get(f"kv_kept_{key}")


def forget(key: str) -> None:
    """Drop the value kept under this key."""
    st.session_state.pop(f"kv_kept_{key}", None)


def preset(key: str, value: object) -> None:
    """Give a widget its value before it is drawn, if it has none of the allowed ones yet."""
    st.session_state[key] = value


def value_of(key: str) -> object | None:
    """The value of a widget."""
    return st.session_state.get(key)


def hold_rows(key: str, name: str, rows: list[Any]) -> None:
    """Keep the rows that a table was drawn with: one set of rows a table (`key`), for the widget called `name`."""
    st.session_state.setdefault(_HELD, {})[key] = (name, rows)


def held_rows(name: str) -> list[Any]:
    """The rows that this widget was drawn with; none when its table shows another one now."""
    return next((rows for held, rows in st.session_state.get(_HELD, {}).values() if held == name), [])
