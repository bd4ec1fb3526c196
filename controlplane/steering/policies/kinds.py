"""What kinds of policies there are, their parameters, and those a fresh store starts with."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.errors import BadRequest
from controlplane.steering.parameters import build, defaults_of, knobs_of, problems_of
from controlplane.steering.policies.curve import CurveRule
from controlplane.steering.policies.degrade import DegradeRule
from controlplane.steering.policies.scope import EVERYWHERE, Scope
from controlplane.steering.policies.upkeep import CompactRule, CompressIdleRule, OffloadIdleRule, ScrubRule
from controlplane.steering.policies.warmup import WarmupRule
from controlplane.steering.policies.when import When


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRule:
    """Forgets history past its retention. How long history is kept are settings of the control plane, so none here."""


Upkeep = CompactRule | ScrubRule | CompressIdleRule | OffloadIdleRule
Rule = DegradeRule | WarmupRule | RetentionRule | CurveRule | Upkeep
KINDS: Mapping[str, type[Rule]] = {
    "degrade": DegradeRule,
    "warmup": WarmupRule,
    "retention": RetentionRule,
    "compact": CompactRule,
    "scrub": ScrubRule,
    "compress_idle": CompressIdleRule,
    "offload_idle": OffloadIdleRule,
    "curve_sampling": CurveRule,
}
CHOOSE_PREFIXES = frozenset({"warmup", "compress_idle", "offload_idle"})  # so a namespace can narrow them
OF_THE_STORE = frozenset({"retention"})  # runs once, not once an engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A policy as the scheduler and the runner see it."""

    name: str
    kind: str
    rule: Rule
    when: When
    scope: Scope = EVERYWHERE
    paused: bool = False
    paused_until: dt.datetime | None = None

    def rests(self, now: dt.datetime) -> bool:
        """Whether it is paused now: a pause with an end is over by itself."""
        return self.paused and (self.paused_until is None or self.paused_until > now)


def _every(seconds: int) -> When:
    return When(every_seconds=seconds)


DEFAULTS = (
    Standing(name="degrade", kind="degrade", rule=DegradeRule(), when=_every(10)),
    Standing(name="warm-up", kind="warmup", rule=WarmupRule(), when=_every(300)),
    Standing(name="retention", kind="retention", rule=RetentionRule(), when=_every(600)),
    Standing(name="compact", kind="compact", rule=CompactRule(), when=_every(60)),
    Standing(name="scrub", kind="scrub", rule=ScrubRule(), when=_every(600)),
    Standing(name="curve-sampling", kind="curve_sampling", rule=CurveRule(), when=_every(60)),
    # What is idle is a matter of the workload: these wait for a person to switch them on.
    Standing(name="compress-idle", kind="compress_idle", rule=CompressIdleRule(), when=_every(60), paused=True),
    Standing(name="offload-idle", kind="offload_idle", rule=OffloadIdleRule(), when=_every(60), paused=True),
)
DEFAULT_NAMES = frozenset(standing.name for standing in DEFAULTS)


def read_rule(kind: str, parameters: Mapping[str, Any]) -> Rule:
    """The parameters as the kind's rule. Raises BadRequest naming what is unknown, of a wrong type or out of range."""
    rule_type = KINDS.get(kind)
    if rule_type is None:
        raise BadRequest("policy_kind", f"There is no policy kind {kind!r}.", f"Kinds: {', '.join(KINDS)}.")
    problems = problems_of(rule_type, parameters, kind)
    if not problems:
        rule: Rule = build(rule_type, parameters)
        problems = rule.problems() if isinstance(rule, DegradeRule) else []
    if problems:
        known = ", ".join(knobs_of(rule_type)) or "none"
        raise BadRequest("policy_parameters", "; ".join(problems) + ".", f"Parameters of {kind}: {known}.")
    return rule


def describe(kind: str) -> dict[str, Any]:
    """A kind for people: what it does, and each parameter with its default, what is allowed and what it means."""
    rule_type = KINDS[kind]
    defaults = defaults_of(rule_type)
    return {
        "kind": kind,
        "does": " ".join((rule_type.__doc__ or "").split()),
        "namespace_scope": kind in CHOOSE_PREFIXES,
        "parameters": [
            {"name": name, "default": defaults[name], "allowed": knob.allowed, "meaning": knob.meaning}
            for name, knob in knobs_of(rule_type).items()
        ],
    }
