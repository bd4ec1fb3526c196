"""Time, injected: wall clock for people and records, monotonic clock for durations and deadlines."""

from __future__ import annotations

import time
from typing import Protocol

NS_PER_S = 1_000_000_000


class Clock(Protocol):
    def wall_ns(self) -> int:
        """Nanoseconds since 1970; may jump."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds that only move forward; every deadline and duration uses this one."""
        ...


class SystemClock:
    wall_ns = staticmethod(time.time_ns)
    monotonic_ns = staticmethod(time.monotonic_ns)


class ManualClock:
    """A clock that moves only when told; shipped, because embedders test with it too."""

    def __init__(self, wall_ns: int = 1_800_000_000 * NS_PER_S, monotonic_ns: int = NS_PER_S) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns

    def wall_ns(self) -> int:
        return self._wall_ns

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def advance(self, seconds: float) -> None:
        """Move both clocks forward."""
        step_ns = int(seconds * NS_PER_S)
        self._wall_ns += step_ns
        self._monotonic_ns += step_ns

    def jump_wall(self, seconds: float) -> None:
        """Move only the wall clock, as NTP or a person does."""
        self._wall_ns += int(seconds * NS_PER_S)
