"""What one look at the store brings back, as values the pages draw."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import pandas as pd

from controlplane.clock import floor_minute
from controlplane.store import queries

SLOT_MINUTES = ((60, 1), (6 * 60, 5), (24 * 60, 15))
"""Up to this many minutes of range, a chart has one point for so many minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineNow:
    """An engine with what a person asks first: does it speak, does it work, does it run what was asked.

    Tokens and requests are of the last minutes, so that the hit rate is that of now.
    """

    view: queries.EngineView
    requests_lately: int
    prompt_tokens_lately: int = 0
    usable_tokens_lately: int = 0

    @property
    def health(self) -> str:
        """live, idle (speaks, but no requests), stale, unreachable or left."""
        return "idle" if self.view.health == "live" and not self.requests_lately else self.view.health

    @property
    def hit_ratio(self) -> float | None:
        """Usable over prompt tokens of the last minutes; None without requests."""
        return self.usable_tokens_lately / self.prompt_tokens_lately if self.prompt_tokens_lately else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlaneHealth:
    """`state`: up, unreachable (no answer), database unreadable (it answers, its database does not)."""

    state: str
    detail: str
    checked_at: dt.datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Charts:
    """The frames of one time range, read in one snapshot, and when that was. Each point is of `step_minutes`;
    `io_every`: one minute of so many was read for latencies; `version` is the same while the frames are."""

    as_of: dt.datetime
    since: dt.datetime
    step_minutes: int
    io_every: int
    version: str
    requests: pd.DataFrame
    losses: pd.DataFrame
    queries: pd.DataFrame
    hits: pd.DataFrame
    recoveries: pd.DataFrame
    io: pd.DataFrame
    fragmentation: pd.DataFrame
    tier_bytes: pd.DataFrame
    mode: pd.DataFrame
    marks: pd.DataFrame

    @property
    def shown_range(self) -> tuple[dt.datetime, dt.datetime]:
        """The range in whole minutes: what a time axis shows."""
        return floor_minute(self.since), floor_minute(self.as_of) + dt.timedelta(minutes=1)

    @property
    def of(self) -> tuple[str, dt.datetime, dt.datetime]:
        """What every chart of these frames depends on; see `charting.chart`."""
        return self.version, *self.shown_range


@dataclass(frozen=True, slots=True, kw_only=True)
class Validations:
    """How validations ended over a range. `slots`: those that did not pass, by time slot."""

    counts: list[queries.ValidationCount]
    slots: pd.DataFrame
    failures: list[queries.FailureView]


def slot_minutes(minutes: int) -> int:
    """How many minutes one point stands for in a chart over a range."""
    return next((step for most, step in SLOT_MINUTES if minutes <= most), SLOT_MINUTES[-1][1])
