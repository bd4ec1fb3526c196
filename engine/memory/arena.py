"""Slab allocator over one byte buffer, on `cuda` or `cpu`; the GPU tier and the host tier are both one of these.

A slab is taken by one page class and cut into equal slots. Slabs come back to the common pool only when every slot is
free, so fragmentation is real: free bytes inside partly used slabs cannot serve another class.

Only this module moves free lists. A slot has a generation that moves on every free: a pointer that carries an older
one is stale, whatever now lives at the address. Callers hold the engine lock for all metadata calls; `read` and
`write` copy bytes and are called without it, on slots the caller owns or has pinned.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from engine.errors import ConfigError, NotMaterialised, StalePointer
from engine.memory.checksum import Rows
from engine.model.objects import ALIGNMENT_BYTES

Slots = npt.NDArray[np.int32]
Generations = npt.NDArray[np.uint32]
Bytes = torch.Tensor  # uint8 [n, slot_bytes]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassUsage:
    """Occupancy of one page class. `fragmentation_ratio` is free bytes over bytes of the slabs it holds."""

    slot_bytes: int
    slabs: int
    slots: int
    used_slots: int

    @property
    def fragmentation_ratio(self) -> float:
        return 1.0 - self.used_slots / self.slots if self.slots else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """Slots of one class with the generations they had when the pointer was made."""

    page_class: str
    slots: Slots
    generations: Generations


class _PageClass:
    """Free list and occupancy of one class. Slot number = slab * slots a slab + index."""

    def __init__(self, name: str, slot_bytes: int, slab_bytes: int, n_slabs: int) -> None:
        self.name = name
        self.slot_bytes = slot_bytes
        self.per_slab = slab_bytes // slot_bytes
        self.stack: Slots = np.empty(n_slabs * self.per_slab, dtype=np.int32)
        self.top = 0  # free slots lie in stack[:top]
        self.owned = np.zeros(n_slabs, dtype=np.bool_)
        self.generation: Generations = np.zeros(n_slabs * self.per_slab, dtype=np.uint32)
        self.used_slots = 0
        self.n_slabs = 0

    def used_by_slab(self) -> npt.NDArray[np.int64]:
        """Used slots of every slab, counted from the free list: asked for rarely, so never kept up to date."""
        free = np.bincount(self.stack[: self.top] // self.per_slab, minlength=len(self.owned))
        return np.where(self.owned, self.per_slab - free, 0)

    def add_slab(self, slab: int) -> None:
        first = slab * self.per_slab
        # Reversed, so that slots leave the stack in address order and long copies stay contiguous.
        self.stack[self.top : self.top + self.per_slab] = np.arange(first + self.per_slab - 1, first - 1, -1)
        self.top += self.per_slab
        self.owned[slab] = True
        self.n_slabs += 1

    def take(self, n: int) -> Slots:
        self.top -= n
        slots = self.stack[self.top : self.top + n].copy()
        slots.sort()  # in address order, over several slabs too: long copies and views stay in one piece
        self.used_slots += n
        return slots

    def give(self, slots: Slots) -> None:
        n = len(slots)
        self.generation[slots] += 1
        self.stack[self.top : self.top + n] = slots[::-1]
        self.top += n
        self.used_slots -= n

    def drop_empty_slabs(self) -> list[int]:
        """Take this class's wholly free slabs off its free list; returns them."""
        if self.top < self.per_slab:
            return []  # fewer free slots than a slab has: none can be empty
        empty = np.flatnonzero(self.owned & (self.used_by_slab() == 0))
        if not len(empty):
            return []
        free = self.stack[: self.top]
        kept = free[~np.isin(free // self.per_slab, empty)]
        self.stack[: len(kept)] = kept
        self.top = len(kept)
        self.owned[empty] = False
        self.n_slabs -= len(empty)
        return [int(slab) for slab in empty]


class Arena:
    """Slots of several classes in one buffer of `total_bytes`.

    `materialise=False` keeps all the bookkeeping and no buffer: `read` and `write` raise `NotMaterialised`.
    Raises `ConfigError` when a slot does not fit a slab or the buffer holds no slab.
    """

    def __init__(
        self,
        name: str,
        total_bytes: int,
        slab_bytes: int,
        classes: Mapping[str, int],
        *,
        device: str = "cpu",
        pin: bool = False,
        materialise: bool = True,
    ) -> None:
        widest = max(classes.values())
        slab_bytes -= slab_bytes % ALIGNMENT_BYTES  # else slots of later slabs could not be read in their own dtype
        if widest > slab_bytes:
            raise ConfigError(
                f"{name}: a slot of {widest:,} bytes does not fit a slab of {slab_bytes:,}; raise slab_bytes"
            )
        self.name = name
        self.slab_bytes = slab_bytes
        self.n_slabs = total_bytes // slab_bytes
        if self.n_slabs < 1:
            raise ConfigError(f"{name}: {total_bytes:,} bytes hold no slab of {slab_bytes:,} bytes; give the tier more")
        self.total_bytes = self.n_slabs * slab_bytes
        self._free_slabs = list(range(self.n_slabs - 1, -1, -1))
        self._classes = {c: _PageClass(c, size, slab_bytes, self.n_slabs) for c, size in classes.items()}
        self._buffer: torch.Tensor | None = None
        self._on_host: npt.NDArray[np.uint8] | None = None
        if materialise:
            try:
                self._buffer = _memory(self.total_bytes, device, pin)
            # torch has no class of its own for these
            except (RuntimeError, AssertionError, MemoryError, OSError, OverflowError) as error:
                why = str(error).splitlines()[0]
                raise ConfigError(f"{name}: {self.total_bytes:,} bytes on {device!r} cannot be had: {why}") from error
            # Host copies go through numpy: one thread, so that they never wait for the model's thread pool.
            self._on_host = self._buffer.numpy() if self._buffer.device.type == "cpu" else None
        self.live_bytes = 0
        self.freed_slots = 0  # ever: while it stands, every pointer that was current still is

    # -- allocation -------------------------------------------------------------------------------------------------

    def take(self, page_class: str, n: int) -> Slots | None:
        """`n` slots, all or none. None means no room: the caller evicts and asks again."""
        cls = self._classes[page_class]
        while cls.top < n:
            if not self._free_slabs and not self._reclaim(cls):
                return None
            cls.add_slab(self._free_slabs.pop())
        self.live_bytes += n * cls.slot_bytes
        return cls.take(n)

    def give(self, page_class: str, slots: Slots) -> None:
        """Free slots; their generations move."""
        cls = self._classes[page_class]
        cls.give(slots)
        self.freed_slots += len(slots)
        self.live_bytes -= len(slots) * cls.slot_bytes

    @property
    def page_classes(self) -> Collection[str]:
        return self._classes.keys()

    def slot_bytes(self, page_class: str) -> int:
        return self._classes[page_class].slot_bytes

    def _reclaim(self, wanting: _PageClass) -> bool:
        for cls in self._classes.values():
            if cls is not wanting:
                self._free_slabs.extend(cls.drop_empty_slabs())
        return bool(self._free_slabs)

    # -- pointers ---------------------------------------------------------------------------------------------------

    def point(self, page_class: str, slots: Slots) -> Pointer:
        return Pointer(page_class=page_class, slots=slots, generations=self._classes[page_class].generation[slots])

    def is_current(self, pointer: Pointer) -> bool:
        now = self._classes[pointer.page_class].generation[pointer.slots]
        return bool((now == pointer.generations).all())

    def check_current(self, pointer: Pointer) -> None:
        """Raises `StalePointer` if any slot was freed since."""
        if not self.is_current(pointer):
            raise StalePointer(
                f"{self.name}: {len(pointer.slots)} {pointer.page_class} slots were freed or moved after this pointer "
                "was made; acquire again"
            )

    def addresses(self, page_class: str, slots: Slots) -> npt.NDArray[np.int64]:
        """Byte offset of each slot in the buffer: the entries of a page table."""
        cls = self._classes[page_class]
        slab, index = np.divmod(slots.astype(np.int64), cls.per_slab)
        offsets: npt.NDArray[np.int64] = slab * self.slab_bytes + index * cls.slot_bytes
        return offsets

    # -- bytes ------------------------------------------------------------------------------------------------------

    @property
    def on_host(self) -> bool:
        """Its bytes can be reached by the CPU where they lie."""
        return self._on_host is not None

    @property
    def buffer(self) -> torch.Tensor:
        if self._buffer is None:
            raise NotMaterialised(f"{self.name}: this engine only keeps books (materialise=False); there are no bytes")
        return self._buffer

    def _rows(self, cls: _PageClass) -> torch.Tensor:
        """A view [slabs, slots a slab, slot_bytes] of the buffer."""
        shape = (self.n_slabs, cls.per_slab, cls.slot_bytes)
        return self.buffer.as_strided(shape, (self.slab_bytes, cls.slot_bytes, 1))

    def _host_rows(self, cls: _PageClass) -> npt.NDArray[np.uint8]:
        shape, strides = (self.n_slabs, cls.per_slab, cls.slot_bytes), (self.slab_bytes, cls.slot_bytes, 1)
        return np.lib.stride_tricks.as_strided(self._on_host, shape, strides)  # type: ignore[arg-type]

    def _index(self, cls: _PageClass, slots: Slots) -> tuple[torch.Tensor, torch.Tensor]:
        slab, index = np.divmod(slots.astype(np.int64), cls.per_slab)
        device = self.buffer.device
        return torch.from_numpy(slab).to(device), torch.from_numpy(index).to(device)

    def read(self, page_class: str, slots: Slots) -> Bytes:
        """A copy of the slots' bytes, uint8 [n, slot_bytes], on the arena's device."""
        cls = self._classes[page_class]
        if self._on_host is not None:
            return torch.from_numpy(self._host_rows(cls)[np.divmod(slots, cls.per_slab)])
        return self._rows(cls)[self._index(cls, slots)]

    def view(self, page_class: str, slots: Slots) -> Bytes:
        """The slots' bytes where they lie, uint8 [n, slot_bytes], when they lie evenly in host memory; else a copy.

        Only for who holds the slots: what is freed meanwhile would change under the reader.
        """
        offsets = self.addresses(page_class, slots)
        steps = np.diff(offsets)
        if self._on_host is None or not len(slots) or (len(steps) and (steps[0] <= 0 or (steps != steps[0]).any())):
            return self.read(page_class, slots)
        size = self.slot_bytes(page_class)
        start, step = int(offsets[0]), int(steps[0]) if len(steps) else size
        memory = self._on_host.reshape(-1)[start : start + step * (len(slots) - 1) + size]
        return torch.from_numpy(np.lib.stride_tricks.as_strided(memory, (len(slots), size), (step, 1)))

    def write(self, page_class: str, slots: Slots, data: Bytes) -> None:
        """Put uint8 [n, slot_bytes] into the slots; `data` may live on another device."""
        cls = self._classes[page_class]
        if self._on_host is not None:
            self._host_rows(cls)[np.divmod(slots, cls.per_slab)] = data.numpy(force=True)
        else:
            self._to_device(page_class, slots, data)

    def fill(self, page_class: str, slots: Slots, work: Callable[[Sequence[Rows]], T]) -> T:
        """Have `work` put bytes where the slots lie, and return its result.

        It gets the slots in order, in as few arrays [k, slot_bytes] as there are stretches of memory without a gap. In
        host memory these are the slots themselves; for another device they are memory of their own, which is copied
        there when `work` is done.
        """
        size = self.slot_bytes(page_class)
        if self._on_host is None:
            staged = np.empty((len(slots), size), dtype=np.uint8)
            result = work([staged])
            self._to_device(page_class, slots, torch.from_numpy(staged))
            return result
        memory = self._on_host.reshape(-1)
        offsets = self.addresses(page_class, slots)
        ends = np.flatnonzero(np.diff(offsets, append=-1) != size)
        firsts = np.concatenate(([0], ends[:-1] + 1)) if len(ends) else ends
        starts, stops = offsets[firsts].tolist(), (offsets[ends] + size).tolist()
        return work([memory[a:b].reshape(-1, size) for a, b in zip(starts, stops, strict=True)])

    def _to_device(self, page_class: str, slots: Slots, data: Bytes) -> None:
        cls = self._classes[page_class]
        self._rows(cls)[self._index(cls, slots)] = data.to(self.buffer.device, non_blocking=True)

    # -- figures ----------------------------------------------------------------------------------------------------

    def usage(self) -> dict[str, ClassUsage]:
        return {
            name: ClassUsage(
                slot_bytes=cls.slot_bytes,
                slabs=cls.n_slabs,
                slots=cls.n_slabs * cls.per_slab,
                used_slots=cls.used_slots,
            )
            for name, cls in self._classes.items()
        }

    def sparse_slabs(self, page_class: str, below_ratio: float) -> Slots:
        """What compaction may empty: slabs filled less than `below_ratio`, emptiest first, as long as the holes in the
        other partly used slabs can take their pages."""
        cls = self._classes[page_class]
        used = cls.used_by_slab()
        sparse = np.flatnonzero((used > 0) & (used < below_ratio * cls.per_slab))
        sparse = sparse[np.argsort(used[sparse], kind="stable")]
        holes = int((cls.per_slab - used[used > 0]).sum()) - np.cumsum(cls.per_slab - used[sparse])
        return sparse[np.cumsum(used[sparse]) <= holes].astype(np.int32)

    def slab_of(self, page_class: str, slots: Slots) -> Slots:
        return slots // self._classes[page_class].per_slab

    def take_outside(self, page_class: str, n: int, slabs: Slots) -> Slots | None:
        """Up to `n` free slots that lie in partly used slabs other than `slabs`; None if there are fewer."""
        cls = self._classes[page_class]
        free = cls.stack[: cls.top]
        home = free // cls.per_slab
        fit = (cls.used_by_slab()[home] > 0) & ~np.isin(home, slabs)
        chosen = np.flatnonzero(fit)[:n]
        if len(chosen) < n:
            return None
        slots = free[chosen].copy()
        rest = np.delete(free, chosen)
        cls.stack[: len(rest)] = rest
        cls.top = len(rest)
        cls.used_slots += n
        self.live_bytes += n * cls.slot_bytes
        return slots

    def release_empty_slabs(self) -> int:
        """Return wholly free slabs to the common pool; how many."""
        before = len(self._free_slabs)
        for cls in self._classes.values():
            self._free_slabs.extend(cls.drop_empty_slabs())
        return len(self._free_slabs) - before

    def violations(self) -> list[str]:
        """Broken balances: free + used = owned in every class, slabs all accounted for, live bytes as counted."""
        found = []
        owned = sum(c.n_slabs for c in self._classes.values())
        if owned + len(self._free_slabs) != self.n_slabs:
            found.append(f"{self.name}: {owned} owned + {len(self._free_slabs)} free slabs are not {self.n_slabs}")
        for name, cls in self._classes.items():
            if cls.top + cls.used_slots != cls.n_slabs * cls.per_slab:
                found.append(
                    f"{self.name}: class {name}: {cls.top} free + {cls.used_slots} used slots are not the slabs'"
                )
            if len(np.unique(cls.stack[: cls.top])) != cls.top:
                found.append(f"{self.name}: class {name}: a slot is free twice")
            if int(cls.used_by_slab().sum()) != cls.used_slots:
                found.append(f"{self.name}: class {name}: a free slot lies in a slab of another class")
        live = sum(c.used_slots * c.slot_bytes for c in self._classes.values())
        if live != self.live_bytes:
            found.append(f"{self.name}: live bytes counted {self.live_bytes:,} are {live:,}")
        return found


def _memory(n_bytes: int, device: str, pin: bool) -> torch.Tensor:
    """Uninitialised uint8 [n_bytes].

    Ordinary memory comes in huge pages where the kernel has them: with small ones a copy is half as fast, and a
    checksum too, for the processor's translations of addresses (docs/reference/performance.md).
    """
    with torch.inference_mode(False):  # an inference tensor could not be written to outside that mode
        if device != "cpu" or pin:
            return torch.empty(n_bytes, dtype=torch.uint8, device=device, pin_memory=pin)
        memory = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
        return torch.frombuffer(memory, dtype=torch.uint8)
