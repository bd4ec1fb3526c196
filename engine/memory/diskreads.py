"""Stored files as they are read: whole, some of their pages, or only what they say they are. All of it is proven."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engine.errors import CorruptObject
from engine.memory import diskfile
from engine.memory.checksum import PageSums, Rows, prove
from engine.memory.device import Device
from engine.memory.diskfile import DiskFile, Identity, ObjectHeader, ParsedHeader, StoredObject
from engine.memory.movers import Movers, Piece


class DiskReads:
    """Of the files in one folder. Each raises `CorruptObject` for what does not hold, or OSError from the device."""

    def __init__(self, folder: Path, device: Device) -> None:
        self._folder = folder
        self._device = device

    def whole(self, file: DiskFile) -> StoredObject:
        """The whole object, every checksum compared."""
        with self._opened(file) as fd:
            raw = np.empty(self._device.size(fd), dtype=np.uint8)
            self._fill(fd, raw.data, 0, file.name)
        stored = diskfile.decode(raw, file.name)
        file.check(stored.header, stored.digest)
        return stored

    def pages(
        self,
        file: DiskFile,
        first: int,
        targets: Sequence[Rows],
        movers: Movers,
        accept: Callable[[ObjectHeader], None],
    ) -> PageSums:
        """Read pages from `first` on into `targets`, one after the other, and compare header, tokens and the checksum
        of each of these pages, taken of what has arrived in the target; returns the checksums.

        `accept` may raise for what the header says, before a target is touched. When this raises, the targets hold
        anything.
        """
        with self._opened(file) as fd:
            head = self._head(fd, file)
            accept(head.header)
            last, size = first + sum(map(len, targets)), head.page_bytes
            if last > head.header.n_pages or any(target.shape[1] != size for target in targets):
                raise CorruptObject(
                    f"{file.name}: it holds {head.header.n_pages} pages of {size:,} bytes, not those asked"
                )
            start = head.pages_offset + first * size

            def move(piece: Piece, offset: int) -> None:
                self._fill(fd, piece.data, start + offset, file.name)

            found = movers.move(targets, move)
        sums = head.sums[first:last]
        prove(found, sums, file.name)
        return sums

    def identity(self, name: str, size: int) -> Identity:
        """What a file of `size` bytes that nobody knows yet says it is; its pages are not looked at."""
        fd = self._device.open(self._folder / name, os.O_RDONLY)
        try:
            (metadata, entries, start), _ = self._header(fd, size, name)
            first, last = entries["tokens"]["data_offsets"]
            data = bytearray(last - first)
            self._fill(fd, memoryview(data), start + first, name)
        finally:
            self._device.close(fd)
        found = diskfile.decode_identity(metadata, entries, bytes(data), name)
        found.header.check_name(name)
        return found

    def _head(self, fd: int, file: DiskFile) -> diskfile.Head:
        parsed, header = self._header(fd, self._device.size(fd), file.name)
        raw = np.empty(max(len(header), diskfile.head_bytes(parsed)), dtype=np.uint8)
        raw[: len(header)] = header
        self._fill(fd, raw.data[len(header) :], len(header), file.name)
        head = diskfile.decode_head(raw, parsed, file.name)
        file.check(head.header, head.digest)
        return head

    def _header(self, fd: int, size: int, name: str) -> tuple[ParsedHeader, npt.NDArray[np.uint8]]:
        """The header, and the bytes it was read from: the file's first."""
        length = np.zeros(min(size, 8), dtype=np.uint8)
        self._fill(fd, length.data, 0, name)
        claimed = int.from_bytes(length.tobytes(), "little") if len(length) == 8 else 0
        head = np.empty(len(length) + min(claimed, diskfile.HEADER_LIMIT_BYTES, size - len(length)), dtype=np.uint8)
        head[: len(length)] = length
        self._fill(fd, head.data[len(length) :], len(length), name)
        return diskfile.parse_header(head.data, size, name), head

    @contextmanager
    def _opened(self, file: DiskFile) -> Iterator[int]:
        try:
            fd = self._device.open(self._folder / file.name, os.O_RDONLY)
        except FileNotFoundError as error:
            raise CorruptObject(
                f"{file.name}: the file is gone; something other than this engine removed it"
            ) from error
        try:
            yield fd
        finally:
            self._device.close(fd)

    def _fill(self, fd: int, view: memoryview, offset: int, name: str) -> None:
        done = 0
        while done < len(view):
            n = self._device.read(fd, view[done:], offset + done)
            if not n:
                raise CorruptObject(f"{name}: it ended after {offset + done:,} of {offset + len(view):,} bytes")
            done += n
