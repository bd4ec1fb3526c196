"""What to bring back to the GPU: the prefixes that served most tokens and are not resident. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.steering.policies.proposals import IssueCommand, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupRule:
    """The parameters. Budgets are for one command; only one is in flight an engine."""

    most_prefixes: int = 64
    max_bytes: int = 1 << 30
    minimum_tokens_served: int = 1
    pinned_first: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A prefix that is not wholly on the GPU. Bytes are those below the GPU, by tier."""

    prefix_id: str
    tokens_served: int
    pinned: bool
    host_bytes: int
    disk_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupFacts:
    """What is known of one engine now."""

    engine_id: str
    mode: str
    in_flight: bool  # a warm command has no outcome yet
    candidates: Sequence[Candidate]  # most tokens served first, bounded


def decide(rule: WarmupRule, facts: WarmupFacts) -> Verdict:
    """At most one `warm` command, inside the budgets and inside what the mode lets an engine restore."""
    if facts.in_flight:
        return _verdict("in_flight", "a warm command has no outcome yet", facts, [])
    allowed = [candidate for candidate in facts.candidates if _mode_allows(facts.mode, candidate)]
    if facts.candidates and not allowed:
        return _verdict("mode_forbids", f"mode {facts.mode} restores none of these", facts, [])
    chosen = _choose(rule, allowed)
    if not chosen:
        return _verdict("nothing_to_warm", "everything that served is resident", facts, [])
    why = f"{len(chosen)} prefixes that served {sum(c.tokens_served for c in chosen)} tokens are not resident"
    return _verdict("warm", why, facts, chosen, max_bytes=rule.max_bytes)


def _mode_allows(mode: str, candidate: Candidate) -> bool:
    if mode == "normal":
        return True
    return mode == "no_disk" and candidate.disk_bytes == 0


def _choose(rule: WarmupRule, candidates: Sequence[Candidate]) -> list[Candidate]:
    served = [candidate for candidate in candidates if candidate.tokens_served >= rule.minimum_tokens_served]
    # Stable: within pinned and not pinned, the order by tokens served stands.
    ordered = sorted(served, key=lambda candidate: not (rule.pinned_first and candidate.pinned))
    chosen: list[Candidate] = []
    room = rule.max_bytes
    for candidate in ordered:
        needs = candidate.host_bytes + candidate.disk_bytes
        if needs <= room and len(chosen) < rule.most_prefixes:
            chosen.append(candidate)
            room -= needs
    return chosen


def _verdict(decision: str, why: str, facts: WarmupFacts, chosen: Sequence[Candidate], max_bytes: int = 0) -> Verdict:
    command = IssueCommand(
        engine_id=facts.engine_id,
        kind="warm",
        arguments={"prefix_ids": [candidate.prefix_id for candidate in chosen], "max_bytes": max_bytes},
        reason=why,
    )
    inputs = {
        "mode": facts.mode,
        "candidates": len(facts.candidates),
        "chosen": len(chosen),
        "bytes": sum(candidate.host_bytes + candidate.disk_bytes for candidate in chosen),
    }
    return Verdict(decision=decision, why=why, inputs=inputs, proposals=(command,) if chosen else ())
