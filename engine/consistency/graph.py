"""CUDA-graph topology: page tables at fixed addresses, epochs, and safe points. The same protocol on a CPU.

A captured graph reads page tables by address. While a capture or a replay runs (a window), nothing that moves or frees
pages may happen: it is deferred to the safe point at the window's end. What it changed moves the epoch, and a replay of
an older epoch raises `GraphStale`. How to use it: docs/howto/paged-kernels.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock

import torch

from engine.errors import ConfigError, GraphStale


class GraphGuard:
    """Windows, deferral and the epoch.

    `lock` is the engine's: a window opens between two locked steps, so whoever looked under the lock and saw none may
    move or free pages until the step's end. `freed_slots` counts the GPU slots that were ever freed: whatever frees
    one moves the epoch. `reads_given` tells those who overwrite pages that the caller's stream may still read some.
    """

    def __init__(
        self,
        lock: RLock | None = None,
        *,
        freed_slots: Callable[[], int] = lambda: 0,
        reads_given: Callable[[], None] = lambda: None,
    ) -> None:
        self._lock = lock or RLock()
        self._windows = 0
        self._deferred: list[Callable[[], None]] = []
        self._changes = 0
        self._freed_slots = freed_slots
        self._reads_given = reads_given

    @property
    def epoch(self) -> int:
        """Grows with every change of what page tables point to. While it stands, a filled table stays right."""
        return self._changes + self._freed_slots()

    @property
    def in_window(self) -> bool:
        return self._windows > 0

    @contextmanager
    def window(self, epoch: int | None = None) -> Iterator[int]:
        """A capture (no epoch) or a replay of a graph captured at `epoch`. Yields the epoch it began at.

        A replay need not have ended when its window does: on a GPU pages are overwritten after what the caller's
        current stream was given. Raises `GraphStale` when page tables changed since the capture.
        """
        with self._lock:
            now = self.epoch
            if epoch is not None and epoch != now:
                raise GraphStale(f"the graph was captured at epoch {epoch}, page tables are at {now}; capture it again")
            self._windows += 1
        try:
            yield now
        finally:
            try:
                self._reads_given()
            finally:
                self._close()

    def _close(self) -> None:
        with self._lock:
            self._windows -= 1
            waiting = self._deferred if not self._windows else []
            if waiting:
                self._deferred = []
        for work in waiting:
            work()

    def at_safe_point(self, work: Callable[[], None]) -> bool:
        """Run `work` now, or after the last open window. True when it ran now."""
        with self._lock:
            if self._windows:
                self._deferred.append(work)
                return False
        work()
        return True

    def changed(self) -> None:
        """Page tables point elsewhere now."""
        with self._lock:
            self._changes += 1


class PageTable:
    """Byte offsets of pages, int64 [capacity], in one tensor whose address never changes.

    The first `length` entries are pages; the others are 0, which is inside the buffer, for kernels that read the whole
    table and mask. Its owner is the only one who fills it, and never while a stream may still read it, except on that
    very stream. Raises `ConfigError` for a capacity below 1.
    """

    def __init__(self, capacity_pages: int, device: str | torch.device) -> None:
        if capacity_pages < 1:
            raise ConfigError(f"a page table of {capacity_pages} pages; it must hold at least 1")
        with torch.inference_mode(False):  # an inference tensor could not be filled outside that mode
            self.offsets = torch.zeros(capacity_pages, dtype=torch.int64, device=device)
        self.length = 0

    @property
    def capacity_pages(self) -> int:
        return len(self.offsets)

    def fill(self, offsets: torch.Tensor) -> None:
        """Replace the entries in place. Raises `ConfigError` past the capacity or inside a capture: nothing changes.

        A capture runs nothing, so what is filled in it would only be there after a replay.
        """
        n = len(offsets)
        if n > self.capacity_pages:
            raise ConfigError(
                f"{n} pages do not fit a page table of {self.capacity_pages}; make it larger and capture again"
            )
        if self.offsets.is_cuda and torch.cuda.is_current_stream_capturing():
            raise ConfigError("a page table is filled before the capture of a graph begins, not in it")
        self.offsets[:n].copy_(offsets)
        self.offsets[n : max(n, self.length)].zero_()
        self.length = n
