"""How fast the model computes new tokens: configured at first, measured once there are reports enough."""

from __future__ import annotations

from math import isfinite
from threading import Lock

REPORTS_WANTED = 8
"""A measured pace replaces the configured one from this many reports on: the first ones are warm-up and noise."""
_WEIGHT = 0.2


class PrefillPace:
    """`tokens_per_s` is a plain float that anyone may read. Reports may come from any thread."""

    def __init__(self, configured_tokens_per_s: float) -> None:
        self.tokens_per_s = configured_tokens_per_s
        self.reports = 0
        self._tokens = 0.0
        self._seconds = 0.0
        self._lock = Lock()

    def report(self, tokens: int, seconds: float) -> None:
        """`tokens` were computed in `seconds`. Exponentially weighted, tokens and seconds each, so that a short prompt
        counts by its length. A report of nothing, or of no finite time, says nothing."""
        if tokens <= 0 or not (seconds > 0 and isfinite(seconds)):
            return
        with self._lock:
            weight = _WEIGHT if self.reports else 1.0
            self._tokens += weight * (tokens - self._tokens)
            self._seconds += weight * (seconds - self._seconds)
            self.reports += 1
            if self.reports >= REPORTS_WANTED:
                self.tokens_per_s = self._tokens / self._seconds
