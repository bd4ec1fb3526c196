"""How long to wait before the next try, with jitter so that a hundred hosts do not come back at once."""

from __future__ import annotations

import random


class Backoff:
    """Doubles from `first_seconds` to `longest_seconds`; each wait is drawn from its upper half."""

    def __init__(self, first_seconds: float = 0.5, longest_seconds: float = 15.0) -> None:
        self._first = first_seconds
        self._longest = longest_seconds
        self._next = first_seconds

    def next_seconds(self) -> float:
        """The wait after one more failure."""
        wait = self._next * random.uniform(0.5, 1.0)
        self._next = min(self._next * 2, self._longest)
        return wait

    def reset(self) -> None:
        """After a success."""
        self._next = self._first
