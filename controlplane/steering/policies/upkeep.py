"""Upkeep: compact what is fragmented, scrub a little at a time, move what is idle out of the way. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.steering.policies.proposals import IssueCommand, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactRule:
    """Compact when this share of the bytes of used slabs is free; at most so many pages a command."""

    fragmentation_above: float = 0.4
    max_pages: int = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubRule:
    """Read and prove this many stored bytes a run."""

    max_bytes: int = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressIdleRule:
    """Code prefixes that are whole on the GPU and served nothing for so long."""

    idle_seconds: int = 600
    most_prefixes: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadIdleRule:
    """Move prefixes that served nothing for so long to a lower tier, `host` or `disk`."""

    idle_seconds: int = 3600
    most_prefixes: int = 64
    tier: str = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepFacts:
    """What is known of one engine now. `idle_prefixes`: longest idle first, never a pinned one."""

    engine_id: str
    in_flight: bool  # a command of the same kind has no outcome yet
    fragmentation: float | None = None
    idle_prefixes: Sequence[str] = ()


def decide_compact(rule: CompactRule, facts: UpkeepFacts) -> Verdict:
    """One `compact` command while memory is fragmented."""
    inputs = {"fragmentation": facts.fragmentation}
    if facts.fragmentation is None or facts.fragmentation <= rule.fragmentation_above:
        return Verdict(decision="not_fragmented", why=f"at most {rule.fragmentation_above} is free", inputs=inputs)
    why = f"{facts.fragmentation:.0%} of the bytes of used slabs are free"
    return _issue("compact", {"max_pages": rule.max_pages}, why, facts, inputs)


def decide_scrub(rule: ScrubRule, facts: UpkeepFacts) -> Verdict:
    """One bounded `scrub` command a run."""
    why = f"the next {rule.max_bytes >> 20} MiB of stored objects are due"
    return _issue("scrub", {"max_bytes": rule.max_bytes}, why, facts, {})


def decide_compress(rule: CompressIdleRule, facts: UpkeepFacts) -> Verdict:
    """One `compress` command for what is idle."""
    return _decide_idle("compress", {}, rule.idle_seconds, rule.most_prefixes, facts)


def decide_offload(rule: OffloadIdleRule, facts: UpkeepFacts) -> Verdict:
    """One `offload` command for what is idle."""
    return _decide_idle("offload", {"tier": rule.tier}, rule.idle_seconds, rule.most_prefixes, facts)


def _decide_idle(
    kind: str, arguments: Mapping[str, Any], idle_seconds: int, most_prefixes: int, facts: UpkeepFacts
) -> Verdict:
    chosen = list(facts.idle_prefixes[:most_prefixes])
    inputs = {"idle": len(facts.idle_prefixes), "chosen": len(chosen)}
    if not chosen:
        return Verdict(decision="nothing_idle", why=f"nothing is idle for {idle_seconds} s", inputs=inputs)
    why = f"{len(chosen)} prefixes served nothing for {idle_seconds} s"
    return _issue(kind, {"prefix_ids": chosen, **arguments}, why, facts, inputs)


def _issue(kind: str, arguments: Mapping[str, Any], why: str, facts: UpkeepFacts, inputs: Mapping[str, Any]) -> Verdict:
    if facts.in_flight:
        return Verdict(decision="in_flight", why=f"a {kind} command has no outcome yet", inputs=inputs)
    command = IssueCommand(engine_id=facts.engine_id, kind=kind, arguments=arguments, reason=why)
    return Verdict(decision=kind, why=why, inputs=inputs, proposals=(command,))
