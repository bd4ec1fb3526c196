"""What a prefix holds of one object kind: the same pages in one form, in up to three tiers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from engine.memory.arena import Pointer, Slots
from engine.memory.checksum import PageSums
from engine.memory.codec import NATIVE, CodecMeta
from engine.memory.diskfile import DiskFile
from engine.model.objects import ObjectKind


class Tier(StrEnum):
    GPU = "gpu"
    HOST = "host"
    DISK = "disk"


@dataclass(eq=False, slots=True)
class SlotCopy:
    """Pages in an arena. `sums` is None until the bytes were first on the host (or when only books are kept)."""

    page_class: str
    page_bytes: int
    slots: Slots
    meta: CodecMeta
    sums: PageSums | None
    bound: Bound | None = None  # of all of it, made once: slots keep their generations for as long as a copy has them

    @property
    def total_bytes(self) -> int:
        return len(self.slots) * self.page_bytes

    @property
    def coded(self) -> bool:
        return self.meta.codec != NATIVE

    def cut(self, first: int, last: int) -> SlotCopy:
        """The same bytes by page range: views, nothing is copied."""
        sums = None if self.sums is None else self.sums[first:last]
        return SlotCopy(self.page_class, self.page_bytes, self.slots[first:last], self.meta, sums)


@dataclass(eq=False, slots=True)
class DiskCopy:
    """Pages [first, first + n_pages) of a published file. The file counts the pages that are still referred to."""

    file: DiskFile
    page_class: str
    first: int
    n_pages: int
    meta: CodecMeta
    page_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.n_pages * self.page_bytes

    def cut(self, first: int, last: int) -> DiskCopy:
        return DiskCopy(self.file, self.page_class, self.first + first, last - first, self.meta, self.page_bytes)


@dataclass(eq=False, slots=True)
class Holding:
    """One object kind of one prefix (its own pages) or of one checkpoint (one block).

    `content_version` names the bytes' content and survives moves and coding; `built_from` is the content version of the
    KV they were built from: for indexer entries their own pages', for KV the page's before it (0 at the start), for
    boundary objects the page's they follow.
    """

    kind: ObjectKind
    n_pages: int
    content_version: int
    built_from: int
    owner_id: str = ""  # boundary objects: the checkpoint they were captured for, compared before they are served
    gpu: SlotCopy | None = None
    host: SlotCopy | None = None
    disk: DiskCopy | None = None

    @property
    def absent(self) -> bool:
        return self.gpu is None and self.host is None and self.disk is None

    @property
    def below_bytes(self) -> int:
        """Bytes a restore would read: of the copy in the tier that `below` names."""
        copy = self.host or self.disk
        return copy.total_bytes if copy is not None else 0

    @property
    def below(self) -> Tier | None:
        """The fastest tier below the GPU that has it."""
        if self.host is not None:
            return Tier.HOST
        return Tier.DISK if self.disk is not None else None

    def cut(self, first: int, last: int) -> Holding:
        return Holding(
            kind=self.kind,
            n_pages=last - first,
            content_version=self.content_version,
            built_from=self.built_from,
            owner_id=self.owner_id,
            gpu=self.gpu and self.gpu.cut(first, last),
            host=self.host and self.host.cut(first, last),
            disk=self.disk and self.disk.cut(first, last),
        )


class Bound(NamedTuple):
    """Pages of one object kind as they were at a pin: where, in which form, and their checksums if they had any."""

    pointer: Pointer
    meta: CodecMeta
    sums: PageSums | None

    def is_of(self, copy: SlotCopy) -> bool:
        """Made from the copy as it is: compaction gives it other slots, sealing gives it checksums."""
        return self.pointer.slots is copy.slots and self.meta is copy.meta and self.sums is copy.sums
