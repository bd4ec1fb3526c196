"""The states a page can be in when it has nothing to draw, each with what it means and what to do."""

from __future__ import annotations

import html

import streamlit as st

from controlplane.errors import ControlPlaneError, SchemaMismatch


def empty(title: str, detail: str) -> None:
    """Nothing to show, and that is a fact rather than a fault."""
    st.html(f'<div class="kv-empty"><b>{html.escape(title)}</b>{_with_code(detail)}</div>')


def _with_code(text: str) -> str:
    """Escaped text in which `commands` look like commands."""
    parts = html.escape(text).split("`")
    return "".join(f"<code>{part}</code>" if position % 2 else part for position, part in enumerate(parts))


def database_unreadable(error: ControlPlaneError) -> None:
    """The store cannot be read: what is on screen would be a guess, so nothing is."""
    schema = isinstance(error, SchemaMismatch)
    st.error(
        f"**{'The database has another schema' if schema else 'The database cannot be read'}.** {error.message} "
        f"{error.hint} Refresh reads it again.",
        icon=":material/schema:" if schema else ":material/database_off:",
    )


def refused(error: ControlPlaneError) -> None:
    """The control plane said no to an action: its own words, with what to do next."""
    st.error(f"**Not done.** {error.message} {error.hint}".strip(), icon=":material/block:")


def chip(label: str, *, symbol: str, color: str, title: str = "") -> str:
    """A small labelled mark as HTML: symbol, colour and word together."""
    return (
        f'<span class="kv-chip" style="--kv-color:{color}" title="{html.escape(title, quote=True)}">'
        f"<i>{symbol}</i>{html.escape(label)}</span>"
    )


def line(text: str) -> None:
    """One quiet line of HTML that the caller has escaped."""
    st.html(f'<div class="kv-line">{text}</div>')
