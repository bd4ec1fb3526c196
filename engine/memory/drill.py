"""Faults for a game day: begun by a command in an engine that was started for it, and over by themselves."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from threading import Timer
from typing import Any

from engine.errors import ConfigError
from engine.memory.faults import At, Fault, Faults, What

LONGEST_S = 600.0
LONGEST_WAIT_S = 10.0
MOST_FAULTS = 16
FOR_GOOD = frozenset({What.CRASH, What.POWER_CUT, What.JUMP})
"""What does not end when the fault does, so that no command can begin it."""


class Drill(Faults):
    """Nothing goes wrong until `begin`, and nothing any more once its time is over. Thread-safe.

    Handing one over is the allowance: an engine without a `Drill` refuses the command `fault`.
    """

    def __init__(self, *, seed: int = 0, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__(seed=seed)
        self.armed = False
        self._now = now
        self._ends_at = 0.0
        self._timer: Timer | None = None

    def begin(self, plan: Sequence[Fault], lasts_s: float) -> None:
        """`plan` goes wrong from now on for `lasts_s` seconds, instead of what went wrong before."""
        if not 0 < lasts_s <= LONGEST_S:
            raise ConfigError(f"a fault lasts {lasts_s!r} s; it must be above 0 and at most {LONGEST_S:.0f}")
        self.end()
        with self._lock:
            self.plan = tuple(plan)
            self._matched, self._struck = [0] * len(plan), [0] * len(plan)
            self._ends_at = self._now() + lasts_s
            self.armed = True
            # Beside the look at the clock in `_choose`: a call that hangs asks no clock.
            self._timer = Timer(lasts_s, self.end)
            self._timer.daemon = True
            self._timer.start()

    def end(self) -> None:
        """Nothing goes wrong any more, and what hangs goes on. Without a fault: nothing."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self.plan, self._matched, self._struck = None, (), [], []
            self.armed = False
        self.release()

    def _choose(self, at: At, where: str) -> Fault | None:
        return super()._choose(at, where) if self._now() < self._ends_at else None

    def summary(self) -> dict[str, object]:
        """`armed` and `left_s` are 0 between two faults; `fired` counts since the start."""
        left_s = max(0.0, self._ends_at - self._now()) if self.armed else 0.0
        return {**super().summary(), "allowed": True, "left_s": round(left_s, 1)}


def read_plan(lines: Any) -> tuple[Fault, ...]:
    """A command's plan: objects with the fields of `Fault`, `what` and `at` as words. Raises `ConfigError`."""
    if not isinstance(lines, Sequence) or isinstance(lines, str) or len(lines) > MOST_FAULTS:
        raise ConfigError(f"a plan is a list of at most {MOST_FAULTS} faults, got {lines!r}")
    return tuple(_read_fault(line) for line in lines)


def _read_fault(line: Any) -> Fault:
    known = [field.name for field in fields(Fault)]
    if not isinstance(line, Mapping) or not {"what", "at"} <= set(line) or set(line) - set(known):
        raise ConfigError(f"a fault has what and at, and may have {', '.join(known[2:])}; got {line!r}")
    try:
        fault = Fault(**{**line, "what": What(line["what"]), "at": At(line["at"])})
        wait_s = float(fault.seconds)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{line!r} is no fault: {error}") from None
    if fault.what in FOR_GOOD:
        raise ConfigError(f"{fault.what} would not end with the fault; a command can begin any but {_words(FOR_GOOD)}")
    if not 0 <= wait_s <= LONGEST_WAIT_S:
        raise ConfigError(f"seconds is {wait_s}; in a command it must be 0 to {LONGEST_WAIT_S:.0f}")
    return fault


def _words(whats: frozenset[What]) -> str:
    return ", ".join(sorted(whats))
