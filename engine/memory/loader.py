"""What a lease reads: bound pages gathered, proven, decoded, and joined to contiguous tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.memory.arena import Slots
from engine.memory.checksum import proven
from engine.memory.holding import Bound
from engine.memory.layout import empty_sections, join, unpack_block, unpack_pages
from engine.memory.state import LoadedState
from engine.memory.tiers import Tiers
from engine.memory.transfer import NO_MEMORY, no_memory
from engine.model.objects import ObjectKind, SegmentKey


class Loader:
    """Reads GPU pages that somebody has pinned. Without the engine lock."""

    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers
        self._gpu = tiers.gpu
        self._layouts = tiers.layouts

    def load(
        self,
        boundary: int,
        replay_tokens: int,
        page_tokens: int,
        spans: dict[ObjectKind, list[Bound]],
        blocks: dict[ObjectKind, Bound],
    ) -> LoadedState:
        """Pages of [0, `boundary`) and the boundary objects there, a tensor a segment; the tail's unfinished page too.

        Raises `CorruptObject` when a page in memory no longer matches its checksum (compared on a CPU; on a GPU pages
        would have to be copied to the host for it). Returns when the copy is done, also on a GPU.
        """
        entries: dict[SegmentKey, torch.Tensor] = {}
        for kind, bounds in spans.items():
            layout = self._layouts.of(kind)
            entries.update(join([unpack_pages(layout, data) for data in self._gather(bounds)]))
        boundary_tensors: dict[SegmentKey, torch.Tensor] = {}
        if not replay_tokens and ObjectKind.UNCOMPRESSED_TAIL not in blocks:  # empty by layout, which is not absent
            boundary_tensors.update(empty_sections(self._layouts.tail, self._gpu.buffer.device))
        for kind, bound in blocks.items():
            data = self._read_proven(bound.pointer.page_class, bound.pointer.slots, [bound])
            for key, tensor in unpack_block(self._layouts.of(kind), boundary, page_tokens, data).items():
                if key.section != "entries":
                    boundary_tensors[key] = tensor
                elif len(tensor):
                    entries[key] = torch.cat([entries[key], tensor])
        self._tiers.stream.finish_reads()
        return LoadedState(
            boundary_tokens=boundary, replay_tokens=replay_tokens, entries=entries, boundary=boundary_tensors
        )

    def _gather(self, bounds: Sequence[Bound]) -> list[torch.Tensor]:
        """Native pages [n, slot_bytes] of neighbouring pointers, one read for each run of the same form."""
        found = []
        for run in _runs(bounds):
            first = run[0]
            slots = np.concatenate([bound.pointer.slots for bound in run])
            data = self._read_proven(first.pointer.page_class, slots, run)
            found.append(self._tiers.native(first.pointer.page_class, data, first.meta))
        return found

    def _read_proven(self, page_class: str, slots: Slots, bounds: Sequence[Bound]) -> torch.Tensor:
        try:
            data = self._gpu.read(page_class, slots)
        except NO_MEMORY as error:
            raise no_memory() from error
        if self._tiers.sealed_on_commit and len(slots):
            sums = [bound.sums for bound in bounds if bound.sums is not None]
            if len(sums) == len(bounds):
                proven("gpu", data, np.concatenate(sums))
        return data


def _runs(bounds: Sequence[Bound]) -> list[list[Bound]]:
    """Group neighbours that share a form. Error bounds may differ: they do not change how to decode."""
    found: list[list[Bound]] = []
    for bound in bounds:
        if found and found[-1][0].pointer.page_class == bound.pointer.page_class:
            found[-1].append(bound)
        else:
            found.append([bound])
    return found
