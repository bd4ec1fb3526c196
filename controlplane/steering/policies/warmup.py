"""What to bring back to the GPU: the prefixes that served most tokens and are not resident. Pure functions."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.steering.parameters import Flag, Texts, Whole, knob
from controlplane.steering.policies.proposals import IssueCommand, Verdict
from controlplane.wording import plural

PIB = 1 << 50
HOUR_SECONDS = 3600
RULE_NAME = r"[a-z][a-z0-9_-]{0,63}"
LABEL = r"[A-Za-z0-9._/-]{1,64}(=.{1,128})?"


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupRule:
    """Brings back what served most: by time, when an alert begins or ends, and when an engine has started again."""

    most_prefixes: int = knob(64, Whole(least=1, most=10_000, unit="prefixes", meaning="At most so many a command."))
    max_bytes: int = knob(
        1 << 30,
        Whole(least=1, most=PIB, unit="bytes", meaning="At most so many a command; one at a time."),
    )
    max_bytes_per_hour: int = knob(
        16 << 30, Whole(least=1, most=PIB, unit="bytes", meaning="At most so many asked for of one engine in an hour.")
    )
    minimum_tokens_served: int = knob(
        1,
        Whole(
            least=0,
            most=1 << 50,
            unit="tokens",
            meaning="What served fewer in all its lives is left where it is, unless it is pinned or labelled.",
        ),
    )
    pinned_first: bool = knob(True, Flag(meaning="Pinned prefixes go first, also pins of a boot before this one."))
    labels: tuple[str, ...] = knob(
        (),
        Texts(
            pattern=LABEL,
            form="a label's NAME or NAME=VALUE",
            most=32,
            meaning="Prefixes with one of these labels go before what only served much.",
        ),
    )
    on_alerts: tuple[str, ...] = knob(
        ("recovery_failure_rate",),
        Texts(
            pattern=RULE_NAME,
            form="the name of an alert rule",
            most=32,
            meaning="Run on an engine when one of these begins or ceases to fire there.",
        ),
    )
    on_engine_start: bool = knob(
        True, Flag(meaning="Run on an engine that has registered with a new boot, once what it holds is known.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A prefix that is not wholly on the GPU. Bytes are those below the GPU, by tier."""

    prefix_id: str
    tokens_served: int
    pinned: bool
    host_bytes: int
    disk_bytes: int
    labelled: bool = False

    @property
    def bytes_to_move(self) -> int:
        """What a restore moves at most."""
        return self.host_bytes + self.disk_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupFacts:
    """What is known of one engine now."""

    engine_id: str
    now: dt.datetime
    mode: str
    in_flight: bool  # a warm command has no outcome yet
    candidates: Sequence[Candidate]  # most tokens served first, bounded


def decide(rule: WarmupRule, facts: WarmupFacts, kept: Mapping[str, Any]) -> Verdict:
    """At most one `warm` command, inside the budgets and inside what the mode lets an engine restore."""
    asked = _asked_lately(facts, kept)
    spent = int(sum(bytes_asked for _, bytes_asked in asked))
    left = max(0, rule.max_bytes_per_hour - spent)
    seen = _inputs(facts, spent)
    memory = {"asked": asked}
    if facts.in_flight:
        why = "a warm command has no outcome yet"
        return Verdict(decision="in_flight", why=why, inputs=seen, memory=memory, waits=True)
    allowed = [candidate for candidate in facts.candidates if _mode_allows(facts.mode, candidate)]
    if facts.candidates and not allowed:
        why = f"mode {facts.mode} restores none of these"
        return Verdict(decision="mode_forbids", why=why, inputs=seen, memory=memory, waits=True)
    wanted = _wanted(rule, allowed)
    chosen = _fitting(wanted, min(rule.max_bytes, left), rule.most_prefixes)
    if not chosen:
        decision, why = _nothing(rule, wanted, left)
        return Verdict(decision=decision, why=why, inputs=seen, memory=memory)
    return _warm(rule, facts, chosen, seen, asked)


def _warm(
    rule: WarmupRule, facts: WarmupFacts, chosen: Sequence[Candidate], seen: Mapping[str, Any], asked: list[list[float]]
) -> Verdict:
    served = plural(sum(candidate.tokens_served for candidate in chosen), "token")
    are = "is" if len(chosen) == 1 else "are"
    why = f"{plural(len(chosen), 'prefix', 'prefixes')} that served {served} {are} not resident"
    moved = sum(candidate.bytes_to_move for candidate in chosen)
    command = IssueCommand(
        engine_id=facts.engine_id,
        kind="warm",
        arguments={"prefix_ids": [candidate.prefix_id for candidate in chosen], "max_bytes": rule.max_bytes},
        reason=why,
    )
    more = {
        "chosen": len(chosen),
        "bytes": moved,
        "pinned": sum(candidate.pinned for candidate in chosen),
        "labelled": sum(candidate.labelled for candidate in chosen),
    }
    memory = {"asked": [*asked, [facts.now.timestamp(), moved]]}
    return Verdict(decision="warm", why=why, inputs={**seen, **more}, proposals=(command,), memory=memory)


def _nothing(rule: WarmupRule, wanted: Sequence[Candidate], left: int) -> tuple[str, str]:
    if not wanted:
        return "nothing_to_warm", "everything that served is resident"
    if min(candidate.bytes_to_move for candidate in wanted) > rule.max_bytes:
        return "too_large", f"each of the {len(wanted)} prefixes is larger than max_bytes"
    return "rate_spent", f"{left} of {rule.max_bytes_per_hour} bytes are left in this hour, too few for any of them"


def _asked_lately(facts: WarmupFacts, kept: Mapping[str, Any]) -> list[list[float]]:
    since = facts.now.timestamp() - HOUR_SECONDS
    return [[at, asked] for at, asked in kept.get("asked", ()) if at > since]


def _inputs(facts: WarmupFacts, spent: int) -> dict[str, Any]:
    return {"mode": facts.mode, "candidates": len(facts.candidates), "bytes_in_last_hour": spent, "chosen": 0}


def _mode_allows(mode: str, candidate: Candidate) -> bool:
    if mode == "normal":
        return True
    return mode == "no_disk" and candidate.disk_bytes == 0


def _wanted(rule: WarmupRule, candidates: Sequence[Candidate]) -> list[Candidate]:
    def is_dear(candidate: Candidate) -> bool:
        return candidate.labelled or (rule.pinned_first and candidate.pinned)

    served = [c for c in candidates if c.tokens_served >= rule.minimum_tokens_served or is_dear(c)]
    # Stable: within each of the three, the order by tokens served stands.
    return sorted(served, key=lambda c: (not (rule.pinned_first and c.pinned), not c.labelled))


def _fitting(wanted: Sequence[Candidate], room: int, most_prefixes: int) -> list[Candidate]:
    chosen: list[Candidate] = []
    for candidate in wanted:
        if candidate.bytes_to_move <= room and len(chosen) < most_prefixes:
            chosen.append(candidate)
            room -= candidate.bytes_to_move
    return chosen
