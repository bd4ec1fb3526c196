"""What came of what policies did: filled into their runs when the commands end and the revisions are applied."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from controlplane.steering import commands
from controlplane.steering.policies.refusals import note_refusals
from controlplane.store.models import Command, Engine, Policy, PolicyRun

MOST_AT_ONCE = 500
APPLIED_WITHIN = dt.timedelta(minutes=10)  # a revision an engine has not applied by then is recorded as such


def settle(session: Session, now: dt.datetime, *of: ColumnElement[bool]) -> int:
    """Fills in `changed` of runs (those `of` which it holds) whose effects have an end, and remembers refusals;
    returns how many have ended.

    Bounded; what has no end yet is looked at again by the next sweep.
    """
    query = select(PolicyRun).where(PolicyRun.settled_at.is_(None), *of).order_by(PolicyRun.id).limit(MOST_AT_ONCE)
    ended = 0
    for run in session.scalars(query):
        commands_of, open_commands = _commands(session, run)
        revisions, open_revisions = _revisions(session, run, now)
        run.changed = {key: value for key, value in (("commands", commands_of), ("revisions", revisions)) if value}
        if not open_commands and not open_revisions:
            run.settled_at = now
            ended += 1
            _remember_refusals(session, run, now)
    return ended


def _commands(session: Session, run: PolicyRun) -> tuple[dict[str, Any], bool]:
    ids = run.did.get("commands", ())
    found = {command.id: command for command in session.scalars(select(Command).where(Command.id.in_(ids)))}
    said = {
        id_: {"kind": command.kind, "status": command.status, **_counted(command.outcome)}
        for id_, command in found.items()
    }
    return said, any(command.status in commands.LIVE for command in found.values())


def _revisions(session: Session, run: PolicyRun, now: dt.datetime) -> tuple[dict[str, Any], bool]:
    wanted = run.did.get("revisions", ())
    engine = session.get(Engine, run.engine_id) if run.engine_id else None
    if not wanted or engine is None:
        return {}, False
    said: dict[str, Any] = {}
    for revision in wanted:
        applied = engine.observed_revision >= revision
        if applied:
            seen = {"status": "applied", "mode": engine.observed.get("mode"), "error": engine.observed.get("error")}
            said[str(revision)] = {key: value for key, value in seen.items() if value is not None}
        else:
            late = now - run.at > APPLIED_WITHIN
            said[str(revision)] = {"status": "not_applied" if late else "waiting"}
    return said, any(one["status"] == "waiting" for one in said.values())


def _remember_refusals(session: Session, run: PolicyRun, now: dt.datetime) -> None:
    standing = session.get(Policy, run.policy)
    if standing is None or run.engine_id is None or "back_off_seconds" not in standing.parameters:
        return
    for command in session.scalars(select(Command).where(Command.id.in_(run.did.get("commands", ())))):
        note_refusals(session, standing, run.engine_id, command.outcome.get("refused") or (), now)


def _counted(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """An outcome in numbers: lists of refused or failed prefixes become counts by reason."""
    counted: dict[str, Any] = {}
    for key, value in outcome.items():
        if isinstance(value, list):
            reasons = Counter(str(one.get("reason", "?")) if isinstance(one, dict) else "?" for one in value)
            counted[key] = dict(reasons)
        elif key not in ("trace_id", "span_id"):
            counted[key] = value
    return counted
