"""Damaged files set aside for a person to look at: bounded in number and bytes, each with the reason beside it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from engine.memory.device import Device, Found, SystemDevice

QUARANTINE_FILES = 64
QUARANTINE_SHARE = 8
"""Of the disk's quota, one part in so many may be damaged files; the newest one stays in any case."""
_WHY = ".why.json"
_NOT_RECORDED = "not recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """One damaged file: which object it was to be, when it was set aside, and why."""

    file: str
    kind: str
    prefix_id: str
    size_bytes: int
    at_ns: int
    why: str


class Quarantine:
    """The folder. Its bytes are no part of the tier's quota."""

    def __init__(self, folder: Path, most_bytes: int, device: Device) -> None:
        self.folder = folder
        self.taken_files = 0  # since the start, also what had to leave again for newer ones
        self.taken_bytes = 0
        self._most_bytes = most_bytes
        self._device = device

    def take(self, source: Path, why: str, at_ns: int) -> None:
        """Move a file here, then write down why. Raises OSError; once it is moved only the reason can be lost."""
        try:
            self._device.rename(source, self.folder / source.name)
        except FileNotFoundError:  # deleted under us: nothing is left to look at
            return
        kind, prefix_id = _object_of(source.name)
        size = (self.folder / source.name).stat().st_size
        self.taken_files, self.taken_bytes = self.taken_files + 1, self.taken_bytes + size
        reason = Quarantined(file=source.name, kind=kind, prefix_id=prefix_id, size_bytes=size, at_ns=at_ns, why=why)
        self._write(self.folder / f"{source.name}{_WHY}", json.dumps(asdict(reason)).encode())
        self._trim()

    def _write(self, path: Path, text: bytes) -> None:
        fd = self._device.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            left = memoryview(text)
            while left:
                left = left[self._device.write(fd, left) :]
        finally:
            self._device.close(fd)

    def _trim(self) -> None:
        """The oldest go when there are too many, or too much."""
        found = {file.name: file for file in self._device.scan(self.folder)}

        def since_ns(file: Found) -> int:
            """A file keeps its own time when it is moved here; its reason was written then."""
            return found.get(f"{file.name}{_WHY}", file).changed_ns

        kept = sorted((f for f in found.values() if not f.name.endswith(_WHY)), key=since_ns, reverse=True)
        total = 0
        for n, file in enumerate(kept):
            total += file.size_bytes
            if n and (n >= QUARANTINE_FILES or total > self._most_bytes):
                self._device.unlink(self.folder / file.name)
                self._device.unlink(self.folder / f"{file.name}{_WHY}")


def quarantined(folder: Path) -> list[Quarantined]:
    """What lies in a quarantine folder, newest first; the engine may run or not. A missing folder is an empty one."""
    if not folder.is_dir():
        return []
    files = [file for file in SystemDevice().scan(folder) if not file.name.endswith(_WHY)]
    found = [_read(folder, file.name, file.size_bytes, file.changed_ns) for file in files]
    return sorted(found, key=lambda q: q.at_ns, reverse=True)


def _read(folder: Path, name: str, size: int, changed_ns: int) -> Quarantined:
    kind, prefix_id = _object_of(name)
    at_ns, why = changed_ns, _NOT_RECORDED
    try:
        kept = json.loads((folder / f"{name}{_WHY}").read_bytes())
        at_ns, why = int(kept["at_ns"]), str(kept["why"])
    except (OSError, ValueError, KeyError, TypeError):  # the disk was full, or a person removed it
        pass
    return Quarantined(file=name, kind=kind, prefix_id=prefix_id, size_bytes=size, at_ns=at_ns, why=why)


def _object_of(name: str) -> tuple[str, str]:
    """Object kind and prefix id from a file's name; a stranger's file has neither."""
    parts = name.split("-")
    return (parts[1], parts[0]) if len(parts) == 5 else ("", "")
