"""The disk tier: one file a stored object in one folder that one engine owns.

Published by write to a temporary name, fsync, rename, fsync of the folder: a crash leaves a whole file or none. Files
hold token ids, so the folder is private (mode 0700). Damaged files move to `quarantine/`, which is bounded.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from engine.errors import CorruptObject, FolderLocked, TierUnavailable
from engine.memory import diskfile
from engine.memory.checksum import PageSums
from engine.memory.diskfile import ObjectHeader, StoredObject

QUARANTINE_FILES = 64


@dataclass(eq=False, slots=True)
class DiskFile:
    """A published file. `live_pages` counts pages that some prefix still refers to; at 0 the file goes."""

    name: str
    file_bytes: int
    n_pages: int
    live_pages: int
    generation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedFile:
    file: DiskFile
    header: ObjectHeader
    tokens: npt.NDArray[np.int32]


class DiskTier:
    """Files under `folder`, at most `quota_bytes` of them.

    Raises `FolderLocked` if another engine holds the folder (an OS lock that dies with its process).
    """

    def __init__(self, folder: Path, quota_bytes: int) -> None:
        self.folder = folder
        self.quota_bytes = quota_bytes
        self.used_bytes = 0
        self._objects = folder / "objects"
        self._quarantine = folder / "quarantine"
        for path in (folder, self._objects, self._quarantine):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o700)
        self._lock_fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock_fd)
            raise FolderLocked(
                f"{folder}: another engine uses this folder; stop it or give this one another data_dir"
            ) from error
        self.closed = False
        self._serial = 0
        self.files: dict[str, DiskFile] = {}

    def close(self) -> None:
        """Let go of the folder. Nothing in it is touched after this: it may be another engine's."""
        self.closed = True
        os.close(self._lock_fd)

    # -- writing ----------------------------------------------------------------------------------------------------

    def reserve(self, n_bytes: int) -> bool:
        """Count `n_bytes` against the quota before they are written. False: no room, evict first."""
        if self.used_bytes + n_bytes > self.quota_bytes:
            return False
        self.used_bytes += n_bytes
        return True

    def unreserve(self, n_bytes: int) -> None:
        self.used_bytes -= n_bytes

    def next_name(self, header: ObjectHeader) -> str:
        """A name no other file has; called under the engine lock."""
        self._serial += 1
        return f"{_stem(header)}{self._serial}.safetensors"

    def publish(
        self, name: str, header: ObjectHeader, pages: torch.Tensor, sums: PageSums, tokens: npt.NDArray[np.int32]
    ) -> DiskFile:
        """Write one object so that it is wholly there or not at all; `sync_folder` makes it survive a power cut.

        Raises OSError (ENOSPC, EIO, ...) with nothing left behind.
        """
        if self.closed:
            raise TierUnavailable(f"{self.folder}: this engine has let go of its folder; build a new one")
        target = self._objects / name
        temporary = target.with_suffix(".tmp")
        try:
            with open(temporary, "wb", buffering=0) as file:
                size = _write_all(file.fileno(), diskfile.encode(header, pages, sums, tokens))
                os.fsync(file.fileno())
            os.rename(temporary, target)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        return DiskFile(name=name, file_bytes=size, n_pages=header.n_pages, live_pages=header.n_pages)

    def sync_folder(self) -> None:
        """Make the names of what was published last. Once for several objects: it is half of the cost of writing."""
        fd = os.open(self._objects, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    # -- reading ----------------------------------------------------------------------------------------------------

    def path(self, file: DiskFile) -> Path:
        return self._objects / file.name

    def read(self, file: DiskFile) -> StoredObject:
        """The whole object, every checksum compared. Raises `CorruptObject`, or OSError from the device."""
        path = self.path(file)
        try:
            with open(path, "rb", buffering=0) as handle:
                size = os.fstat(handle.fileno()).st_size
                raw = np.empty(size, dtype=np.uint8)
                view, done = raw.data, 0
                while done < size:
                    n = handle.readinto(view[done:])
                    if not n:
                        raise CorruptObject(f"{file.name}: it ended after {done:,} of {size:,} bytes")
                    done += n
        except FileNotFoundError as error:
            raise CorruptObject(
                f"{file.name}: the file is gone; something other than this engine removed it"
            ) from error
        stored = diskfile.decode(raw, file.name)
        _check_name(file.name, stored.header)
        return stored

    # -- removing ---------------------------------------------------------------------------------------------------

    def forget(self, file: DiskFile) -> None:
        """Take a file out of the books; `unlink` deletes it later, outside the engine lock.

        A crash between the two leaves a good file that the next start adopts again.
        """
        if self.files.pop(file.name, None) is not None:
            file.generation += 1
            self.used_bytes -= file.file_bytes

    def unlink(self, file: DiskFile) -> None:
        if not self.closed:
            self.path(file).unlink(missing_ok=True)

    def quarantine(self, file: DiskFile) -> None:
        """Move a damaged, forgotten file aside for inspection; the oldest ones go when there are too many."""
        if self.closed:
            return
        with suppress(FileNotFoundError):  # deleted under us: nothing is left to look at
            os.rename(self.path(file), self._quarantine / file.name)
        with os.scandir(self._quarantine) as entries:
            kept = sorted((_changed_ns(entry), entry.path) for entry in entries)
        for _, old in kept[:-QUARANTINE_FILES]:
            Path(old).unlink(missing_ok=True)

    def record(self, file: DiskFile) -> None:
        """Count a published file as there; its bytes were reserved before."""
        self.files[file.name] = file

    # -- adoption ---------------------------------------------------------------------------------------------------

    def scan(self) -> Iterator[AdoptedFile | CorruptObject]:
        """Every object found at start, header and tokens proven; damaged ones are moved aside and reported.

        Temporary files are leftovers of a crash before publication: deleted. Page bytes are proven on restore.
        """
        for path in sorted(p for p in self._objects.iterdir() if not p.is_dir()):
            if path.suffix == ".tmp":
                path.unlink()
                continue
            file = DiskFile(name=path.name, file_bytes=0, n_pages=0, live_pages=0)
            try:
                size = file.file_bytes = path.stat().st_size
                header, tokens = _read_identity(path, size)
                _check_name(path.name, header)
            except CorruptObject as error:
                self.quarantine(file)
                yield error
                continue
            except OSError as error:
                raise TierUnavailable(
                    f"disk: {path.name} cannot be read ({error.strerror}); check the device, then start again"
                ) from error
            file.n_pages = header.n_pages
            self.used_bytes += size
            self.record(file)
            yield AdoptedFile(file=file, header=header, tokens=tokens)

    def violations(self, leaving: set[str]) -> list[str]:
        """Files on disk and files in the books must be the same set (but for those `leaving`); bytes must add up."""
        found = []
        there = {p.name for p in self._objects.iterdir() if p.suffix != ".tmp" and not p.is_dir()}
        if leaked := there - self.files.keys() - leaving:
            found.append(f"disk: {len(leaked)} files nobody refers to, e.g. {min(leaked)}")
        counted = sum(f.file_bytes for f in self.files.values())
        if counted != self.used_bytes:
            found.append(f"disk: {self.used_bytes:,} bytes counted, files have {counted:,}")
        odd = [f for f in self.files.values() if not 0 < f.live_pages <= f.n_pages]
        return found + [f"disk: {f.name} has {f.live_pages} live of {f.n_pages} pages" for f in odd]


def _changed_ns(entry: os.DirEntry[str]) -> int:
    """When it was written; 0 for a file that a person took away meanwhile."""
    try:
        return entry.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _stem(header: ObjectHeader) -> str:
    return f"{header.prefix_id}-{header.kind}-{header.boundary}-{header.written_ns:x}-"


def _check_name(name: str, header: ObjectHeader) -> None:
    """A file can be whole and yet the wrong one, when somebody renamed or restored files: the books go by name."""
    if not name.startswith(_stem(header)):
        raise CorruptObject(f"{name}: it holds another object, {_stem(header).removesuffix('-')}")


def _read_identity(path: Path, size: int) -> tuple[ObjectHeader, npt.NDArray[np.int32]]:
    with open(path, "rb") as file:
        head = file.read(8)
        length = int.from_bytes(head, "little") if len(head) == 8 else 0
        head += file.read(min(length, diskfile.HEADER_LIMIT_BYTES))
        metadata, entries, start = diskfile.parse_header(head, size, path.name)
        first, last = entries["tokens"]["data_offsets"]
        file.seek(start + first)
        return diskfile.decode_identity(metadata, entries, file.read(last - first), path.name)


def _write_all(fd: int, buffers: list[bytes | memoryview]) -> int:
    total = 0
    for buffer in buffers:
        view, done = memoryview(buffer), 0
        while done < len(view):
            done += os.write(fd, view[done:])
        total += done
    return total
