"""What came of a game day: its timeline, the hit rate before, at its lowest and after, and what the engine counted."""

from __future__ import annotations

import datetime as dt
from collections import deque
from dataclasses import dataclass, field

from controlplane.workload.gameday_signs import Reading, grown

HIT_WINDOW_SECONDS = 6.0
FEWEST_REQUESTS = 10
WRONG, VERIFIED = ("wrong_bytes",), ("verified_bytes",)
FILES, BYTES = ("io", "disk", "quarantined_files"), ("io", "disk", "quarantined_bytes")
SUMMED = (WRONG, VERIFIED, FILES, BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of the timeline; `offset_seconds` from the incident, None before it."""

    at: dt.datetime
    offset_seconds: float | None
    phase: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HitRates:
    """Shares of prompt tokens served from the cache; None: too few requests to say."""

    before: float | None = None
    lowest: float | None = None
    after: float | None = None


@dataclass(slots=True, kw_only=True)
class Result:
    """What came of a game day. It went well if all was seen in time and no byte of many was wrong."""

    day: str
    events: list[Event] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    hit_rate: HitRates = field(default_factory=HitRates)
    verified_bytes: int = 0
    wrong_bytes: int = 0
    quarantined_files: int = 0
    quarantined_bytes: int = 0
    finished: bool = False

    @property
    def went_well(self) -> bool:
        """Nothing verified would be no proof of anything."""
        return self.finished and not self.missed and self.wrong_bytes == 0 and self.verified_bytes > 0


class Meter:
    """Hit rate and sums over readings; an engine that starts again counts from 0, and its sums go on here."""

    def __init__(self) -> None:
        self._recent: deque[Reading] = deque()
        self._last: Reading | None = None
        self.lowest: float | None = None
        self.sums: dict[tuple[str, ...], float] = dict.fromkeys(SUMMED, 0.0)

    def take(self, reading: Reading) -> None:
        """The next reading."""
        if reading.engine is None:
            return
        if self._last is not None:
            for path in SUMMED:
                self.sums[path] += grown(path, self._last, reading)
        self._last = reading
        if self._recent and self._recent[-1].boot != reading.boot:
            self._recent.clear()
        self._recent.append(reading)
        while len(self._recent) > 2 and (reading.at - self._recent[1].at).total_seconds() >= HIT_WINDOW_SECONDS:
            self._recent.popleft()

    def hit_now(self) -> float | None:
        """Over the last seconds."""
        return hit_rate(self._recent[0], self._recent[-1]) if self._recent else None

    def note_lowest(self) -> None:
        """The lowest since the first call."""
        now = self.hit_now()
        if now is not None:
            self.lowest = now if self.lowest is None else min(self.lowest, now)


def hit_rate(first: Reading, last: Reading) -> float | None:
    """Between two readings; None when too few requests ran for a rate to mean anything."""
    asked = grown(("prompt_tokens",), first, last)
    if grown(("requests",), first, last) < FEWEST_REQUESTS or asked <= 0:
        return None
    return grown(("usable_tokens",), first, last) / asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """The time before the incident: what everything is measured by."""

    first: Reading
    last: Reading

    @property
    def seconds(self) -> float:
        """How long it was looked at."""
        return (self.last.at - self.first.at).total_seconds()

    @property
    def hit_rate(self) -> float | None:
        """Share of prompt tokens; None when too few requests ran."""
        return hit_rate(self.first, self.last)

    @property
    def requests_a_second(self) -> float:
        """Traffic."""
        return grown(("requests",), self.first, self.last) / max(1.0, self.seconds)
