"""One small function for each way to hurt what an engine keeps of a real model.

Three depths: the books (records that no public call can bring into such a state), the bytes in memory, and files. Every
function makes exactly one damage and leaves the books balanced, so that `engine.check()` speaks of the damage alone.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ward import KV, TAIL, Ward

from engine.consistency.prefix import Checkpoint, PrefixRecord
from engine.memory import diskfile
from engine.memory.checksum import page_sums
from engine.memory.coding import AsIs
from engine.memory.diskfile import ObjectHeader
from engine.memory.holding import Holding, SlotCopy, Tier
from engine.model.objects import ObjectKind

# -- the books --------------------------------------------------------------------------------------------------------


def count_again(ward: Ward) -> None:
    """What the damage took is off the books by namespace: they count bytes, not whether bytes are right."""
    with ward.ledger.lock:
        for node in list(ward.ledger.index.walk()):
            ward.ledger.place(node)


def lose_block(ward: Ward, checkpoint: Checkpoint, kind: ObjectKind) -> None:
    """The object's bytes are gone from every tier; its checkpoint does not know."""
    ledger, block, key = ward.ledger, checkpoint.blocks[kind], checkpoint.checkpoint_id
    with ledger.lock:
        (node,) = [n for n in ledger.index.walk() if n.record.checkpoints.get(key) is checkpoint]
        ledger.checkpoints.block_leaves_gpu(node, key, block)
    ward.tiers.drop_all(block)
    count_again(ward)


def forget_block(ward: Ward, checkpoint: Checkpoint, kind: ObjectKind) -> None:
    """The checkpoint never had the object."""
    lose_block(ward, checkpoint, kind)
    del checkpoint.blocks[kind]


def exchange_checkpoints(
    ward: Ward, one: tuple[PrefixRecord, Checkpoint], other: tuple[PrefixRecord, Checkpoint]
) -> None:
    """Each stands where the other belongs, tail tokens included, so that only its own identity gives it away."""
    (here, a), (there, b) = one, other
    here.checkpoints[a.checkpoint_id], there.checkpoints[b.checkpoint_id] = b, a
    a.checkpoint_id, b.checkpoint_id = b.checkpoint_id, a.checkpoint_id
    a.tail_tokens, b.tail_tokens = b.tail_tokens, a.tail_tokens
    count_again(ward)


def exchange_blocks(ward: Ward, one: Checkpoint, other: Checkpoint, kind: ObjectKind) -> None:
    """One object of each stands in the other, checksums and all: only whose it is tells them apart."""
    one.blocks[kind], other.blocks[kind] = other.blocks[kind], one.blocks[kind]
    count_again(ward)


def lose_span(ward: Ward, record: PrefixRecord, kind: ObjectKind) -> None:
    ward.tiers.drop_all(record.spans[kind])
    record.refresh()
    count_again(ward)


def lose_last_page(ward: Ward, record: PrefixRecord, kind: ObjectKind) -> None:
    """One page fewer than the prefix has, in the books and in the arena."""
    holding = record.spans[kind]
    copy, n = holding.gpu, holding.n_pages
    assert copy is not None
    ward.tiers.free_slots(Tier.GPU, copy.cut(n - 1, n))
    holding.gpu, holding.n_pages = copy.cut(0, n - 1), n - 1
    count_again(ward)


def replace_meta(holding: Holding, **changes: Any) -> None:
    assert holding.gpu is not None
    holding.gpu.meta = replace(holding.gpu.meta, **changes)


# -- bytes in memory --------------------------------------------------------------------------------------------------


def read(ward: Ward, copy: SlotCopy | None) -> torch.Tensor:
    assert copy is not None
    return ward.tiers.gpu.read(copy.page_class, copy.slots).clone()


def write(ward: Ward, copy: SlotCopy | None, data: torch.Tensor) -> None:
    assert copy is not None
    ward.tiers.gpu.write(copy.page_class, copy.slots, data)


def overwrite(ward: Ward, target: Holding, source: Holding) -> None:
    """The target's slots hold the source's bytes: what a slot that is handed out twice looks like."""
    n = min(target.n_pages, source.n_pages)
    data = read(ward, target.gpu)
    before = data.clone()
    data[:n] = read(ward, source.gpu)[:n]
    assert not torch.equal(before, data), "no damage: both hold the same bytes"
    write(ward, target.gpu, data)


def permute(ward: Ward, holding: Holding) -> None:
    """Pages in another order; each is whole."""
    data = read(ward, holding.gpu)
    assert len(data) > 1
    assert not torch.equal(data[0], data[-1])
    write(ward, holding.gpu, data.flip(0))


def zero_section(ward: Ward, checkpoint: Checkpoint, section: str, *, last_row_only: bool = False) -> None:
    """One section (buffer, overlap) of a tail is zeros, or its last row is: as if it had been cut short."""
    copy = checkpoint.blocks[TAIL].gpu
    data = read(ward, copy)
    before = data.clone()
    for segment in ward.engine._ledger.layouts.tail.segments:
        if segment.key.section == section:
            rows = segment.rows if section == "overlap" else checkpoint.boundary % segment.ratio
            first = max(0, rows - 1) if last_row_only else 0
            start = segment.offset_bytes
            data[:, start + first * segment.row_bytes : start + rows * segment.row_bytes] = 0
    assert not torch.equal(before, data), "no damage: the section is empty here"
    write(ward, copy, data)


def zero_scales(ward: Ward, record: PrefixRecord, codec: str) -> None:
    """Codes without the scales that give them their size."""
    copy = record.spans[KV].gpu
    data = read(ward, copy)
    before = data.clone()
    for piece in ward.tiers.codecs[codec]._pieces:
        if not isinstance(piece.coding, AsIs):
            start = piece.offset_bytes + piece.coding._code_bytes(piece.segment)
            data[:, start : piece.offset_bytes + piece.total_bytes] = 0
    assert not torch.equal(before, data)
    write(ward, copy, data)


# -- files ------------------------------------------------------------------------------------------------------------


def cut_file(path: Path) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])


def swap_files(one: Path, other: Path) -> None:
    first, second = one.read_bytes(), other.read_bytes()
    assert first != second
    one.write_bytes(second)
    other.write_bytes(first)


def forge_file(path: Path, *, pages: torch.Tensor | None = None, **changes: Any) -> ObjectHeader:
    """The file written anew with another header or other pages, each of its checksums right."""
    stored = diskfile.decode(np.frombuffer(path.read_bytes(), dtype=np.uint8).copy(), path.name)
    header = replace(stored.header, **changes)
    body = stored.pages if pages is None else pages
    path.write_bytes(b"".join(bytes(x) for x in diskfile.encode(header, body, page_sums(body), stored.tokens)))
    return header


def pages_of(path: Path) -> torch.Tensor:
    return diskfile.decode(np.frombuffer(path.read_bytes(), dtype=np.uint8).copy(), path.name).pages
