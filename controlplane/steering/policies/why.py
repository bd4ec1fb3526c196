"""Why a policy did what it did at a moment: the record read back as sentences, and nothing but the record."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import cast, func, select
from sqlalchemy.orm import Session
from sqlalchemy.types import String

from controlplane.steering.policies import registry
from controlplane.steering.words import value_text, values_text
from controlplane.store.models import PolicyRun
from controlplane.store.queries_steering import PolicyRunView
from controlplane.store.query_types import view
from controlplane.wording import seconds_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What held on one engine at the moment asked for. `acted`: the newest run up to then that did something."""

    engine_id: str | None
    run: PolicyRunView
    words: list[str]
    acted: PolicyRunView | None
    acted_words: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """The answers for one policy at one moment, one an engine."""

    policy: str
    at: dt.datetime
    answers: list[Answer]


def why(session: Session, name: str, at: dt.datetime, engine_id: str | None = None) -> Why:
    """The decision in force at `at`, engine by engine: the newest recorded up to then. Raises NotFound.

    A removed policy still has its record, so only a name with neither is unknown.
    """
    runs = _newest(session, name, at, engine_id, acted=False)
    if not runs and session.scalars(select(PolicyRun.id).where(PolicyRun.policy == name).limit(1)).first() is None:
        registry.find(session, name)
    acted = {run.engine_id: run for run in _newest(session, name, at, engine_id, acted=True)}
    answers = []
    for run in runs:
        last = acted.get(run.engine_id)
        earlier = None if last is None or last.id == run.id else last
        answers.append(
            Answer(
                engine_id=run.engine_id,
                run=view(PolicyRunView, run),
                words=words_of(run),
                acted=view(PolicyRunView, earlier) if earlier else None,
                acted_words=words_of(earlier) if earlier else [],
            )
        )
    return Why(policy=name, at=at, answers=answers)


def _newest(session: Session, name: str, at: dt.datetime, engine_id: str | None, *, acted: bool) -> Sequence[PolicyRun]:
    conditions = [PolicyRun.policy == name, PolicyRun.at <= at, PolicyRun.dry_run.is_(False)]
    if engine_id is not None:
        conditions.append(PolicyRun.engine_id == engine_id)
    if acted:
        conditions.append(cast(PolicyRun.did, String) != "{}")
    newest = select(func.max(PolicyRun.id)).where(*conditions).group_by(PolicyRun.engine_id)
    query = select(PolicyRun).where(PolicyRun.id.in_(newest)).order_by(PolicyRun.engine_id)
    return session.scalars(query).all()


def words_of(run: PolicyRun) -> list[str]:
    """One decision in sentences."""
    where = f" on {run.engine_id}" if run.engine_id else ""
    decided = run.decision.replace("_", " ")
    said = [f"{run.at:%Y-%m-%d %H:%M:%S} UTC: {run.policy} decided {decided}{where} ({run.trigger})."]
    if run.error:
        return [*said, f"Its rule failed: {run.error}"]
    if run.inputs.get("event"):
        said.append(f"It ran because: {run.inputs['event']}.")
    if run.inputs.get("why"):
        said.append(f"Reason: {run.inputs['why']}.")
    said += _evidence(run.inputs)
    said += _effects(run)
    return said


OF_DEGRADE = {
    "failure_rate", "mode", "not_recovered", "samples", "samples_since", "bad_in_a_row", "good_in_a_row",
    "wrong_steps_up",
}  # fmt: skip


def _evidence(inputs: dict[str, Any]) -> list[str]:
    rule = inputs.get("parameters", {})
    if not inputs.keys() >= OF_DEGRADE:  # another kind's, or a record older than some of these
        seen = {key: value for key, value in inputs.items() if key not in ("parameters", "event", "why")}
        return [f"It saw: {values_text(seen)}."] if seen else []
    rate = "none" if inputs["failure_rate"] is None else f"{inputs['failure_rate']:.1%}"
    window = value_text("window_seconds", rule.get("window_seconds"))
    return [
        f"It saw: mode {inputs['mode']}; {inputs['not_recovered']} of {inputs['samples']} recoveries failed or were "
        f"late since {inputs['samples_since'][11:19]} (window {window}): rate {rate}.",
        f"Limits: down above {rule.get('step_down_above', 0):.1%} for {rule.get('down_evaluations')} evaluations, up "
        f"below {rule.get('step_up_below', 0):.1%} for {rule.get('up_evaluations')}; at least "
        f"{rule.get('minimum_samples')} samples.",
        f"Rows: {inputs['bad_in_a_row']} bad, {inputs['good_in_a_row']} good; {inputs['wrong_steps_up']} wrong steps "
        f"up; last step {_ago(inputs.get('since_last_step_seconds'))}.",
    ]


def _effects(run: PolicyRun) -> list[str]:
    if not run.did:
        return ["It did nothing."]
    said = []
    for revision in run.did.get("revisions", ()):
        end = run.changed.get("revisions", {}).get(str(revision), {}).get("status", "waiting")
        modes = [one.get("mode") for one in run.proposed if one.get("propose") == "SetMode"]
        said.append(f"It set {', '.join(f'mode {mode}' for mode in modes)} (revision {revision}): {end}.")
    for command in run.did.get("commands", ()):
        seen = run.changed.get("commands", {}).get(command, {})
        kinds = [one.get("kind") for one in run.proposed if one.get("propose") == "IssueCommand"]
        more = values_text({key: value for key, value in seen.items() if key not in ("kind", "status")})
        end = f"{seen.get('status', 'waiting')}{f' ({more})' if more else ''}"
        said.append(f"It sent {seen.get('kind') or ', '.join(kinds)} (command {command}): {end}.")
    if rows := run.did.get("deleted_rows"):
        said.append(f"It forgot {', '.join(f'{count:,} rows of {table}' for table, count in rows.items())}.")
    return said


def _ago(seconds: float | None) -> str:
    return "none yet" if seconds is None else f"{seconds_text(seconds)} before"
