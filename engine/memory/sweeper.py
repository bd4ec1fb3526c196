"""Files on their way out: forgotten under the engine lock, deleted or set aside later, when I/O may be done."""

from __future__ import annotations

from collections import deque
from functools import partial
from threading import Lock

from engine.memory.disk import DiskTier
from engine.memory.diskfile import DiskFile
from engine.memory.lane import Overdue
from engine.memory.transfer import Breaker, Transfer


class Sweeper:
    """Of one folder, or of none. A device that fails costs the caller nothing: the files wait for the next sweep."""

    def __init__(self, disk: DiskTier | None, io: Transfer) -> None:
        self.doomed: deque[DiskFile] = deque()
        self.damaged: deque[DiskFile] = deque()
        self.failures = 0
        self.failed = False  # the last sweep could not delete all
        self._disk = disk
        self._io = io
        self._lock = Lock()

    @property
    def names(self) -> set[str]:
        """Of the files that are still to go."""
        return {file.name for file in (*self.doomed, *self.damaged)}

    def forget(self, file: DiskFile, *, damaged: bool = False) -> None:
        """Out of the books now; its bytes go with a sweep. Under the engine lock."""
        if self._disk is not None:
            self._disk.forget(file)
            (self.damaged if damaged else self.doomed).append(file)

    def sweep(self, *, wait: bool = False) -> None:
        """Delete files that were forgotten and move damaged ones aside. I/O: called without the engine lock.

        One thread at a time; another one comes back at once, unless it is to `wait`.
        """
        if self._disk is not None and self._lock.acquire(blocking=wait):
            try:
                self._sweep(self._disk, self._io)
            finally:
                self._lock.release()

    def _sweep(self, disk: DiskTier, io: Transfer) -> None:
        self.failed = io.breaker.state is Breaker.OPEN or (io.lane is not None and io.lane.full)
        if self.failed:
            return
        try:
            if disk.leftovers:
                io.bounded(disk.delete_leftovers)
            for waiting, act in ((self.doomed, disk.unlink), (self.damaged, disk.quarantine)):
                for _ in range(len(waiting)):
                    io.bounded(partial(act, waiting[0]))
                    waiting.popleft()
        except OSError:
            self.failures, self.failed = self.failures + 1, True
        except Overdue:
            self.failures, self.failed = self.failures + 1, True
            io.breaker.trip()
