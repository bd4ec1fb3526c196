"""The store as the pages see it: opened once a process, and never written to."""

from __future__ import annotations

from typing import Any

import streamlit as st
from sqlalchemy import event

from controlplane.store.session import Store
from dashboard.control import settings


@st.cache_resource
def store() -> Store:
    """The store, opened once a process."""
    opened = Store(settings().database_url)
    # This process must not write: everything that changes goes through the control plane, which checks and audits.
    if opened.dialect == "sqlite":
        event.listen(opened.engine, "connect", _query_only)
    return opened


def _query_only(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA query_only=ON")
