"""The disk tier: one file a stored object in one folder that one engine owns.

Published by write to a temporary name, fsync, rename, fsync of the folder: a crash leaves a whole file or none. Files
hold token ids, so the folder is private (mode 0700). Damaged files move to `quarantine/`, which is bounded. What could
not be deleted is remembered, counts against the quota, and is tried again.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from engine.clock import Clock, SystemClock
from engine.errors import CorruptObject, FolderLocked, TierUnavailable
from engine.memory import diskfile
from engine.memory.checksum import PageSums
from engine.memory.device import Device, SystemDevice
from engine.memory.diskfile import DiskFile, ObjectHeader
from engine.memory.diskreads import DiskReads
from engine.memory.lane import Overdue
from engine.memory.quarantine import QUARANTINE_SHARE, Quarantine
from engine.memory.transfer import Transfer

T = TypeVar("T")

PATIENCE_AT_START = 20
"""A cold disk with many files takes its time, and nobody waits for an answer yet: so many limits of a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedFile:
    file: DiskFile
    header: ObjectHeader
    tokens: npt.NDArray[np.int32]


class DiskTier:
    """Files under `folder`, at most `quota_bytes` of them.

    Raises `FolderLocked` if another engine holds the folder (an OS lock that dies with its process).
    """

    def __init__(
        self,
        folder: Path,
        quota_bytes: int,
        *,
        device: Device | None = None,
        clock: Clock | None = None,
        io: Transfer | None = None,
    ) -> None:
        self.folder = folder
        self.quota_bytes = quota_bytes
        self.used_bytes = 0
        self.leaving_bytes = 0  # of files that are forgotten and still there
        self._device = device or SystemDevice()
        self._clock = clock or SystemClock()
        self._io = io or Transfer("disk", self._clock)
        self._objects = folder / "objects"
        self.reads = DiskReads(self._objects, self._device)
        for path in (folder, self._objects, folder / "quarantine"):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o700)
        self._quarantine = Quarantine(folder / "quarantine", quota_bytes // QUARANTINE_SHARE, self._device)
        lock_fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._lock_fd: int | None = lock_fd
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock_fd)
            raise FolderLocked(
                f"{folder}: another engine uses this folder; stop it or give this one another data_dir"
            ) from error
        self.closed = False
        self._serial = 0
        self._books = Lock()
        self._leaving: dict[str, int] = {}
        self.leftovers: list[Path] = []  # what a failed or late publication could not delete
        self._underway: set[str] = set()  # names that are being published: not in the books yet
        self.files: dict[str, DiskFile] = {}

    def close(self) -> None:
        """Nothing in the folder is written after this. `let_go` gives it to others."""
        self.closed = True

    def let_go(self) -> None:
        """Unlock the folder: it may be another engine's from now on. Only when no call to the device is out."""
        self.closed = True
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def path(self, file: DiskFile) -> Path:
        return self._objects / file.name

    # -- writing ----------------------------------------------------------------------------------------------------

    def reserve(self, n_bytes: int) -> bool:
        """Count `n_bytes` against the quota before they are written. False: no room, evict first."""
        if self.used_bytes + self.leaving_bytes + n_bytes > self.quota_bytes:
            return False
        self.used_bytes += n_bytes
        return True

    def unreserve(self, n_bytes: int) -> None:
        self.used_bytes -= n_bytes

    def next_name(self, header: ObjectHeader) -> str:
        """A name no other file has, whatever the wall clock does; called under the engine lock."""
        while True:
            self._serial += 1
            name = f"{header.stem}{self._serial}.safetensors"
            if name not in self.files and name not in self._underway:
                return name

    def publish(
        self, name: str, header: ObjectHeader, pages: torch.Tensor, sums: PageSums, tokens: npt.NDArray[np.int32]
    ) -> DiskFile:
        """Write one object so that it is wholly there or not at all; `sync_folder` makes it survive a power cut.

        `record` or `discard` follows. Raises OSError (ENOSPC, EIO, ...) with nothing left behind.
        """
        self._check_open()
        target = self._objects / name
        temporary = target.with_suffix(".tmp")
        self._underway.add(name)
        try:
            size = self._write(temporary, diskfile.encode(header, pages, sums, tokens))
            self._check_open()  # a write that came back after the end must not become an object
            self._device.rename(temporary, target)
        except BaseException:
            self._delete(temporary)
            self._underway.discard(name)
            raise
        return DiskFile(
            name=name, file_bytes=size, n_pages=header.n_pages, live_pages=header.n_pages, header_digest=header.digest
        )

    def _write(self, path: Path, buffers: list[bytes | memoryview]) -> int:
        fd = self._device.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            total = 0
            for buffer in buffers:
                left = memoryview(buffer)
                total += len(left)
                while left:
                    left = left[self._device.write(fd, left) :]
            self._device.sync(fd)
            if (size := self._device.size(fd)) != total:
                raise OSError(errno.EIO, f"{size:,} of {total:,} bytes arrived", str(path))
        finally:
            self._device.close(fd)
        return total

    def _check_open(self) -> None:
        if self.closed:
            raise TierUnavailable(f"{self.folder}: this engine has let go of its folder; build a new one")

    def record(self, file: DiskFile) -> None:
        """Count a published file as there; its bytes were reserved before."""
        self.files[file.name] = file
        self._underway.discard(file.name)

    def discard(self, file: DiskFile) -> None:
        """Delete a file that was published for nobody: who asked for it has gone."""
        self._delete(self.path(file))
        self._underway.discard(file.name)

    def sync_folder(self) -> None:
        """Make the names of what was published last. Once for several objects: it is half of the cost of writing."""
        self._device.sync_folder(self._objects)

    # -- removing ---------------------------------------------------------------------------------------------------

    def forget(self, file: DiskFile) -> None:
        """Take a file out of the books; `unlink` deletes it later, outside the engine lock.

        A crash between the two leaves a good file that the next start adopts again.
        """
        if self.files.pop(file.name, None) is not None:
            file.generation += 1
            self.used_bytes -= file.file_bytes
            with self._books:
                self._leaving[file.name] = file.file_bytes
                self.leaving_bytes += file.file_bytes

    def unlink(self, file: DiskFile) -> None:
        if not self.closed:
            self._device.unlink(self.path(file))
            self._has_left(file)

    def quarantine_figures(self) -> dict[str, int]:
        """Files and bytes set aside since the start."""
        taken = self._quarantine
        return {"quarantined_files": taken.taken_files, "quarantined_bytes": taken.taken_bytes}

    def quarantine(self, file: DiskFile) -> None:
        """Move a damaged, forgotten file aside for inspection; the oldest ones go when there are too many."""
        if not self.closed:
            self._quarantine.take(self.path(file), file.damage or "damaged", self._clock.wall_ns())
            self._has_left(file)

    def delete_leftovers(self) -> None:
        """Try once more to delete what a publication could not. Raises OSError at the first that still resists."""
        for path in list(self.leftovers) if not self.closed else ():
            self._device.unlink(path)
            with suppress(ValueError):  # a deletion that came back late was tried again meanwhile
                self.leftovers.remove(path)

    def _delete(self, path: Path) -> None:
        try:
            self._device.unlink(path)
        except OSError:
            self.leftovers.append(path)

    def _has_left(self, file: DiskFile) -> None:
        """Once for each file, though a deletion that came back late was tried again meanwhile."""
        with self._books:
            self.leaving_bytes -= self._leaving.pop(file.name, 0)

    # -- adoption ---------------------------------------------------------------------------------------------------

    def scan(self) -> Iterator[AdoptedFile | CorruptObject]:
        """Every object found at start, header and tokens proven; damaged ones are moved aside and reported.

        Temporary files are leftovers of a crash before publication: deleted. Page bytes are proven on restore.
        Raises `TierUnavailable` when the device fails or does not answer.
        """
        for name, size, _ in self._at_start("the folder", lambda: self._device.scan(self._objects)):
            if name.endswith(".tmp"):
                self._delete(self._objects / name)
                continue
            try:
                found = self._at_start(name, partial(self.reads.identity, name, size))
            except FileNotFoundError:  # gone since the folder was read
                continue
            except CorruptObject as error:
                aside = partial(self._quarantine.take, self._objects / name, str(error), self._clock.wall_ns())
                self._at_start(name, aside)
                yield error
                continue
            n_pages = found.header.n_pages
            file = DiskFile(name=name, file_bytes=size, n_pages=n_pages, live_pages=0, header_digest=found.digest)
            self.used_bytes += size
            self.record(file)
            yield AdoptedFile(file=file, header=found.header, tokens=found.tokens)

    def _at_start(self, what: str, work: Callable[[], T]) -> T:
        try:
            return self._io.bounded(work, patience=PATIENCE_AT_START)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise TierUnavailable(
                f"disk: {what} cannot be read ({error.strerror}); check the device, then start again"
            ) from error
        except Overdue as error:
            raise TierUnavailable(
                f"disk: {what} cannot be read (no answer in time); check the device, then start again"
            ) from error

    def violations(self, leaving: set[str], reserved_bytes: int = 0) -> list[str]:
        """Files on disk and files in the books must be the same set (but for those `leaving` or being published); no
        temporary file is left; bytes must add up with what is reserved for files being written."""
        found = []
        underway = set(self._underway)  # before the look and after it: others begin and fail meanwhile
        names = {file.name for file in SystemDevice().scan(self._objects)}  # with its own eyes, whatever is injected
        underway |= set(self._underway)
        allowed = leaving | underway | {path.name for path in list(self.leftovers)}
        there = {name for name in names if not name.endswith(".tmp")}
        if leaked := there - self.files.keys() - allowed:
            found.append(f"disk: {len(leaked)} files nobody refers to, e.g. {min(leaked)}")
        written = {f"{name.removesuffix('.safetensors')}.tmp" for name in underway}
        if left := names - there - written - allowed:
            found.append(f"disk: {len(left)} temporary files nobody writes, e.g. {min(left)}")
        counted = sum(f.file_bytes for f in self.files.values())
        if counted + reserved_bytes != self.used_bytes:
            found.append(
                f"disk: {self.used_bytes:,} bytes counted, files have {counted:,}, {reserved_bytes:,} are reserved"
            )
        odd = [f for f in self.files.values() if not 0 < f.live_pages <= f.n_pages]
        return found + [f"disk: {f.name} has {f.live_pages} live of {f.n_pages} pages" for f in odd]
