"""Upkeep: compact what is fragmented, scrub a little at a time, move what is idle out of the way. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.steering.command_kinds import TIERS
from controlplane.steering.parameters import Choice, Number, Whole, knob
from controlplane.steering.policies.proposals import IssueCommand, Verdict

DAY_SECONDS = 86_400
PIB = 1 << 50
_IDLE = Whole(
    least=1, most=30 * DAY_SECONDS, unit="seconds", meaning="A prefix that served nothing for so long is idle."
)
_PREFIXES = Whole(least=1, most=10_000, unit="prefixes", meaning="At most so many a command.")
_BACK_OFF = Whole(
    least=1,
    most=30 * DAY_SECONDS,
    unit="seconds",
    meaning="A prefix the engine refused is left alone for so long; each further refusal doubles it.",
)
_LONGEST_BACK_OFF = Whole(
    least=1, most=30 * DAY_SECONDS, unit="seconds", meaning="The back-off of a refused prefix never grows past this."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactRule:
    """Compacts an engine's memory while it is fragmented."""

    fragmentation_above: float = knob(
        0.4,
        Number(least=0, most=1, unit="as a share", meaning="Compact above this share of free bytes in used slabs."),
    )
    max_pages: int = knob(4096, Whole(least=1, most=1 << 32, unit="pages", meaning="At most so many a command."))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubRule:
    """Reads and proves stored bytes, a little each run."""

    max_bytes: int = knob(256 << 20, Whole(least=1, most=PIB, unit="bytes", meaning="Read and prove so many a run."))


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressIdleRule:
    """Codes prefixes that are whole on the GPU and idle. What the engine refused is not judged again at once."""

    idle_seconds: int = knob(600, _IDLE)
    most_prefixes: int = knob(64, _PREFIXES)
    back_off_seconds: int = knob(3600, _BACK_OFF)
    longest_back_off_seconds: int = knob(DAY_SECONDS, _LONGEST_BACK_OFF)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadIdleRule:
    """Moves idle prefixes to a lower tier. What the engine refused is not asked for again at once."""

    idle_seconds: int = knob(3600, _IDLE)
    most_prefixes: int = knob(64, _PREFIXES)
    tier: str = knob("host", Choice(of=TIERS, meaning="Where to."))
    back_off_seconds: int = knob(600, _BACK_OFF)
    longest_back_off_seconds: int = knob(DAY_SECONDS, _LONGEST_BACK_OFF)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepFacts:
    """What is known of one engine now. `idle_prefixes`: longest idle first, never a pinned or a lately refused one."""

    engine_id: str
    in_flight: bool  # a command of the same kind has no outcome yet
    fragmentation: float | None = None
    idle_prefixes: Sequence[str] = ()
    backing_off: int = 0  # prefixes left alone because the engine refused them


def decide_compact(rule: CompactRule, facts: UpkeepFacts) -> Verdict:
    """One `compact` command while memory is fragmented."""
    inputs = {"fragmentation": facts.fragmentation}
    if facts.fragmentation is None:
        return Verdict(decision="fragmentation_unknown", why="the engine has not said it yet", inputs=inputs)
    if facts.fragmentation <= rule.fragmentation_above:
        return Verdict(decision="not_fragmented", why=f"at most {rule.fragmentation_above:.0%} is free", inputs=inputs)
    why = f"{facts.fragmentation:.0%} of the bytes of used slabs are free"
    return _issue("compact", {"max_pages": rule.max_pages}, why, facts, inputs)


def decide_scrub(rule: ScrubRule, facts: UpkeepFacts) -> Verdict:
    """One bounded `scrub` command a run."""
    why = f"the next {rule.max_bytes >> 20} MiB of stored objects are due"
    return _issue("scrub", {"max_bytes": rule.max_bytes}, why, facts, {})


def decide_compress(rule: CompressIdleRule, facts: UpkeepFacts) -> Verdict:
    """One `compress` command for what is idle."""
    return _decide_idle("compress", {}, rule, facts)


def decide_offload(rule: OffloadIdleRule, facts: UpkeepFacts) -> Verdict:
    """One `offload` command for what is idle."""
    return _decide_idle("offload", {"tier": rule.tier}, rule, facts)


def _decide_idle(
    kind: str, arguments: Mapping[str, Any], rule: CompressIdleRule | OffloadIdleRule, facts: UpkeepFacts
) -> Verdict:
    chosen = list(facts.idle_prefixes[: rule.most_prefixes])
    inputs = {"idle": len(facts.idle_prefixes), "chosen": len(chosen), "backing_off": facts.backing_off}
    if not chosen:
        left = f"; {facts.backing_off} that were refused wait" if facts.backing_off else ""
        return Verdict(decision="nothing_idle", why=f"nothing is idle for {rule.idle_seconds} s{left}", inputs=inputs)
    why = f"{len(chosen)} prefixes served nothing for {rule.idle_seconds} s"
    return _issue(kind, {"prefix_ids": chosen, **arguments}, why, facts, inputs)


def _issue(kind: str, arguments: Mapping[str, Any], why: str, facts: UpkeepFacts, inputs: Mapping[str, Any]) -> Verdict:
    if facts.in_flight:
        return Verdict(decision="in_flight", why=f"a {kind} command has no outcome yet", inputs=inputs)
    command = IssueCommand(engine_id=facts.engine_id, kind=kind, arguments=arguments, reason=why)
    return Verdict(decision=kind, why=why, inputs=inputs, proposals=(command,))
