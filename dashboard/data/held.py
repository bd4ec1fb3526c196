"""What the engines hold: prefixes, one prefix, families, damage."""

from __future__ import annotations

import datetime as dt

from controlplane.clock import utc_now
from controlplane.store import queries
from controlplane.store.queries_families import Families, families
from controlplane.store.query_types import Engines
from dashboard.caching import kept
from dashboard.data.opened import store


@kept(30, background=True)
def prefix_families(role: str, engine: Engines, namespace: str | None) -> tuple[Families, dt.datetime]:
    """The largest prefixes with all above them, the rest as sums, and when they were read."""
    del role
    now = utc_now()
    with store().read() as session:
        return families(session, engine, namespace), now


@kept(most=32)
def prefixes(
    role: str,
    engine: Engines,
    namespace: str | None,
    states: tuple[str, ...],
    search: str,
    order: str,
    limit: int,
    holds_in: str = "",
) -> queries.PrefixPage:
    """The prefixes that match, in order. A search with "=" in it is for a label: name=value, or name= for any value."""
    del role
    name, is_label, value = search.strip().partition("=")
    with store().read() as session:
        return queries.list_prefixes(
            session,
            engine_id=engine,
            namespace=namespace,
            states=states,
            search="" if is_label else search,
            label=(name.strip(), value.strip() or None) if is_label else None,
            holds_in=holds_in,
            order=order,
            limit=limit,
        )


@kept(most=32)
def prefix(role: str, engine: str, prefix_id: str) -> queries.PrefixDetail:
    """One prefix's life. Raises NotFound."""
    del role
    with store().read() as session:
        return queries.get_prefix(session, engine, prefix_id)


@kept()
def damaged(role: str, engine: Engines) -> list[queries.DamagedView]:
    """Prefixes in quarantine, newest first."""
    del role
    with store().read() as session:
        return queries.list_damaged(session, engine, limit=200)
