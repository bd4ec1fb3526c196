"""The engines, what the filters choose of them, and what is wrong with them."""

from __future__ import annotations

from controlplane.clock import utc_now
from controlplane.insight import doctor
from controlplane.insight.doctor_gather import gather
from controlplane.insight.doctor_rule import Finding
from controlplane.store import queries, queries_charts
from controlplane.store.query_types import Engines
from dashboard.caching import kept
from dashboard.control import settings
from dashboard.data.opened import store
from dashboard.readings import EngineNow
from dashboard.session import Filters

FINDINGS_TTL_SECONDS = 15  # the doctor reads a good deal of every engine
FINDINGS_MINUTES = 60  # and looks at the last hour whatever range is drawn: what it finds is about now
IDLE_MINUTES = 3  # a live engine without a request for this long is idle


@kept()
def engines(role: str) -> list[EngineNow]:
    """Every engine that ever registered, by id."""
    del role
    now, chosen = utc_now(), settings()
    with store().read() as session:
        views = queries.list_engines(
            session,
            now,
            stale_seconds=chosen.engine_stale_seconds,
            unreachable_seconds=chosen.engine_unreachable_seconds,
        )
        lately = queries_charts.usable_by_engine(session, queries.TimeRange.last(IDLE_MINUTES, now))
    found = []
    for view in views:
        requests, prompt, usable = lately.get(view.id, (0, 0, 0))
        found.append(
            EngineNow(
                view=view,
                requests_lately=requests,
                prompt_tokens_lately=prompt,
                usable_tokens_lately=usable,
            )
        )
    return found


@kept()
def gaps(role: str, engine: Engines) -> list[queries.GapView]:
    """Open holes in the history, newest first."""
    del role
    with store().read() as session:
        return queries.list_gaps(session, engine)


def scope(role: str, chosen: Filters) -> str | tuple[str, ...] | None:
    """What the filters mean for a read: one engine, the engines of a group, or (None) all."""
    if chosen.engine or not chosen.group:
        return chosen.engine
    return tuple(engine.view.id for engine in engines(role) if engine.view.group == chosen.group)


def engines_in(role: str, chosen: Filters) -> list[EngineNow]:
    """The engines the filters choose, by id."""
    wanted = scope(role, chosen)
    if isinstance(wanted, str):
        return [engine for engine in engines(role) if engine.view.id == wanted]
    return [engine for engine in engines(role) if wanted is None or engine.view.id in wanted]


@kept(FINDINGS_TTL_SECONDS, background=True)
def all_findings(role: str, engine: str | None) -> list[Finding]:
    """What the doctor finds on one engine or all, worst first."""
    del role
    now = utc_now()
    window = queries.TimeRange.last(FINDINGS_MINUTES, now)
    with store().read() as session:
        return doctor.examine(gather(session, settings(), now, window, engine))


def findings(role: str, chosen: Filters) -> list[Finding]:
    """What the doctor finds on the engines the filters choose, and on the deck itself."""
    wanted = scope(role, chosen)
    if wanted is None or isinstance(wanted, str):
        return all_findings(role, wanted)
    return [one for one in all_findings(role, None) if one.engine_id is None or one.engine_id in wanted]
