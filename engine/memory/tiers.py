"""The three tiers of one engine, and the byte work between them: no index, no states, no decisions.

Metadata calls (`free_slots`, `drop_*`, `bind`) are made under the engine lock; byte work (`put`, `fill_host`,
`write_file`, reads) without it, on copies that the caller owns or has marked busy. What a lease reads: loader.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.clock import Clock
from engine.errors import CorruptObject, OutOfMemory, TierUnavailable
from engine.memory.arena import Arena, Slots
from engine.memory.checksum import PageSums, Rows, page_sums, proven
from engine.memory.codec import CODECS, NATIVE, NATIVE_META, CodecMeta, PageCodec
from engine.memory.disk import DiskTier
from engine.memory.diskfile import DiskFile, ObjectHeader
from engine.memory.faults import Faults
from engine.memory.faulty import FaultyArena, FaultyDevice
from engine.memory.holding import Bound, DiskCopy, Holding, SlotCopy, Tier
from engine.memory.landing import Landing
from engine.memory.lane import Lane
from engine.memory.movers import Movers, copy_from
from engine.memory.sweeper import Sweeper
from engine.memory.transfer import NO_MEMORY, CopyStream, Transfer, no_memory
from engine.model.objects import ObjectKind, PrefixLayouts

DEFAULT_BYTES_PER_S = {Tier.HOST: 4e9, Tier.DISK: 5e8, Tier.GPU: 1e11}


class Tiers:
    """GPU and host arenas, the disk folder, the codecs, and each tier's I/O."""

    def __init__(
        self,
        layouts: PrefixLayouts,
        clock: Clock,
        *,
        device: str,
        gpu_bytes: int,
        host_bytes: int,
        disk_bytes: int,
        data_dir: Path | None,
        slab_bytes: int | None,
        materialise: bool,
        code_compressed: bool,
        io_limit_s: float,
        faults: Faults | None,
    ) -> None:
        self.layouts = layouts
        # What is written follows the configuration; what is read may come from an engine configured otherwise.
        every = [PageCodec(name, layouts.history, code_compressed=wide) for wide in (False, True) for name in CODECS]
        self._readers = {codec.page_class: codec for codec in every if codec.useful}
        self.codecs = {n: PageCodec(n, layouts.history, code_compressed=code_compressed) for n in CODECS}
        classes = self._classes()
        slab_bytes = slab_bytes or derived_slab_bytes(gpu_bytes, max(classes.values()))
        cuda = device.startswith("cuda")
        arena: Callable[..., Arena] = Arena if faults is None else partial(FaultyArena, faults=faults)
        self.gpu = arena("gpu", gpu_bytes, slab_bytes, classes, device=device, materialise=materialise)
        self.host = arena("host", host_bytes, slab_bytes, classes, pin=cuda) if host_bytes else None
        self._lane = Lane(Tier.DISK)
        self._movers = Movers()
        self.io = {tier: Transfer(str(tier), clock) for tier in (Tier.GPU, Tier.HOST)}
        self.io[Tier.DISK] = Transfer(str(Tier.DISK), clock, lane=self._lane, limit_s=io_limit_s)
        self.disk: DiskTier | None = None
        if disk_bytes and data_dir is not None:
            drive = None if faults is None else FaultyDevice(faults)
            self.disk = DiskTier(data_dir, disk_bytes, device=drive, clock=clock, io=self.io[Tier.DISK])
        self.sweeper = Sweeper(self.disk, self.io[Tier.DISK])
        self.materialise = materialise
        self.sealed_on_commit = materialise and not cuda
        self.stream = CopyStream(device if materialise else "cpu")

    def _classes(self) -> dict[str, int]:
        found = {}
        for kind in (*self.layouts.span_kinds, *self.layouts.boundary_kinds):
            found[str(kind)] = self.layouts.of(kind).slot_bytes
        return found | {name: codec.coded_bytes for name, codec in self._readers.items()}

    def page_class(self, kind: ObjectKind, meta: CodecMeta) -> str:
        """Where pages of a kind in this form are kept."""
        return str(kind) if meta.codec == NATIVE else self.codecs[meta.codec].page_class

    def native(self, page_class: str, data: torch.Tensor, meta: CodecMeta) -> torch.Tensor:
        """Pages decoded if they are coded. Raises `CodecRefused` for pages this engine cannot read."""
        return data if meta.codec == NATIVE else self._readers[page_class].decode(data, meta)

    def new_copy(self, kind: ObjectKind, slots: Slots, meta: CodecMeta = NATIVE_META) -> SlotCopy:
        """Freshly taken slots as a copy without checksums yet."""
        name = self.page_class(kind, meta)
        return SlotCopy(name, self.gpu.slot_bytes(name), slots, meta, None)

    # -- metadata, under the engine lock ----------------------------------------------------------------------------

    def arena(self, tier: Tier) -> Arena:
        arena = self.gpu if tier is Tier.GPU else self.host
        if arena is None:
            raise TierUnavailable("the host tier is absent (host_bytes is 0)")
        return arena

    def free_slots(self, tier: Tier, copy: SlotCopy) -> None:
        if len(copy.slots):
            self.arena(tier).give(copy.page_class, copy.slots)

    def drop_gpu(self, holding: Holding) -> int:
        """Free the GPU copy; bytes freed."""
        copy, holding.gpu = holding.gpu, None
        if copy is None:
            return 0
        self.free_slots(Tier.GPU, copy)
        return copy.total_bytes

    def drop_host(self, holding: Holding) -> int:
        copy, holding.host = holding.host, None
        if copy is None:
            return 0
        self.free_slots(Tier.HOST, copy)
        return copy.total_bytes

    def drop_disk(self, holding: Holding, *, damaged: bool = False) -> int:
        """Let go of the disk copy; its file goes when no prefix refers to it any more."""
        copy, holding.disk = holding.disk, None
        if copy is None:
            return 0
        copy.file.live_pages -= copy.n_pages
        if copy.file.live_pages <= 0:
            self.sweeper.forget(copy.file, damaged=damaged)
        return copy.total_bytes

    def drop_all(self, holding: Holding) -> int:
        return self.drop_gpu(holding) + self.drop_host(holding) + self.drop_disk(holding)

    def bind(self, holding: Holding, first: int, last: int) -> Bound:
        """A pointer to GPU pages [first, last) of a holding, with the generations they have now."""
        copy = holding.gpu
        if copy is None:
            raise OutOfMemory(f"{holding.kind} is not on the GPU; a boundary was leased before it was restored")
        if first == 0 and last == holding.n_pages:
            bound = copy.bound
            if bound is None or not bound.is_of(copy):
                bound = copy.bound = Bound(self.gpu.point(copy.page_class, copy.slots), copy.meta, copy.sums)
            return bound
        cut = copy.cut(first, last)
        return Bound(self.gpu.point(cut.page_class, cut.slots), cut.meta, cut.sums)

    # -- bytes, without the lock ------------------------------------------------------------------------------------

    @property
    def stuck_calls(self) -> int:
        """Calls to the disk that nobody waits for any more and that have not come back."""
        return self._lane.stuck

    def io_figures(self) -> dict[str, dict[str, Any]]:
        """How each tier's device behaves: its breaker, retries, and for the disk what did not come back or could not
        be deleted."""
        found: dict[str, dict[str, Any]] = {
            str(tier): {"breaker": str(io.breaker.state), "retries": io.retries} for tier, io in self.io.items()
        }
        if self.disk is None:
            del found[Tier.DISK]
        else:
            found[Tier.DISK] |= {
                "stuck": self._lane.stuck, "overdue": self._lane.overdue, "leaving_bytes": self.disk.leaving_bytes,
                "sweep_failures": self.sweeper.failures, **self.disk.quarantine_figures(),
            }  # fmt: skip
        return found

    def close(self) -> None:
        """Write no more; give the folder to others as soon as no call to the device is out."""
        if self.disk is not None:
            self.disk.close()
            self._lane.close(self.disk.let_go)
        self._movers.close()

    def put(self, copy: SlotCopy, data: torch.Tensor, sums: PageSums | None = None) -> None:
        """Fill freshly taken GPU slots; bytes first, then checksums: those they came with, or new ones.

        Raises `OutOfMemory`; the slots stay the caller's.
        """
        try:
            self.stream.run(lambda: self.gpu.write(copy.page_class, copy.slots, data))
        except NO_MEMORY as error:
            raise no_memory() from error
        if sums is not None:
            copy.sums = sums
        elif self.sealed_on_commit:
            copy.sums = page_sums(data)

    def move_pages(self, page_class: str, old: Slots, new: Slots) -> None:
        """Copy pages from one set of GPU slots to another. Raises `OutOfMemory`."""
        try:
            self.stream.run(lambda: self.gpu.write(page_class, new, self.gpu.read(page_class, old)))
        except NO_MEMORY as error:
            raise no_memory() from error

    def gpu_bytes_on_host(self, copy: SlotCopy) -> tuple[torch.Tensor, PageSums]:
        """The GPU pages' bytes on the host, proven against their checksums, or given checksums if they had none."""
        transfer = self.io[Tier.GPU]
        data = transfer.run(
            transfer.read,
            copy.total_bytes,
            lambda: self.stream.run(lambda: self.gpu.read(copy.page_class, copy.slots).cpu()),
        )
        return data, proven("gpu", data, copy.sums)

    def host_bytes(self, copy: SlotCopy) -> tuple[torch.Tensor, PageSums]:
        """A copy of a host copy's pages, proven."""
        transfer, arena = self.io[Tier.HOST], self.arena(Tier.HOST)
        data = transfer.run(transfer.read, copy.total_bytes, lambda: arena.read(copy.page_class, copy.slots))
        return data, proven("host", data, copy.sums)

    def restore_host(self, source: SlotCopy, *, into: SlotCopy) -> None:
        """Fill freshly taken GPU slots from a host copy that nobody frees meanwhile.

        Raises `CorruptObject`, `TierUnavailable` or `OutOfMemory`; the slots stay the caller's.
        """
        transfer, arena = self.io[Tier.HOST], self.arena(Tier.HOST)

        def moved() -> PageSums:
            data = arena.view(source.page_class, source.slots)
            if not self.gpu.on_host:  # what has left for the device cannot be hashed there: prove it before
                sums = proven("host", data, source.sums)
                self.put(into, data, sums)
                return sums
            # Hashed where they have arrived: that proves the source and the copy at once.
            sums = self.gpu.fill(
                into.page_class, into.slots, lambda rows: self._movers.move(rows, copy_from(data.numpy()))
            )
            if source.sums is not None and not np.array_equal(sums, source.sums):
                proven("host", data, source.sums)
                raise TierUnavailable("gpu: a copy from the host arrived as other bytes; the host still has its own")
            return sums

        into.sums = transfer.run(transfer.read, source.total_bytes, moved)

    def fill_host(self, copy: SlotCopy, data: torch.Tensor) -> None:
        transfer, arena = self.io[Tier.HOST], self.arena(Tier.HOST)
        transfer.run(transfer.write, data.numel(), lambda: arena.write(copy.page_class, copy.slots, data))

    def disk_bytes(self, copy: DiskCopy) -> tuple[torch.Tensor, PageSums]:
        """The pages of a disk copy, and the whole file proven. Raises `CorruptObject` or `TierUnavailable`."""
        disk, transfer = self._disk(), self.io[Tier.DISK]
        with _damage_noted(copy):
            stored = transfer.run(transfer.read, copy.file.file_bytes, lambda: disk.reads.whole(copy.file))
            _check_form(copy, stored.header)
        first, last = copy.first, copy.first + copy.n_pages
        return stored.pages[first:last], stored.sums[first:last]

    def restore_disk(self, source: DiskCopy, *, into: Landing, deadline_ns: int | None = None) -> None:
        """Fill freshly taken GPU slots from a file: header, checksums and the pages that are wanted, all proven.

        On a CPU the file is read straight into the slots, and hashed there: nothing can reach them before they are
        mapped. Raises `CorruptObject`, `TierUnavailable` or `OutOfMemory`; whoever made the landing gives it up then.
        """
        disk, transfer, copy = self._disk(), self.io[Tier.DISK], into.copy

        def read(rows: Sequence[Rows]) -> PageSums:
            accept = partial(_check_form, source)
            work = partial(disk.reads.pages, source.file, source.first, rows, self._movers, accept)
            return transfer.run(transfer.read, source.total_bytes, lambda: into.fill(work), deadline_ns)

        with _damage_noted(source):
            try:
                copy.sums = self.stream.run(lambda: self.gpu.fill(copy.page_class, copy.slots, read))
            except NO_MEMORY as error:
                raise no_memory() from error

    def write_file(
        self, name: str, header: ObjectHeader, data: torch.Tensor, sums: PageSums, tokens: bytes
    ) -> DiskFile:
        disk = self._disk()
        transfer = self.io[Tier.DISK]
        ids = np.frombuffer(tokens, dtype=np.int32)
        publish = partial(disk.publish, name, header, data, sums, ids)
        return transfer.run(transfer.write, data.numel(), publish, discard=disk.discard)

    def sync_disk(self) -> bool:
        """Make what was written last survive a power cut. False: the device failed."""
        transfer, disk = self.io[Tier.DISK], self._disk()
        try:
            transfer.run(transfer.write, 0, disk.sync_folder)
        except TierUnavailable:
            return False
        return True

    def estimate_s(self, tier: Tier, n_bytes: int) -> float:
        return self.io[tier].read.estimate_s(n_bytes, DEFAULT_BYTES_PER_S[tier])

    def _disk(self) -> DiskTier:
        if self.disk is None:
            raise TierUnavailable("the disk tier is absent (disk_bytes is 0)")
        return self.disk


@contextmanager
def _damage_noted(copy: DiskCopy) -> Iterator[None]:
    """What is found wrong with a file goes with it to where it is set aside."""
    try:
        yield
    except CorruptObject as error:
        copy.file.damage = str(error)
        raise


def _check_form(copy: DiskCopy, header: ObjectHeader) -> None:
    if header.page_class != copy.page_class or header.codec != copy.meta:
        raise CorruptObject(f"{copy.file.name}: it holds {header.page_class}, {copy.page_class} was expected")


def derived_slab_bytes(gpu_bytes: int, widest_slot_bytes: int) -> int:
    """A 64th of the GPU tier within 64 KiB and 2 MiB, and at least one slot of the widest class."""
    return max(widest_slot_bytes, min(max(gpu_bytes // 64, 64 << 10), 2 << 20))
