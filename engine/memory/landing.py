"""GPU slots while a restore fills them: given back only when nobody can write to them any more."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from engine.errors import TierUnavailable
from engine.memory.arena import Slots
from engine.memory.holding import SlotCopy

T = TypeVar("T")


class Landing:
    """A copy that is being filled, by who asked for it or by a device call (ADR 10).

    A call that is left may still be at work, or may not even have begun: it reads straight into the slots, so they stay
    taken until it is over. `lock` is the engine lock; `free` is called under it, once, if the copy is given up.
    """

    def __init__(self, copy: SlotCopy, lock: AbstractContextManager[object], free: Callable[[Slots], None]) -> None:
        self.copy = copy
        self._lock = lock
        self._free = free
        self._filling = False
        self._given_up = False

    def fill(self, work: Callable[[], T]) -> T:
        """Run `work`, which writes to the slots. Raises `TierUnavailable` when they were given up before it began."""
        with self._lock:
            if self._given_up:
                raise TierUnavailable("a call began after it was left; its slots are gone")
            self._filling = True
        try:
            return work()
        finally:
            with self._lock:
                self._filling = False
                if self._given_up:
                    self._free(self.copy.slots)

    def give_up(self) -> None:
        """Nothing will be mapped to the slots: free them, now or when the call that fills them is over."""
        with self._lock:
            if not self._given_up:
                self._given_up = True
                if not self._filling:
                    self._free(self.copy.slots)
