"""Whose turn it is among the threads of this process, first come, first served."""

from __future__ import annotations

import threading
from collections import deque


class Turns:
    """A lock that whoever waits longest gets next. `threading.Lock` goes to whoever asks first after its release: a
    thread that takes it again at once keeps all others out."""

    def __init__(self) -> None:
        self._books = threading.Lock()
        self._taken = False
        self._waiting: deque[threading.Lock] = deque()  # each held, until it is that one's turn

    def take(self, timeout_seconds: float) -> bool:
        """Waits for the turn; whether it came in time. Whoever has it must `leave`."""
        with self._books:
            if not self._taken:
                self._taken = True
                return True
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        if mine.acquire(timeout=timeout_seconds):
            return True
        with self._books:
            if mine not in self._waiting:  # it came between the two
                return True
            self._waiting.remove(mine)
            return False

    def leave(self) -> None:
        """Hands the turn to the next."""
        with self._books:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False
