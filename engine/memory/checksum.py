"""Checksums of stored bytes: XXH3, 64 bits a page in memory, 128 bits a tensor on disk."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from engine.errors import CorruptObject

PageSums = npt.NDArray[np.uint64]
PageHasher = xxhash.xxh3_64  # for a page that comes in pieces
Rows = npt.NDArray[np.uint8]  # [n, page_bytes]; the bytes of a page lie together


def page_sums(data: torch.Tensor) -> PageSums:
    """One checksum a row of a uint8 [n, slot_bytes] tensor. Device tensors are copied to the host first."""
    rows = data.detach().cpu().numpy()  # rows may lie apart; the bytes of each lie together
    return np.array(sums_of_rows(rows), dtype=np.uint64)


def prove(found: PageSums, sums: PageSums, where: str) -> None:
    """Raises `CorruptObject` naming the first page whose checksum is another one."""
    bad = np.flatnonzero(found != sums)
    if len(bad):
        raise CorruptObject(f"{where}: page {int(bad[0])} of {len(sums)} does not match its checksum")


def proven(where: str, data: torch.Tensor, sums: PageSums | None) -> PageSums:
    """The pages' checksums: those they must have, or new ones if they had none. Raises `CorruptObject`."""
    found = page_sums(data)
    if sums is not None:
        prove(found, sums, where)
    return found


def tensor_sum(data: memoryview | bytes) -> str:
    """128-bit hexadecimal checksum of one tensor's bytes."""
    return xxhash.xxh3_128_hexdigest(data)


def sums_of_rows(rows: Rows) -> list[int]:
    """One checksum a page."""
    return [xxhash.xxh3_64_intdigest(row) for row in rows]
