"""A real model behind an engine; what it serves is bit by bit what a run without reuse gives, and refusals are told."""

from __future__ import annotations

import hashlib
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
