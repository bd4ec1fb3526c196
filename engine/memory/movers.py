"""Pages on their way into memory: moved some at a time, and hashed where they have arrived, by two threads at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Lock, Thread

import numpy as np
import numpy.typing as npt

from engine.memory.checksum import PageHasher, PageSums, Rows, sums_of_rows

PIECE_BYTES = 256 << 10
"""So many bytes are moved before they are hashed: they are in the core's own cache then."""

Piece = npt.NDArray[np.uint8]  # [n bytes]
Move = Callable[[Piece, int], None]
"""Fills a piece with the bytes from an offset on, which counts over all pages."""


class _Work:
    """Batches that are left, taken by whoever is free. `helping` is held by the helper while it is at it."""

    def __init__(self, targets: Sequence[Rows], move: Move) -> None:
        self._move = move
        self._sums = np.empty(sum(map(len, targets)), dtype=np.uint64)
        self.todo: deque[tuple[int, Rows]] = deque()
        self.helping = Lock()
        self.error: BaseException | None = None
        first = 0
        for target in targets:
            for rows in batches(target):
                self.todo.append((first, rows))
                first += len(rows)

    def run(self) -> None:
        """Until nothing is left. What one thread raises ends the other's work too."""
        try:
            while True:
                try:
                    first, rows = self.todo.popleft()
                except IndexError:
                    return
                self._sums[first : first + len(rows)] = self._moved(rows, first * rows.shape[1])
        except BaseException:
            self.todo.clear()
            raise

    def _moved(self, rows: Rows, offset: int) -> list[int]:
        if rows.nbytes <= PIECE_BYTES:
            self._move(rows.reshape(-1), offset)
            return sums_of_rows(rows)
        (page,), hasher = rows, PageHasher()
        for first in range(0, len(page), PIECE_BYTES):
            piece = page[first : first + PIECE_BYTES]
            self._move(piece, offset + first)
            hasher.update(piece)
        return [hasher.intdigest()]

    def help(self) -> None:
        with self.helping:
            try:
                self.run()
            except BaseException as error:  # top of a thread: whoever asked raises it
                self.error = error

    def sums(self) -> PageSums:
        """Once the helper has left; it comes back to nothing, if it comes late."""
        with self.helping:
            if self.error is not None:
                raise self.error
            return self._sums


class Movers:
    """Whoever moves pages, and one helper for all of them.

    The helper takes one piece of work at a time: while a device keeps it, everybody else works alone. Its thread is a
    daemon, so that a dead device stops no exit.
    """

    def __init__(self) -> None:
        self._free = Lock()  # held from when the helper is given work until it is done
        self._inbox: SimpleQueue[_Work | None] = SimpleQueue()
        self._thread: Thread | None = None

    def move(self, targets: Sequence[Rows], move: Move) -> PageSums:
        """Have `move` fill all targets, one after the other, from two threads; the checksums of what has arrived.

        Raises what `move` raises; nobody writes to the targets any more then.
        """
        work = _Work(targets, move)
        if len(work.todo) > 1 and self._free.acquire(blocking=False):
            self._give(work)
        try:
            work.run()
        except BaseException:
            with work.helping:
                raise
        return work.sums()

    def _give(self, work: _Work) -> None:
        if self._thread is None:
            thread = Thread(target=self._help, name="kvdeck-mover", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system has no thread left: this work is done alone, the next asks again
                self._free.release()
                return
            self._thread = thread
        self._inbox.put(work)

    def close(self) -> None:
        """End the helper, unless a device keeps it. Whoever comes later works alone."""
        if self._free.acquire(blocking=False) and self._thread is not None:
            self._inbox.put(None)
            self._thread.join()

    def _help(self) -> None:
        while (work := self._inbox.get()) is not None:
            work.help()
            self._free.release()


def batches(rows: Rows) -> list[Rows]:
    """Views of the pages in order, some at a time: about `PIECE_BYTES`, and never less than a page."""
    step = max(1, PIECE_BYTES // rows.shape[1])
    return [rows[first : first + step] for first in range(0, len(rows), step)]


def copy_from(source: Rows) -> Move:
    """Pages of another place in memory, where they may lie apart."""
    size = source.shape[1]

    def move(piece: Piece, offset: int) -> None:
        page, start = divmod(offset, size)
        if len(piece) < size:
            piece[:] = source[page, start : start + len(piece)]
        else:
            rows = piece.reshape(-1, size)
            rows[:] = source[page : page + len(rows)]

    return move
