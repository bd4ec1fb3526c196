"""What the doctor looks at: frozen facts of one range."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass

from controlplane.insight.whymiss import WhyMiss
from controlplane.store.queries_engines import EngineView
from controlplane.store.query_types import TimeRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Thrash:
    """Prefixes of a namespace that were evicted in the range, and how many of them were soon made again."""

    namespace: str
    evicted: int
    came_back: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TierIo:
    """Copies of one tier and direction in the range."""

    tier: str
    direction: str
    count: int
    p50_seconds: float
    p99_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveFact:
    """What the engine's curve says of the cap in force and of the one it recommends."""

    hit_ratio: float
    better_ratio: float
    cap_bytes: int
    better_bytes: int
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """One engine over the range. `clock_ahead_seconds`: its clock less ours, None while it says nothing.
    `behind_since`: when the revision it has not applied was made."""

    now: EngineView
    why: WhyMiss
    thrash: tuple[Thrash, ...] = ()
    io: tuple[TierIo, ...] = ()
    curve: CurveFact | None = None
    dropped_spans: int = 0
    recoveries: int = 0
    failed_recoveries: int = 0
    clock_ahead_seconds: float | None = None
    behind_since: dt.datetime | None = None
    oldest_gap_at: dt.datetime | None = None

    @property
    def id(self) -> str:
        return self.now.id


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCommands:
    """Commands of one kind on one engine that ended badly in the range."""

    engine_id: str
    kind: str
    status: str
    count: int
    last_at: dt.datetime
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFacts:
    """One policy: its newest run, and how many of the newest runs in a row raised."""

    name: str
    paused: bool
    paused_until: dt.datetime | None
    changed_at: dt.datetime
    last_run_at: dt.datetime | None
    failures_in_a_row: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """The database. `overdue`: table -> its oldest row, where that is older than it may be kept."""

    dialect: str
    size_bytes: int | None
    overdue: Mapping[str, dt.datetime]
    epoch: int
    leader: str
    leads_since: dt.datetime | None
    leader_seen_at: dt.datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusals:
    """Telemetry that this control plane turned away since it began, for one reason."""

    of: str
    reason: str
    count: int
    last_at: dt.datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class DeckFacts:
    """Everything a rule may look at."""

    at: dt.datetime
    window: TimeRange
    engines: tuple[EngineFacts, ...]
    commands: tuple[FailedCommands, ...]
    policies: tuple[PolicyFacts, ...]
    store: StoreFacts
    refused: tuple[Refusals, ...] = ()
