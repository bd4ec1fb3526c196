"""What policies may propose. A policy sees frozen facts and returns these; `apply.py` alone acts on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SetMode:
    """Put an engine into a mode of degradation."""

    engine_id: str
    mode: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueCommand:
    """Send an engine a command."""

    engine_id: str
    kind: str
    arguments: Mapping[str, Any]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCurve:
    """Have an engine bring its curves with the next heartbeat."""

    engine_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimHistory:
    """Delete history past its retention, in bounded steps."""

    reason: str


Proposal = SetMode | IssueCommand | SampleCurve | TrimHistory
QUIET = frozenset({SampleCurve.__name__})  # asked again and again, and nothing changes by it: no run to record


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One decision on one engine: a word for it, why, from what, what is proposed, and what to remember."""

    decision: str  # at most 32 letters; the same word means nothing changed
    why: str
    inputs: Mapping[str, Any]
    proposals: tuple[Proposal, ...] = ()
    memory: Mapping[str, Any] = field(default_factory=dict)
    waits: bool = False  # nothing is done for a cause that passes: what asked for this run asks again


def as_json(proposal: Proposal) -> dict[str, Any]:
    """A proposal as it is kept in `policy_runs.proposed`."""
    return {"propose": type(proposal).__name__, **asdict(proposal)}
