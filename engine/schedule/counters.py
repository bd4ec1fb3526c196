"""What everything counts up to, and the damage that was found."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.consistency.prefix import CauseOf
from engine.schedule.validation import Check

DAMAGE_KEPT = 256


@dataclass(slots=True)
class Counters:
    """Plain ints, written under the engine lock, read by anyone. Token counters, never only ratios."""

    requests: int = 0
    prompt_tokens: int = 0
    lcp_tokens: int = 0
    usable_tokens: int = 0
    replay_tokens: int = 0
    validations: int = 0
    transitions: int = 0
    commits: int = 0
    by_validation: dict[tuple[str, str, str], int] = field(default_factory=dict)  # validation, verdict, reason
    by_hit: dict[tuple[str, str, str], list[int]] = field(default_factory=dict)  # kind, state, tier -> tokens, requests
    by_namespace: dict[str, list[int]] = field(default_factory=dict)  # tokens, requests asked
    by_outcome: dict[str, int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)  # cause -> tokens of prompts that were no hit
    recoveries: dict[tuple[str, str], int] = field(default_factory=dict)  # tier, outcome
    evictions: dict[tuple[str, str], int] = field(default_factory=dict)  # cause, kind
    refusals: dict[str, int] = field(default_factory=dict)  # reason -> commits of which nothing was kept
    cuts: dict[str, int] = field(default_factory=dict)  # reason -> commits of which only the beginning was kept
    checkpoints_dropped: dict[str, int] = field(default_factory=dict)  # reason
    verified_bytes: int = 0
    wrong_bytes: int = 0

    def count_checks(self, checks: tuple[Check, ...]) -> None:
        """By name, verdict and reason."""
        self.validations += len(checks)
        table = self.by_validation
        for check in checks:
            key = (str(check.validation), str(check.verdict), check.reason)
            table[key] = table.get(key, 0) + 1

    def count_eviction(self, cause: CauseOf, kind: str) -> None:
        key = (str(cause.cause), kind)
        self.evictions[key] = self.evictions.get(key, 0) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """One damaged object, for people."""

    prefix_id: str
    kind: str
    reason: str
    at_ns: int
