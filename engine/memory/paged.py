"""Reading pages where they lie: what a kernel needs beside a page table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.errors import CodecRefused, ConfigError
from engine.memory.arena import Arena
from engine.memory.codec import NATIVE
from engine.memory.holding import Bound
from engine.memory.layout import torch_dtype
from engine.model.objects import ObjectKind, PrefixLayouts, SegmentKey

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


def paged_view(gpu: Arena, layouts: PrefixLayouts, kind: ObjectKind, key: SegmentKey) -> PagedView:
    """Raises `ConfigError` for a tensor that the kind's pages do not have, `NotMaterialised` without bytes."""
    for segment in layouts.of(kind).segments if kind in layouts.span_kinds else ():
        if segment.key == key:
            return PagedView(
                buffer=gpu.buffer, offset_bytes=segment.offset_bytes, rows=segment.rows, width=segment.width,
                dtype=torch_dtype(segment.dtype),
            )  # fmt: skip
    raise ConfigError(f"pages of {kind!s} hold no {SegmentKey(*key)!s}; layouts_of(spec) lists what they hold")


def page_offsets(gpu: Arena, bounds: Sequence[Bound]) -> torch.Tensor:
    """Byte offsets of bound pages in the GPU buffer, int64 [pages] on the host. Under the engine lock.

    Raises `CodecRefused` for coded pages: they are laid out otherwise, and a kernel would read them as if native.
    """
    coded = sorted({b.meta.codec for b in bounds if b.meta.codec != NATIVE})
    if coded:
        raise CodecRefused(
            f"pages are coded ({', '.join(coded)}), which no paged kernel can read; load the lease instead"
        )
    parts = [gpu.addresses(b.pointer.page_class, b.pointer.slots) for b in bounds]
    return torch.from_numpy(np.concatenate(parts) if parts else np.empty(0, dtype=np.int64))
