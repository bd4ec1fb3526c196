"""How the scheduler's own passes over the database went: what no engine can tell."""

from __future__ import annotations

import datetime as dt
from collections import deque
from dataclasses import dataclass

KEPT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One pass: when it ended, how long it took, whether the database refused it."""

    at: dt.datetime
    seconds: float
    failed: bool


class Health:
    """The passes of this process, newest last. One thread writes and reads it: the sweep's."""

    def __init__(self) -> None:
        self._passes: deque[Pass] = deque(maxlen=KEPT)

    def note(self, at: dt.datetime, seconds: float, *, failed: bool = False) -> None:
        """Remembers a pass."""
        self._passes.append(Pass(at=at, seconds=seconds, failed=failed))

    def longest_seconds(self, since: dt.datetime) -> float:
        """The longest pass that went well; 0 when there was none."""
        return max((one.seconds for one in self._passes if one.at >= since and not one.failed), default=0.0)

    def failures(self, since: dt.datetime) -> int:
        """Passes that were refused."""
        return sum(one.failed for one in self._passes if one.at >= since)
