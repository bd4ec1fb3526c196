"""What the disk tier asks of the operating system: one small face, so that what goes wrong has one place to happen."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple, Protocol


class Found(NamedTuple):
    """One file of a folder."""

    name: str
    size_bytes: int
    changed_ns: int


class Device(Protocol):
    """Raises OSError as the system calls do; reads and writes may do less than asked for."""

    def open(self, path: Path, flags: int) -> int:
        """A file descriptor."""
        ...

    def close(self, fd: int) -> None: ...

    def size(self, fd: int) -> int:
        """Bytes of an open file."""
        ...

    def read(self, fd: int, into: memoryview, offset: int) -> int:
        """Bytes read into the front of `into`; 0 at the end of the file."""
        ...

    def write(self, fd: int, data: memoryview) -> int:
        """Bytes written from the front of `data`."""
        ...

    def sync(self, fd: int) -> None:
        """Make an open file's bytes last."""
        ...

    def sync_folder(self, folder: Path) -> None:
        """Make a folder's names last."""
        ...

    def rename(self, old: Path, new: Path) -> None: ...

    def unlink(self, path: Path) -> None:
        """Delete a file; one that is gone already is fine."""
        ...

    def scan(self, folder: Path) -> list[Found]:
        """The folder's files by name, without its sub-folders and what vanishes meanwhile."""
        ...


class SystemDevice:
    """The system calls as they are."""

    def open(self, path: Path, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC, 0o600)

    def close(self, fd: int) -> None:
        os.close(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def read(self, fd: int, into: memoryview, offset: int) -> int:
        return os.preadv(fd, [into], offset)

    def write(self, fd: int, data: memoryview) -> int:
        return os.write(fd, data)

    def sync(self, fd: int) -> None:
        os.fsync(fd)

    def sync_folder(self, folder: Path) -> None:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def scan(self, folder: Path) -> list[Found]:
        found = []
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    if not entry.is_dir():
                        stat = entry.stat()
                        found.append(Found(entry.name, stat.st_size, stat.st_mtime_ns))
                except FileNotFoundError:  # a person took it away meanwhile
                    continue
        return sorted(found)
