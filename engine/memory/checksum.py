"""Checksums of stored bytes: XXH3, 64 bits a page in memory, 128 bits a tensor on disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import numpy.typing as npt
import torch
import xxhash

PageSums = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.uint8]  # [n, page_bytes]; the bytes of a page lie together

BATCH_BYTES = 1 << 20
"""Pages are moved and hashed so many bytes at a time: enough to be worth a hand-over to another thread."""


def page_sums(data: torch.Tensor) -> PageSums:
    """One checksum a row of a uint8 [n, slot_bytes] tensor. Device tensors are copied to the host first."""
    rows = data.detach().cpu().numpy()  # rows may lie apart; the bytes of each lie together
    return np.array(_sums(rows), dtype=np.uint64)


def tensor_sum(data: memoryview | bytes) -> str:
    """128-bit hexadecimal checksum of one tensor's bytes."""
    return xxhash.xxh3_128_hexdigest(data)


def batches(rows: Rows) -> Iterator[Rows]:
    """Views of the pages in order, some at a time: about `BATCH_BYTES`, and never less than a page."""
    step = max(1, BATCH_BYTES // rows.shape[1])
    for first in range(0, len(rows), step):
        yield rows[first : first + step]


class Hasher:
    """Takes checksums of pages on a thread of its own while whoever moves the pages moves the next ones.

    One thread for all: it gets only what has arrived, so nobody's device holds it up.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="kvdeck-sums")

    def sums_of(self, arriving: Iterable[Rows]) -> PageSums:
        """The checksums of all pages of `arriving`, whose next step moves the next batch. The last one is hashed here:
        there is nothing to move meanwhile."""
        beside: list[Future[list[int]]] = []
        here: list[int] = []
        last: Rows | None = None
        for rows in arriving:
            if last is not None:
                beside.append(self._beside(last))
            last = rows
        if last is not None:
            here = _sums(last)
        return np.array([one for part in beside for one in part.result()] + here, dtype=np.uint64)

    def close(self) -> None:
        """A call that is still out (lane.py) hashes by itself from now on."""
        self._pool.shutdown()

    def _beside(self, rows: Rows) -> Future[list[int]]:
        with suppress(RuntimeError):  # closed
            return self._pool.submit(_sums, rows)
        done: Future[list[int]] = Future()
        done.set_result(_sums(rows))
        return done


def _sums(rows: Rows) -> list[int]:
    return [xxhash.xxh3_64_intdigest(row) for row in rows]


def copied(source: Rows, targets: Sequence[Rows]) -> Iterator[Rows]:
    """Copy pages into `targets`, one after the other; gives what has arrived, where it has arrived."""
    done = 0
    for target in targets:
        for rows in batches(target):
            rows[:] = source[done : done + len(rows)]
            done += len(rows)
            yield rows
