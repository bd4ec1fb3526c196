"""Slots on their way: taken, and no entry has them yet.

A commit fills its slots before it publishes them, a restore before it maps them; a recode, a copy to the host and a
compaction's move do the same. Who takes slots for that takes them here; each ends here, as an entry's or as free.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from weakref import ref

from engine.memory.arena import Slots
from engine.memory.holding import Tier
from engine.memory.tiers import Tiers
from engine.model.objects import BOUNDARY_KINDS


class _Taken(NamedTuple):
    slots: ref[Slots]  # weak: slots that their taker forgot are on no way, and `check` finds that nobody has them
    tier: Tier
    page_class: str


class Underway:
    """Guarded by the engine lock. Slots are known by the very array that `take` gave."""

    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers
        self._taken: dict[int, _Taken] = {}
        self.checkpoint_bytes = 0  # on the GPU, of checkpoints that do not hang on their prefix yet
        self.disk_bytes = 0  # reserved for files that are being written

    def __len__(self) -> int:
        return len(self._taken)

    def take(self, tier: Tier, page_class: str, n: int) -> Slots | None:
        """`n` slots, all or none; they are on their way until `landed` or `give_back`."""
        slots = self._tiers.arena(tier).take(page_class, n)
        if slots is not None:
            self.book(tier, page_class, slots)
        return slots

    def book(self, tier: Tier, page_class: str, slots: Slots) -> None:
        """Slots that were chosen one by one (a compaction's holes)."""
        if len(slots):
            self._taken[id(slots)] = _Taken(ref(slots), tier, page_class)
            self._count(tier, page_class, len(slots))

    def landed(self, slots: Slots) -> None:
        """An entry has them from this locked step on."""
        if len(slots):
            taken = self._taken.pop(id(slots))
            self._count(taken.tier, taken.page_class, -len(slots))

    def give_back(self, slots: Slots) -> None:
        """Free what no entry got."""
        if len(slots):
            taken = self._taken[id(slots)]
            self.landed(slots)
            self._tiers.arena(taken.tier).give(taken.page_class, slots)

    def reserve_disk(self, n_bytes: int) -> bool:
        """Count the bytes of a file that is to be written against the quota. False: no room, evict first."""
        if self._tiers.disk is None or not self._tiers.disk.reserve(n_bytes):
            return False
        self.disk_bytes += n_bytes
        return True

    def unreserve_disk(self, n_bytes: int, written_bytes: int = 0) -> None:
        """The file is there with so many bytes, or there is none."""
        self.disk_bytes -= n_bytes
        if self._tiers.disk is not None:
            self._tiers.disk.unreserve(n_bytes - written_bytes)

    def of(self, tier: Tier) -> Iterator[tuple[str, Slots]]:
        """Page class and slots of everything on its way in a tier that somebody still has in hand."""
        for taken in self._taken.values():
            slots = taken.slots()
            if slots is not None and taken.tier is tier:
                yield taken.page_class, slots

    def _count(self, tier: Tier, page_class: str, n: int) -> None:
        if tier is Tier.GPU and page_class in BOUNDARY_KINDS:
            self.checkpoint_bytes += n * self._tiers.gpu.slot_bytes(page_class)
