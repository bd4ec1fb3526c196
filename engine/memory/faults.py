"""Faults on purpose, at the seam below the tiers: a frozen plan says what goes wrong, where, when and how often.

Handed over by `CacheEngine(..., faults=...)` alone: no configuration, environment or desired state reaches it, and a
command only where a `Drill` (drill.py) was handed over. An engine without either runs the plain `SystemDevice`,
`Arena` and clock. What each leads to: docs/reference/faults.md.
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from threading import Event, Lock
from typing import TypeVar

from engine.errors import ConfigError

T = TypeVar("T")


class At(StrEnum):
    """Where a fault can strike: the calls of a device, of an arena, of a queue's worker and of the clock."""

    OPEN = "open"
    READ = "read"
    WRITE = "write"
    SYNC = "sync"
    RENAME = "rename"
    SYNC_FOLDER = "sync_folder"
    UNLINK = "unlink"
    SCAN = "scan"
    GPU_TAKE = "gpu_take"
    GPU_READ = "gpu_read"
    GPU_WRITE = "gpu_write"
    HOST_TAKE = "host_take"
    HOST_READ = "host_read"
    HOST_WRITE = "host_write"
    WORKER = "worker"
    WALL_CLOCK = "wall_clock"
    MONOTONIC_CLOCK = "monotonic_clock"


class What(StrEnum):
    """What goes wrong."""

    BIT_FLIP = "bit_flip"  # one bit of the bytes that pass, or that are written
    TRUNCATE = "truncate"  # half of the bytes are lost, and success is reported
    SHORT = "short"  # fewer bytes than asked for, and said so
    MISSING = "missing"  # the file is deleted before it is opened
    FOREIGN = "foreign"  # the file is another object's
    CRASH = "crash"  # the process dies before the call: from then on nothing reaches the device
    POWER_CUT = "power_cut"  # and what was not synced is lost: bytes by half, names altogether
    NO_SPACE = "no_space"
    IO_ERROR = "io_error"
    NO_FILES = "no_files"  # EMFILE
    SLOW = "slow"
    HANG = "hang"  # until released
    OUT_OF_MEMORY = "out_of_memory"
    DEATH = "death"  # of the worker's thread
    JUMP = "jump"  # of the clock


_ERRNO = {What.NO_SPACE: errno.ENOSPC, What.IO_ERROR: errno.EIO, What.NO_FILES: errno.EMFILE}
_DEVICE = frozenset({At.OPEN, At.READ, At.WRITE, At.SYNC, At.RENAME, At.SYNC_FOLDER, At.UNLINK, At.SCAN})
_COPIES = frozenset({At.GPU_READ, At.GPU_WRITE, At.HOST_READ, At.HOST_WRITE})
_TAKES = frozenset({At.GPU_TAKE, At.HOST_TAKE})
POSSIBLE: Mapping[What, frozenset[At]] = {
    What.BIT_FLIP: frozenset({At.READ, At.WRITE}) | _COPIES,
    What.TRUNCATE: frozenset({At.READ, At.WRITE}),
    What.SHORT: frozenset({At.READ, At.WRITE}),
    What.MISSING: frozenset({At.OPEN}),
    What.FOREIGN: frozenset({At.OPEN}),
    What.CRASH: _DEVICE,
    What.POWER_CUT: _DEVICE,
    What.NO_SPACE: _DEVICE,
    What.IO_ERROR: _DEVICE,
    What.NO_FILES: frozenset({At.OPEN, At.SCAN, At.SYNC_FOLDER}),
    What.SLOW: _DEVICE | _COPIES,
    What.HANG: _DEVICE,
    What.OUT_OF_MEMORY: frozenset({At.READ}) | _COPIES | _TAKES,
    What.DEATH: frozenset({At.WORKER}),
    What.JUMP: frozenset({At.WALL_CLOCK, At.MONOTONIC_CLOCK}),
}
"""Which faults can happen where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One line of a plan. Raises `ConfigError` for a fault that cannot happen there.

    `where` is a part of the file's name, or the page class, or the queue's form; empty: any. Of the calls that match,
    the `nth` is the first one struck (from 1); or each one by `chance`. `times` in all; None: until disarmed.
    """

    what: What
    at: At
    where: str = ""
    nth: int = 1
    chance: float = 0.0
    times: int | None = 1
    seconds: float = 0.0  # SLOW: how long; JUMP: how far, backwards too

    def __post_init__(self) -> None:
        if self.at not in POSSIBLE[self.what]:
            raise ConfigError(f"{self.what} cannot happen at {self.at}; it can at {', '.join(POSSIBLE[self.what])}")
        if self.nth < 1 or not 0.0 <= self.chance <= 1.0 or (self.times is not None and self.times < 1):
            raise ConfigError(f"nth is {self.nth} and times {self.times}, from 1; chance is {self.chance}, 0 to 1")
        if self.what is What.JUMP and self.at is At.MONOTONIC_CLOCK and self.seconds < 0:
            raise ConfigError("the monotonic clock never jumps back; give seconds of 0 or more")


class WorkerDied(BaseException):
    """A worker's thread is to end here; only `What.DEATH` raises it."""


class Faults:
    """An armed plan. Thread-safe. `disarm` ends all, hangs included."""

    def __init__(self, *plan: Fault, seed: int = 0, sleep: Callable[[float], None] = time.sleep) -> None:
        self.plan = plan
        self.seen: Counter[At] = Counter()
        self.fired: Counter[tuple[What, At]] = Counter()
        self.armed = True
        self.gone = False  # a crash struck: nothing reaches the device any more
        self._matched = [0] * len(plan)
        self._struck = [0] * len(plan)
        self._luck = random.Random(seed)
        self._sleep = sleep
        self._released = Event()
        self._lock = Lock()
        self.hanging = 0

    def disarm(self) -> None:
        """Nothing goes wrong any more; what hangs goes on. A crash stays one."""
        self.armed = False
        self.release()

    def arm(self) -> None:
        """The plan goes on where it was."""
        self.armed = True

    def release(self) -> None:
        """What hangs now goes on; later hangs hang."""
        with self._lock:
            released, self._released = self._released, Event()
        released.set()

    def strike(self, at: At, where: str = "") -> Fault | None:
        """The fault that meets this call, waited out if it is one of time. Raises it if it is an error."""
        with self._lock:
            self.seen[at] += 1
            fault = self._choose(at, where) if self.armed else None
            if fault is None:
                return None
            self.fired[fault.what, at] += 1
            self.hanging += fault.what is What.HANG
            released = self._released
        if fault.what is What.SLOW:
            self._sleep(fault.seconds)
        elif fault.what is What.HANG:
            released.wait()
            with self._lock:
                self.hanging -= 1
        elif code := _ERRNO.get(fault.what):
            raise OSError(code, os.strerror(code), where)
        elif fault.what is What.DEATH:
            raise WorkerDied(where)
        return fault

    def _choose(self, at: At, where: str) -> Fault | None:
        for i, fault in enumerate(self.plan):
            if fault.at is not at or fault.where not in where:
                continue
            self._matched[i] += 1
            if fault.times is not None and self._struck[i] >= fault.times:
                continue
            due = self._luck.random() < fault.chance if fault.chance else self._matched[i] >= fault.nth
            if due:
                self._struck[i] += 1
                return fault
        return None

    def summary(self) -> dict[str, object]:
        """What an engine says of it in its stats."""
        with self._lock:
            fired = {f"{what}@{at}": n for (what, at), n in self.fired.items()}
        return {"armed": len(self.plan) if self.armed else 0, "fired": fired}

    def worker_takes(self, form: str) -> None:
        """A queue's worker is about to begin an item."""
        self.strike(At.WORKER, form)
