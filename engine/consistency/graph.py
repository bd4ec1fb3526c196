"""CUDA-graph topology: page tables at fixed addresses, epochs, and safe points. The same protocol on a CPU.

A captured graph reads page tables by address. While a capture or a replay runs (a window), nothing that moves or frees
pages may happen: it is deferred to the safe point at the window's end. What it changed moves the epoch, and a replay of
an older epoch raises `GraphStale`.
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
    move or free pages until the step's end.
    """

    def __init__(self, lock: RLock | None = None) -> None:
        self._lock = lock or RLock()
        self._windows = 0
        self._deferred: list[Callable[[], None]] = []
        self.epoch = 0

    @property
    def in_window(self) -> bool:
        return self._windows > 0

    @contextmanager
    def window(self, epoch: int | None = None) -> Iterator[int]:
        """A capture (no epoch) or a replay of a graph captured at `epoch`. Yields the current epoch.

        Raises `GraphStale` when page tables changed since the capture.
        """
        with self._lock:
            if epoch is not None and epoch != self.epoch:
                raise GraphStale(
                    f"the graph was captured at epoch {epoch}, page tables are at {self.epoch}; capture it again"
                )
            self._windows += 1
        try:
            yield self.epoch
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
            self.epoch += 1


class PageTable:
    """Byte offsets of pages, int64 [capacity], in one tensor whose address never changes."""

    def __init__(self, capacity_pages: int, device: str) -> None:
        self.offsets = torch.zeros(capacity_pages, dtype=torch.int64, device=device)
        self.length = 0

    def fill(self, offsets: torch.Tensor) -> None:
        """Replace the entries in place. Raises `ConfigError` past the capacity."""
        if len(offsets) > len(self.offsets):
            raise ConfigError(
                f"{len(offsets)} pages do not fit a page table of {len(self.offsets)}; make it larger and capture again"
            )
        self.offsets[: len(offsets)].copy_(offsets)
        self.length = len(offsets)
