"""The three tiers of one engine, and the byte work between them: no index, no states, no decisions.

Metadata calls (`take`, `free`, `bind`) are made under the engine lock; byte work (`put`, `fill_host`,
`write_file`, reads) without it, on copies that the caller owns or has marked busy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch

from engine.clock import Clock
from engine.errors import CodecRefused, ConfigError, CorruptObject, OutOfMemory, TierUnavailable
from engine.memory.arena import Arena, Slots
from engine.memory.checksum import PageSums, Rows, page_sums
from engine.memory.codec import CODECS, NATIVE, NATIVE_META, CodecMeta, PageCodec
from engine.memory.disk import DiskTier
from engine.memory.diskfile import DiskFile, ObjectHeader
from engine.memory.faults import Faults, FaultyArena, FaultyDevice
from engine.memory.holding import Bound, DiskCopy, Holding, SlotCopy, Tier
from engine.memory.landing import Landing
from engine.memory.lane import Lane, Overdue
from engine.memory.layout import empty_sections, join, torch_dtype, unpack_block, unpack_pages
from engine.memory.movers import Movers, copy_from
from engine.memory.paged import PagedView
from engine.memory.state import LoadedState
from engine.memory.transfer import NO_MEMORY, Breaker, CopyStream, Transfer
from engine.model.objects import ObjectKind, PrefixLayouts, SegmentKey

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
        code_compressed: bool = False,
        io_limit_s: float = 5.0,
        faults: Faults | None = None,
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
        self.materialise = materialise
        self.sealed_on_commit = materialise and not cuda
        self.doomed: deque[DiskFile] = deque()
        self.damaged: deque[DiskFile] = deque()
        self.sweep_failures = 0
        self.sweep_fails = False  # the last one could not delete all
        self._sweeping = Lock()
        self._stream = CopyStream(device if materialise else "cpu")

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
        if copy.file.live_pages <= 0 and self.disk is not None:
            self.disk.forget(copy.file)
            (self.damaged if damaged else self.doomed).append(copy.file)
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

    def sweep(self, *, wait: bool = False) -> None:
        """Delete files that were forgotten and move damaged ones aside. I/O: called without the engine lock.

        One thread at a time; another one comes back at once, unless it is to `wait`. A device that fails costs the
        caller nothing: the files wait for the next sweep.
        """
        if self.disk is not None and self._sweeping.acquire(blocking=wait):
            try:
                self._sweep(self.disk, self.io[Tier.DISK])
            finally:
                self._sweeping.release()

    def _sweep(self, disk: DiskTier, io: Transfer) -> None:
        self.sweep_fails = io.breaker.state is Breaker.OPEN or self._lane.full
        if self.sweep_fails:
            return
        try:
            if disk.leftovers:
                io.bounded(disk.delete_leftovers)
            for waiting, act in ((self.doomed, disk.unlink), (self.damaged, disk.quarantine)):
                for _ in range(len(waiting)):
                    io.bounded(partial(act, waiting[0]))
                    waiting.popleft()
        except OSError:
            self.sweep_failures, self.sweep_fails = self.sweep_failures + 1, True
        except Overdue:
            self.sweep_failures, self.sweep_fails = self.sweep_failures + 1, True
            io.breaker.trip()

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
                "sweep_failures": self.sweep_failures, **self.disk.quarantine_figures(),
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
            self._stream.run(lambda: self.gpu.write(copy.page_class, copy.slots, data))
        except NO_MEMORY as error:
            raise _no_memory() from error
        if sums is not None:
            copy.sums = sums
        elif self.sealed_on_commit:
            copy.sums = page_sums(data)

    def move_pages(self, page_class: str, old: Slots, new: Slots) -> None:
        """Copy pages from one set of GPU slots to another. Raises `OutOfMemory`."""
        try:
            self._stream.run(lambda: self.gpu.write(page_class, new, self.gpu.read(page_class, old)))
        except NO_MEMORY as error:
            raise _no_memory() from error

    def gpu_bytes_on_host(self, copy: SlotCopy) -> tuple[torch.Tensor, PageSums]:
        """The GPU pages' bytes on the host, proven against their checksums, or given checksums if they had none."""
        transfer = self.io[Tier.GPU]
        data = transfer.run(
            transfer.read,
            copy.total_bytes,
            lambda: self._stream.run(lambda: self.gpu.read(copy.page_class, copy.slots).cpu()),
        )
        return data, self._proven("gpu", data, copy.sums)

    def host_bytes(self, copy: SlotCopy) -> tuple[torch.Tensor, PageSums]:
        """A copy of a host copy's pages, proven."""
        transfer, arena = self.io[Tier.HOST], self.arena(Tier.HOST)
        data = transfer.run(transfer.read, copy.total_bytes, lambda: arena.read(copy.page_class, copy.slots))
        return data, self._proven("host", data, copy.sums)

    def restore_host(self, source: SlotCopy, *, into: SlotCopy) -> None:
        """Fill freshly taken GPU slots from a host copy that nobody frees meanwhile.

        Raises `CorruptObject`, `TierUnavailable` or `OutOfMemory`; the slots stay the caller's.
        """
        transfer, arena = self.io[Tier.HOST], self.arena(Tier.HOST)

        def moved() -> PageSums:
            data = arena.view(source.page_class, source.slots)
            if not self.gpu.on_host:  # what has left for the device cannot be hashed there: prove it before
                sums = self._proven("host", data, source.sums)
                self.put(into, data, sums)
                return sums
            # Hashed where they have arrived: that proves the source and the copy at once.
            sums = self.gpu.fill(
                into.page_class, into.slots, lambda rows: self._movers.move(rows, copy_from(data.numpy()))
            )
            if source.sums is not None and not np.array_equal(sums, source.sums):
                self._proven("host", data, source.sums)
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
                copy.sums = self._stream.run(lambda: self.gpu.fill(copy.page_class, copy.slots, read))
            except NO_MEMORY as error:
                raise _no_memory() from error

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

    def _proven(self, where: str, data: torch.Tensor, sums: PageSums | None) -> PageSums:
        now = page_sums(data)
        if sums is not None and not np.array_equal(now, sums):
            bad = int(np.flatnonzero(now != sums)[0])
            raise CorruptObject(f"{where}: page {bad} of {len(now)} does not match its checksum")
        return now

    # -- what a lease reads -----------------------------------------------------------------------------------------

    def load(
        self,
        boundary: int,
        replay_tokens: int,
        page_tokens: int,
        spans: dict[ObjectKind, list[Bound]],
        blocks: dict[ObjectKind, Bound],
    ) -> LoadedState:
        """Contiguous tensors from bound pages: gathered, proven, decoded, joined with the tail's unfinished page.

        Raises `CorruptObject` when a page in memory no longer matches its checksum (compared on a CPU; on a GPU pages
        would have to be copied to the host for it). Returns when the copy is done, also on a GPU.
        """
        entries: dict[SegmentKey, torch.Tensor] = {}
        for kind, bounds in spans.items():
            layout = self.layouts.of(kind)
            entries.update(join([unpack_pages(layout, data) for data in self._gather(bounds)]))
        boundary_tensors: dict[SegmentKey, torch.Tensor] = {}
        if not replay_tokens and ObjectKind.UNCOMPRESSED_TAIL not in blocks:  # empty by layout, which is not absent
            boundary_tensors.update(empty_sections(self.layouts.tail, self.gpu.buffer.device))
        for kind, bound in blocks.items():
            data = self._read_proven(bound.pointer.page_class, bound.pointer.slots, [bound])
            for key, tensor in unpack_block(self.layouts.of(kind), boundary, page_tokens, data).items():
                if key.section != "entries":
                    boundary_tensors[key] = tensor
                elif len(tensor):
                    entries[key] = torch.cat([entries[key], tensor])
        self._stream.finish_reads()
        return LoadedState(
            boundary_tokens=boundary, replay_tokens=replay_tokens, entries=entries, boundary=boundary_tensors
        )

    def page_offsets(self, bounds: Sequence[Bound]) -> torch.Tensor:
        """Byte offsets of bound pages in the GPU buffer, int64 [pages] on the host. Under the engine lock.

        Raises `CodecRefused` for coded pages: they are laid out otherwise, and a kernel would read them as if native.
        """
        coded = sorted({b.meta.codec for b in bounds if b.meta.codec != NATIVE})
        if coded:
            raise CodecRefused(
                f"pages are coded ({', '.join(coded)}), which no paged kernel can read; load the lease instead"
            )
        parts = [self.gpu.addresses(b.pointer.page_class, b.pointer.slots) for b in bounds]
        return torch.from_numpy(np.concatenate(parts) if parts else np.empty(0, dtype=np.int64))

    def paged_view(self, kind: ObjectKind, key: SegmentKey) -> PagedView:
        """Raises `ConfigError` for a tensor that the kind's pages do not have, `NotMaterialised` without bytes."""
        for segment in self.layouts.of(kind).segments if kind in self.layouts.span_kinds else ():
            if segment.key == key:
                return PagedView(
                    buffer=self.gpu.buffer, offset_bytes=segment.offset_bytes, rows=segment.rows, width=segment.width,
                    dtype=torch_dtype(segment.dtype),
                )  # fmt: skip
        raise ConfigError(f"pages of {kind!s} hold no {SegmentKey(*key)!s}; layouts_of(spec) lists what they hold")

    def reads_given(self) -> None:
        """The caller's own stream was given reads of pages: they are not overwritten before those are done."""
        self._stream.follow()

    def _gather(self, bounds: Sequence[Bound]) -> list[torch.Tensor]:
        """Native pages [n, slot_bytes] of neighbouring pointers, one read for each run of the same form."""
        found = []
        for run in _runs(bounds):
            first = run[0]
            slots = np.concatenate([bound.pointer.slots for bound in run])
            data = self._read_proven(first.pointer.page_class, slots, run)
            found.append(self.native(first.pointer.page_class, data, first.meta))
        return found

    def _read_proven(self, page_class: str, slots: Slots, bounds: Sequence[Bound]) -> torch.Tensor:
        try:
            data = self.gpu.read(page_class, slots)
        except NO_MEMORY as error:
            raise _no_memory() from error
        if self.sealed_on_commit and len(slots):
            sums = [bound.sums for bound in bounds if bound.sums is not None]
            if len(sums) == len(bounds):
                self._proven("gpu", data, np.concatenate(sums))
        return data


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


def _no_memory() -> OutOfMemory:
    return OutOfMemory("gpu: no memory for a copy to pass through; nothing was changed")


def derived_slab_bytes(gpu_bytes: int, widest_slot_bytes: int) -> int:
    """A 64th of the GPU tier within 64 KiB and 2 MiB, and at least one slot of the widest class."""
    return max(widest_slot_bytes, min(max(gpu_bytes // 64, 64 << 10), 2 << 20))


def _runs(bounds: Sequence[Bound]) -> list[list[Bound]]:
    """Group neighbours that share a form. Error bounds may differ: they do not change how to decode."""
    found: list[list[Bound]] = []
    for bound in bounds:
        if found and found[-1][0].pointer.page_class == bound.pointer.page_class:
            found[-1].append(bound)
        else:
            found.append([bound])
    return found
