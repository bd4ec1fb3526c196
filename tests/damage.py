"""A real model behind an engine, and one small function for each way to hurt what the engine keeps of it.

Three depths: the books (records that no public call can bring into such a state), the bytes in memory, and files. Every
function makes exactly one damage and leaves the books balanced, so that `engine.check()` speaks of the damage alone.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from engine_support import GENEROUS_S, SpanLog
from huggingface_support import call, page_cuts, some_tokens, tiny_model, uninterrupted

from engine import CacheEngine, CommandRequest, EngineConfig
from engine.consistency.prefix import Checkpoint, PrefixRecord
from engine.integrations.huggingface import PrefixCache, spec_of
from engine.integrations.huggingface.prefill import Prefill
from engine.memory import diskfile
from engine.memory.checksum import page_sums
from engine.memory.coding import AsIs
from engine.memory.diskfile import ObjectHeader
from engine.memory.holding import Holding, SlotCopy, Tier
from engine.model.objects import ObjectKind

PAGE = 32
KV, INDEXER = ObjectKind.COMPRESSED_KV, ObjectKind.INDEXER_STATE
TAIL, WINDOW, RECURRENT = ObjectKind.UNCOMPRESSED_TAIL, ObjectKind.SWA_WINDOW, ObjectKind.RECURRENT_STATE
CONTINUATION = some_tokens(3, seed=99)
"""What follows every prompt, so that more than one step of decoding is compared."""
ANSWERS: dict[tuple[Any, ...], list[torch.Tensor]] = {}


def weights_of(model: Any) -> bytes:
    """A digest of every name and byte of a model's parameters and buffers."""
    digest = hashlib.blake2b(type(model).__name__.encode())
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        digest.update(name.encode())
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.digest()


class Ward:
    """One tiny model, one engine, and everything the engine says about what it refuses."""

    def __init__(
        self, name: str = "deepseek_v4", *, model: Any = None, page_tokens: int = PAGE, chunk_tokens: int | None = None,
        **config: Any,
    ) -> None:  # fmt: skip
        self.model = model if model is not None else tiny_model(name)
        self.log = SpanLog()
        # A prefill so slow that every restore pays: what is refused here is refused for its damage.
        settings = {"gpu_bytes": 8 << 20, "prefill_tokens_per_s": 100.0, **config}
        self.spec = spec_of(self.model, page_tokens=page_tokens)
        self.engine = CacheEngine(self.spec, EngineConfig(**settings), span_processors=[self.log])
        try:
            self.cache = PrefixCache(self.model, self.engine, chunk_tokens=chunk_tokens)
        except BaseException:
            self.engine.close()
            raise
        self.page = page_tokens
        self.chunk = chunk_tokens or page_tokens

    # -- requests -----------------------------------------------------------------------------------------------------

    def prefill(self, tokens: np.ndarray, **arguments: Any) -> Prefill:
        return self.cache.prefill(tokens, **{"deadline_s": GENEROUS_S, **arguments})

    def serve(self, tokens: np.ndarray, *cuts: int, **arguments: Any) -> Prefill:
        """Prefill and decode, every step's logits bit by bit those of a run without any reuse.

        `cuts` are positions where an earlier run of the same tokens was cut, beside the pages.
        """
        with self.prefill(tokens, **arguments) as prefill:
            mine = self._decode(tokens, prefill.past_key_values, prefill.position)
        for step, (one, other) in enumerate(zip(mine, self.without_reuse(tokens, *cuts), strict=True)):
            assert torch.equal(one, other), (
                f"step {step} differs by {float((one - other).abs().max())} after a hit of {prefill.usable_tokens}"
            )
        return prefill

    def without_reuse(self, tokens: np.ndarray, *cuts: int) -> list[torch.Tensor]:
        """Every step's logits; made once in a process for the same weights and calls."""
        key = (weights_of(self.model), self.chunk, cuts, tokens.tobytes())
        if key not in ANSWERS:
            ANSWERS[key] = self._uninterrupted(tokens, *cuts)
        return ANSWERS[key]

    def _uninterrupted(self, tokens: np.ndarray, *cuts: int) -> list[torch.Tensor]:
        cache, _ = uninterrupted(self.model, tokens[:-1], page_cuts(len(tokens) - 1, self.chunk, *cuts))
        return self._decode(tokens, cache, len(tokens) - 1)

    def _decode(self, tokens: np.ndarray, cache: Any, start: int) -> list[torch.Tensor]:
        assert start == len(tokens) - 1
        rest = np.concatenate([tokens[start:], CONTINUATION])
        return [call(self.model, rest[i : i + 1], cache, start + i) for i in range(len(rest))]

    # -- books --------------------------------------------------------------------------------------------------------

    @property
    def ledger(self) -> Any:
        return self.engine._ledger

    @property
    def tiers(self) -> Any:
        return self.engine._tiers

    def records(self) -> list[PrefixRecord]:
        return [node.record for node in self.ledger.nodes.values()]

    def path(self, tokens: np.ndarray, namespace: str = "default") -> list[PrefixRecord]:
        match = self.ledger.index.match(namespace, np.ascontiguousarray(tokens, dtype=np.int32).tobytes())
        return [node.record for node in match.nodes]

    def checkpoint(self, tokens: np.ndarray, boundary: int) -> Checkpoint:
        """The checkpoint at `boundary` behind these tokens."""
        return next(
            c
            for record in self.path(tokens[:boundary])
            for c in record.checkpoints.values()
            if c.boundary == boundary and tokens[:boundary].tobytes().endswith(c.tail_tokens)
        )

    def command(self, kind: str, **arguments: Any) -> Any:
        done = self.engine.execute(CommandRequest(id=kind, kind=kind, arguments=arguments, actor="test"))
        assert done.status == "succeeded", done
        return done

    def ids(self) -> list[str]:
        return sorted(self.ledger.nodes)

    def to_disk(self) -> None:
        """Everything to disk, and nothing above it."""
        self.command("offload", prefix_ids=self.ids(), tier="disk")

    def files(self, kind: str = "") -> list[Path]:
        folder = Path(self.engine.config.data_dir) / "objects"
        return sorted(p for p in folder.glob("*.safetensors") if f"-{kind}" in p.name)

    # -- verdicts -----------------------------------------------------------------------------------------------------

    def failed(self) -> set[tuple[str, str]]:
        """(validation, reason) of every validation span that says fail."""
        self.engine.flush_telemetry()
        return {
            (str(span["kvcache.validation"]), str(span["kvcache.reason"]))
            for span in self.log.named("kvcache.validate")
            if span["kvcache.verdict"] == "fail"
        }

    def quarantined(self) -> list[tuple[str, str]]:
        """(object kind, reason) of what was found damaged, oldest first."""
        return [(d["kind"], d["reason"]) for d in self.engine.stats()["quarantined"]]

    def transitions_to(self, state: str) -> list[dict[str, Any]]:
        self.engine.flush_telemetry()
        return [t for t in self.log.named("kvcache.transition") if t["kvcache.state.to"] == state]

    def assert_clean(self) -> None:
        assert self.engine.check() == []
        assert self.engine.stats()["leases"] == 0


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


def header_of(path: Path) -> dict[str, Any]:
    return asdict(diskfile.decode(np.frombuffer(path.read_bytes(), dtype=np.uint8).copy(), path.name).header)
