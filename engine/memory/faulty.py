"""What follows a plan of faults: a device, an arena and a clock that go wrong as `faults.py` says."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import torch

from engine.clock import NS_PER_S, Clock
from engine.memory.arena import Arena, Bytes, Slots
from engine.memory.checksum import Rows
from engine.memory.device import Device, Found, SystemDevice
from engine.memory.faults import At, Fault, Faults, What

T = TypeVar("T")


class FaultyDevice:
    """A device that follows a plan. It remembers what was not synced, for a power cut to take."""

    def __init__(self, faults: Faults, real: Device | None = None) -> None:
        self._faults = faults
        self._real = real or SystemDevice()
        self._paths: dict[int, Path] = {}
        self._unsynced: set[Path] = set()
        self._unnamed: dict[Path, Path] = {}  # new name -> old one

    def _meet(self, at: At, path: Path) -> Fault | None:
        fault = self._faults.strike(at, path.name)
        if fault is not None and fault.what in (What.CRASH, What.POWER_CUT):
            self._faults.gone = True
            if fault.what is What.POWER_CUT:
                self._lose_unsynced()
        if self._faults.gone:
            raise OSError(errno.EIO, "the process has died", str(path))
        return fault

    def _lose_unsynced(self) -> None:
        for path in self._unsynced:
            with suppress(FileNotFoundError):
                os.truncate(path, path.stat().st_size // 2)
        for new, old in self._unnamed.items():
            with suppress(FileNotFoundError):
                os.rename(new, old)

    def open(self, path: Path, flags: int) -> int:
        fault = self._meet(At.OPEN, path)
        if fault is not None and fault.what is What.MISSING:
            self._real.unlink(path)
        opened = _another(path) if fault is not None and fault.what is What.FOREIGN else path
        fd = self._real.open(opened, flags)
        self._paths[fd] = path
        return fd

    def close(self, fd: int) -> None:
        self._paths.pop(fd, None)
        self._real.close(fd)

    def size(self, fd: int) -> int:
        return self._real.size(fd)

    def read(self, fd: int, into: memoryview, offset: int) -> int:
        fault = self._meet(At.READ, self._paths[fd])
        if fault is None:
            return self._real.read(fd, into, offset)
        if fault.what is What.OUT_OF_MEMORY:
            raise MemoryError
        if fault.what is What.TRUNCATE:
            return 0
        n = self._real.read(fd, into[: max(1, len(into) // 2)] if fault.what is What.SHORT else into, offset)
        if fault.what is What.BIT_FLIP and n:
            into[n // 2] ^= 0x10
        return n

    def write(self, fd: int, data: memoryview) -> int:
        path = self._paths[fd]
        fault = self._meet(At.WRITE, path)
        self._unsynced.add(path)
        if fault is None:
            return self._real.write(fd, data)
        if fault.what is What.BIT_FLIP:
            changed = bytearray(data)
            changed[len(changed) // 2] ^= 0x10
            return self._real.write(fd, memoryview(changed))
        half = data[: max(1, len(data) // 2)] if fault.what in (What.SHORT, What.TRUNCATE) else data
        written = self._real.write(fd, half)
        return len(data) if fault.what is What.TRUNCATE else written

    def sync(self, fd: int) -> None:
        self._meet(At.SYNC, self._paths[fd])
        self._real.sync(fd)
        self._unsynced.discard(self._paths[fd])

    def sync_folder(self, folder: Path) -> None:
        self._meet(At.SYNC_FOLDER, folder)
        self._real.sync_folder(folder)
        self._unnamed = {}

    def rename(self, old: Path, new: Path) -> None:
        self._meet(At.RENAME, old)
        self._real.rename(old, new)
        self._unnamed[new] = old

    def unlink(self, path: Path) -> None:
        self._meet(At.UNLINK, path)
        self._real.unlink(path)
        self._unsynced.discard(path)

    def scan(self, folder: Path) -> list[Found]:
        self._meet(At.SCAN, folder)
        return self._real.scan(folder)


class FaultyArena(Arena):
    """An arena whose allocations and copies follow a plan; `name` says which tier it is."""

    def __init__(self, *args: Any, faults: Faults, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.faults = faults

    def take(self, page_class: str, n: int) -> Slots | None:
        fault = self.faults.strike(At(f"{self.name}_take"), page_class) if n else None
        return None if fault is not None else super().take(page_class, n)

    def read(self, page_class: str, slots: Slots) -> Bytes:
        fault = self._meet("read", page_class)
        data = super().read(page_class, slots)
        return _flipped(data) if fault is not None and fault.what is What.BIT_FLIP else data

    def view(self, page_class: str, slots: Slots) -> Bytes:
        return self.read(page_class, slots)  # a flip in a view would stay where it is read

    def write(self, page_class: str, slots: Slots, data: Bytes) -> None:
        fault = self._meet("write", page_class)
        super().write(page_class, slots, _flipped(data) if fault is not None and fault.what is What.BIT_FLIP else data)

    def fill(self, page_class: str, slots: Slots, work: Callable[[Sequence[Rows]], T]) -> T:
        fault = self._meet("write", page_class)
        result = super().fill(page_class, slots, work)
        if fault is not None and fault.what is What.BIT_FLIP:  # after `work` has seen what it wrote
            super().write(page_class, slots, _flipped(super().read(page_class, slots)))
        return result

    def _meet(self, direction: str, page_class: str) -> Fault | None:
        fault = self.faults.strike(At(f"{self.name}_{direction}"), page_class)
        if fault is not None and fault.what is What.OUT_OF_MEMORY:
            raise torch.OutOfMemoryError("out of GPU memory") if self.name == "gpu" else MemoryError
        return fault


class FaultyClock:
    """A clock that jumps when its plan says so."""

    def __init__(self, clock: Clock, faults: Faults) -> None:
        self._clock = clock
        self._faults = faults
        self._wall_off_ns = self._monotonic_off_ns = 0

    def wall_ns(self) -> int:
        if (fault := self._faults.strike(At.WALL_CLOCK)) is not None:
            self._wall_off_ns += int(fault.seconds * NS_PER_S)
        return self._clock.wall_ns() + self._wall_off_ns

    def monotonic_ns(self) -> int:
        if (fault := self._faults.strike(At.MONOTONIC_CLOCK)) is not None:
            self._monotonic_off_ns += int(fault.seconds * NS_PER_S)
        return self._clock.monotonic_ns() + self._monotonic_off_ns


def _another(path: Path) -> Path:
    """Another file of the same folder; the file itself when it is alone."""
    others = sorted(p for p in path.parent.iterdir() if p.suffix == path.suffix and p != path)
    return others[0] if others else path


def _flipped(data: Bytes) -> Bytes:
    changed = data.clone()
    if changed.numel():
        changed.view(-1)[changed.numel() // 2] ^= 0x10
    return changed
