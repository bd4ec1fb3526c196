"""The standing policies: their kinds, their parameters, what a fresh store starts with, and how people change them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from sqlalchemy.orm import Session

from controlplane.auth import Role
from controlplane.errors import BadRequest, NotFound
from controlplane.steering.command_kinds import TIERS
from controlplane.steering.deed import Deed
from controlplane.steering.policies.degrade import DegradeRule
from controlplane.steering.policies.upkeep import CompactRule, CompressIdleRule, OffloadIdleRule, ScrubRule
from controlplane.steering.policies.warmup import WarmupRule
from controlplane.store.models import Policy

SHORTEST_EVERY_SECONDS = 1
LONGEST_EVERY_SECONDS = 7 * 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRule:
    """Retention has no parameters of its own: how long history is kept are settings of the control plane."""


Rule = DegradeRule | WarmupRule | RetentionRule | CompactRule | ScrubRule | CompressIdleRule | OffloadIdleRule
KINDS: Mapping[str, type[Rule]] = {
    "degrade": DegradeRule,
    "warmup": WarmupRule,
    "retention": RetentionRule,
    "compact": CompactRule,
    "scrub": ScrubRule,
    "compress_idle": CompressIdleRule,
    "offload_idle": OffloadIdleRule,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A policy as the scheduler and the runner see it."""

    name: str
    kind: str
    rule: Rule
    every_seconds: int
    paused: bool


DEFAULTS = (
    Standing(name="degrade", kind="degrade", rule=DegradeRule(), every_seconds=10, paused=False),
    Standing(name="warm-up", kind="warmup", rule=WarmupRule(), every_seconds=300, paused=False),
    Standing(name="retention", kind="retention", rule=RetentionRule(), every_seconds=600, paused=False),
    Standing(name="compact", kind="compact", rule=CompactRule(), every_seconds=60, paused=False),
    Standing(name="scrub", kind="scrub", rule=ScrubRule(), every_seconds=600, paused=False),
    # What is idle is a matter of the workload: these wait for a person to switch them on.
    Standing(name="compress-idle", kind="compress_idle", rule=CompressIdleRule(), every_seconds=60, paused=True),
    Standing(name="offload-idle", kind="offload_idle", rule=OffloadIdleRule(), every_seconds=60, paused=True),
)


def seed(session: Session, now: dt.datetime) -> list[str]:
    """Adds the default policies that are not there yet; what people changed stays. Returns the names added."""
    added = []
    for standing in DEFAULTS:
        if session.get(Policy, standing.name) is None:
            session.add(
                Policy(
                    name=standing.name,
                    kind=standing.kind,
                    parameters=asdict(standing.rule),
                    every_seconds=standing.every_seconds,
                    paused=standing.paused,
                    memory={},
                    changed_at=now,
                )
            )
            added.append(standing.name)
    return added


def standing_of(policy: Policy) -> Standing:
    """The row as a value. Raises BadRequest if its kind or parameters are not usable."""
    return Standing(
        name=policy.name,
        kind=policy.kind,
        rule=read_rule(policy.kind, policy.parameters),
        every_seconds=policy.every_seconds,
        paused=policy.paused,
    )


def read_rule(kind: str, parameters: Mapping[str, Any]) -> Rule:
    """The parameters as the kind's rule. Raises BadRequest naming what is unknown, of a wrong type or out of range."""
    rule_type = KINDS.get(kind)
    if rule_type is None:
        raise BadRequest("policy_kind", f"There is no policy kind {kind!r}.", f"Kinds: {', '.join(KINDS)}.")
    defaults = {field.name: field.default for field in fields(rule_type)}
    problems = [f"{name} is no parameter of {kind}" for name in parameters if name not in defaults]
    problems += [
        problem
        for name, value in parameters.items()
        if name in defaults and (problem := _wrong(name, value, defaults[name]))
    ]
    if not problems:
        problems = _together(kind, {**defaults, **parameters})
    if problems:
        known = ", ".join(defaults) or "none"
        raise BadRequest("policy_parameters", "; ".join(problems) + ".", f"Parameters of {kind}: {known}.")
    return rule_type(**parameters)


def find(session: Session, name: str) -> Policy:
    """The policy's row. Raises NotFound."""
    policy = session.get(Policy, name)
    if policy is None:
        raise NotFound("policy_unknown", f"There is no policy {name!r}.", "`kvdeck policy list` shows them.")
    return policy


def change(session: Session, deed: Deed, name: str, changes: Mapping[str, Any]) -> Policy:
    """Pauses, resumes or tunes a policy: `paused`, `parameters` (merged), `every_seconds`. Audited."""
    deed.must_be(Role.OPERATOR)
    policy = find(session, name)
    every = changes.get("every_seconds", policy.every_seconds)
    if not SHORTEST_EVERY_SECONDS <= every <= LONGEST_EVERY_SECONDS:
        raise BadRequest(
            "every_seconds",
            f"every_seconds must be {SHORTEST_EVERY_SECONDS} to {LONGEST_EVERY_SECONDS}, got {every}.",
            "Nothing was changed.",
        )
    parameters = {**policy.parameters, **changes.get("parameters", {})}
    read_rule(policy.kind, parameters)
    before = _tunables(policy)
    policy.parameters = parameters
    policy.every_seconds = every
    policy.paused = changes.get("paused", policy.paused)
    policy.changed_at = deed.now
    deed.record(session, "change_policy", name, before=before, after=_tunables(policy))
    return policy


def _tunables(policy: Policy) -> dict[str, Any]:
    return {"parameters": policy.parameters, "every_seconds": policy.every_seconds, "paused": policy.paused}


def _wrong(name: str, value: Any, default: Any) -> str | None:
    if isinstance(default, bool | str):
        return None if isinstance(value, type(default)) else f"{name} must be like {default!r}, got {value!r}"
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        return f"{name} must be a number from 0, got {value!r}"
    if isinstance(default, int) and not isinstance(value, int):
        return f"{name} must be a whole number, got {value!r}"
    return None


def _together(kind: str, values: Mapping[str, Any]) -> list[str]:
    if kind == "offload_idle" and values["tier"] not in TIERS:
        return [f"tier must be one of {', '.join(TIERS)}, got {values['tier']!r}"]
    if kind != "degrade":
        return []
    problems = []
    if not 0 <= values["step_up_below"] <= values["step_down_above"] <= 1:
        problems.append("0 <= step_up_below <= step_down_above <= 1 must hold, or the policy would flap")
    problems += [
        f"{name} must be at least 1"
        for name in ("minimum_samples", "down_evaluations", "up_evaluations", "window_seconds")
        if values[name] < 1
    ]
    if values["lowest_mode"] not in ("no_disk", "resident_only", "full_only", "bypass"):
        problems.append(f"lowest_mode must be a degraded mode, got {values['lowest_mode']!r}")
    return problems
