"""What was asked for and by whom: desired state, commands, policies, caps thought about."""

from __future__ import annotations

import datetime as dt
from typing import Any

from controlplane.clock import utc_now
from controlplane.insight import live
from controlplane.steering import desired
from controlplane.steering.desired_fleet import effective_of_all
from controlplane.steering.policies import why
from controlplane.steering.policies.degrade import DegradeRule
from controlplane.store import queries
from controlplane.store.query_types import Engines
from dashboard.caching import kept
from dashboard.data.opened import store


@kept(1)
def revisions(role: str, engine: str | None) -> list[queries.DesiredView]:
    """Revisions of desired state that bear on an engine (or any), newest first."""
    del role
    with store().read() as session:
        return queries.list_desired(session, engine, limit=60)


@kept(1)
def standing(role: str, engine: str | None, group: str | None) -> tuple[int, dict[str, Any]]:
    """The newest revision and document of exactly this scope; (0, {}) where nothing was ever asked for."""
    del role
    with store().read() as session:
        row = desired.newest(session, desired.Scope(engine_id=engine, group=group))
        return (row.revision, dict(row.document)) if row else (0, {})


@kept(1)
def effective(role: str) -> dict[str, dict[str, Any]]:
    """Engine -> what it should run with now: its own document over its group's over that for every engine."""
    del role
    with store().read() as session:
        return {engine: wanted.document for engine, wanted in effective_of_all(session, utc_now()).items()}


@kept()
def commands(role: str, engine: Engines) -> list[queries.CommandView]:
    """The newest commands."""
    del role
    with store().read() as session:
        return queries.list_commands(session, engine, limit=60)


@kept(0.5, most=32)
def command(role: str, command_id: str) -> queries.CommandView:
    """One command, fresh enough to follow. Raises NotFound."""
    del role
    with store().read() as session:
        return queries.get_command(session, command_id)


@kept()
def policies(role: str) -> tuple[list[queries.PolicyView], list[queries.PolicyRunView]]:
    """The standing policies, and the newest runs of all of them."""
    del role
    with store().read() as session:
        return queries.list_policies(session), queries.list_policy_runs(session, limit=200)


@kept()
def policy_why(role: str, name: str, at: dt.datetime, engine: str | None) -> why.Why:
    """What a policy had decided at a moment, and from what. Raises NotFound."""
    del role
    with store().read() as session:
        return why.why(session, name, at, engine)


def degrade_threshold(role: str) -> float | None:
    """The failure rate above which the degrade policy steps down; None when no such policy runs."""
    for policy in policies(role)[0]:
        if policy.kind == "degrade" and not policy.paused:
            return float(policy.parameters.get("step_down_above", DegradeRule().step_down_above))
    return None


@kept(most=64)
def whatif(role: str, engine: str, namespace: str, cap_prefixes: int | None, cap_bytes: int | None) -> live.WhatIfView:
    """The newest curve of an engine, and what a proposed cap would bring. Raises NotFound where there is none."""
    del role
    with store().read() as session:
        return live.what_if(session, engine, namespace=namespace, cap_prefixes=cap_prefixes, cap_bytes=cap_bytes)


@kept()
def predictions(role: str, engine: str) -> list[live.PredictionView]:
    """What curves foretold of an engine's caps, and what came of it, newest first."""
    del role
    with store().read() as session:
        return live.outcomes(session, engine, limit=20)
