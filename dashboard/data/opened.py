"""The store as the pages see it: opened once a process, and never written to."""

from __future__ import annotations

from functools import cache
from typing import Any

import streamlit as st
from sqlalchemy import event, text

from controlplane.errors import ControlPlaneError
from controlplane.store.session import Store
from dashboard.control import settings


@cache
def store() -> Store:
    """The store, opened once a process."""
    opened = Store(settings().database_url)
    # This process must not write: everything that changes goes through the control plane, which checks and audits.
    if opened.dialect == "sqlite":
        event.listen(opened.engine, "connect", _query_only)
    return opened


@st.cache_resource(ttl=2, show_spinner=False, max_entries=1)
def unreadable() -> ControlPlaneError | None:
    """Why the store cannot be read now; None while it can be.

    Asked before anything is drawn: what was read lives in caches for up to a minute, and numbers of a database that is
    gone must not stand there as if they were its.
    """
    try:
        with store().read() as session:
            session.execute(text("SELECT version_num FROM alembic_version"))
    except ControlPlaneError as error:
        return error
    return None


def _query_only(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA query_only=ON")
