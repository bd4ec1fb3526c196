"""Reading pages where they lie: what a kernel needs beside a page table."""

from __future__ import annotations

from dataclasses import dataclass

import torch

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""Bits are gathered as integers: not every dtype can be indexed everywhere, and NaNs keep their payload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedView:
    """One tensor of the pages of a kind, in the GPU tier's own buffer.

    Page i of a page table holds it as [rows, width] of `dtype`, row after row, from byte `offsets[i] + offset_bytes` of
    `buffer` on, a multiple of 16. `buffer` is uint8 [bytes] and is the tier itself: read it, never write to it.
    """

    buffer: torch.Tensor
    offset_bytes: int
    rows: int
    width: int
    dtype: torch.dtype

    def gather(self, offsets: torch.Tensor) -> torch.Tensor:
        """A copy [pages * rows, width] of the pages at int64 [pages] byte offsets, which is what a kernel must see.

        Works on the device alone and waits for nothing, so a CUDA graph can hold it. An offset that is no page of this
        kind gives other bytes, or an index error of torch.
        """
        words = self.buffer.view(_WORDS[self.dtype.itemsize])
        first = (offsets + self.offset_bytes) // self.dtype.itemsize
        within = torch.arange(self.rows * self.width, device=offsets.device)
        return words[first[:, None] + within].view(self.dtype).view(-1, self.width)
