"""A real engine with a model whose every byte is known: what the engine's tests share."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from engine import CacheEngine, CommandOutcome, CommandRequest, EngineConfig, preset, preset_names
from engine.clock import ManualClock
from engine.consistency.prefix import Checkpoint, PrefixRecord
from engine.integrations.synthetic import SyntheticModel
from engine.memory.arena import Arena
from engine.memory.codec import LOSSY
from engine.memory.faults import Faults
from engine.schedule.publish import CommitResult

POISON = 0xAA
SMALL = tuple(name for name in preset_names() if name.startswith("small"))
SLAB_BYTES = 32 << 10
GENEROUS_S = 3600.0
"""A deadline no plan misses: the tests are about what is served, not about speed."""


class SpanLog(SpanProcessor):
    """Keeps every span, in order."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)

    def named(self, name: str) -> list[dict[str, Any]]:
        return [dict(span.attributes or {}) for span in self.spans if span.name == name]


@dataclass(frozen=True)
class Served:
    """What one request got, after every byte of it was compared with the truth."""

    usable: int
    lcp: int
    replay: int
    reason: str
    tier: str
    state: str
    wrong_bytes: int
    first_wrong: str
    commit: CommitResult | None = None


class Rig:
    """One engine, its model and its clock."""

    def __init__(
        self,
        name: str = "small-deepseek-v4",
        *,
        clock: ManualClock | None = None,
        spec: Any = None,
        faults: Faults | None = None,
        **config: Any,
    ) -> None:
        self.spec = spec or preset(name)
        self.clock = clock or ManualClock()
        self.log = SpanLog()
        settings = {"gpu_bytes": 4 << 20, "slab_bytes": SLAB_BYTES, **config}
        self.engine = CacheEngine(
            self.spec, EngineConfig(**settings), span_processors=[self.log], clock=self.clock, faults=faults
        )  # fmt: skip
        self.model = SyntheticModel(self.spec, codec=config.get("codec", "none"))
        wide = bool(config.get("code_compressed"))
        self.lossy = SyntheticModel(self.spec, codec=LOSSY, code_compressed=wide)  # whatever codec a command names
        self.page = self.spec.page_tokens

    # -- requests -----------------------------------------------------------------------------------------------------

    def look(self, tokens: np.ndarray, *, namespace: str = "default", deadline_s: float = GENEROUS_S) -> Served:
        """Acquire, load, compare, release."""
        with self.engine.acquire(tokens, namespace=namespace, deadline_s=deadline_s) as lease:
            return self._compare(lease, tokens)

    def commit(
        self,
        tokens: np.ndarray,
        checkpoints: Iterable[int] | None = None,
        *,
        start: int = 0,
        namespace: str = "default",
    ) -> CommitResult:
        """Commit what the model computes for `tokens` from `start`; without `checkpoints`, one at the end."""
        at = [len(tokens)] if checkpoints is None else list(checkpoints)
        return self.engine.commit(tokens, self.model.prefill(tokens, start, at), namespace=namespace)

    def serve(
        self,
        tokens: np.ndarray,
        *,
        namespace: str = "default",
        deadline_s: float = GENEROUS_S,
        extra: Iterable[int] = (),
    ) -> Served:
        """A whole request: acquire, load, compare, compute the rest, commit at the hints, release."""
        with self.engine.acquire(tokens, namespace=namespace, deadline_s=deadline_s) as lease:
            found = self._compare(lease, tokens)
            start = lease.resume_tokens // self.page * self.page
            at = sorted({b for b in (*lease.checkpoint_hints, *extra) if start <= b <= len(tokens) and b})
            done = self.engine.commit(tokens, self.model.prefill(tokens, start, at), lease=lease)
            return Served(**{**found.__dict__, "commit": done})

    def _compare(self, lease: Any, tokens: np.ndarray) -> Served:
        wrong, first = 0, ""
        if lease.usable_tokens:
            found = self.lossy.verify(lease.load(), tokens[: lease.usable_tokens])
            wrong, first = found.wrong_bytes, found.first_wrong
        why = lease.explanation
        return Served(
            lease.usable_tokens, lease.lcp_tokens, lease.replay_tokens, why.reason, why.tier, why.state, wrong, first
        )

    # -- steering -----------------------------------------------------------------------------------------------------

    def command(self, kind: str, *, actor: str = "test", **arguments: Any) -> CommandOutcome:
        return self.engine.execute(CommandRequest(id=f"c-{kind}", kind=kind, arguments=arguments, actor=actor))

    @property
    def ids(self) -> list[str]:
        return sorted(row["prefix.id"] for row in self.engine.snapshot())

    @property
    def states(self) -> dict[str, int]:
        return self.engine.stats()["prefixes"]

    @property
    def ledger(self) -> Any:
        """The books themselves: for tests that damage or freeze what no public call can."""
        return self.engine._ledger

    def node(self, prefix_id: str) -> Any:
        return self.ledger.nodes[prefix_id]

    def files(self) -> list[Path]:
        return sorted((Path(self.engine.config.data_dir) / "objects").glob("*.safetensors"))

    def assert_clean(self) -> None:
        assert self.engine.check() == []


def prompt(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 31, length, dtype=np.int32)


def fork(tokens: np.ndarray, at: int, length: int, seed: int) -> np.ndarray:
    """The first `at` tokens of `tokens`, then others."""
    return np.concatenate([tokens[:at], prompt(length - at, seed)])


DEPTH = int(os.environ.get("KVDECK_DEPTH", "1"))
"""Random sequences of operations: so many times as many in `make stress`."""


def do_not_wait_for_the_disk(patch: Any) -> None:
    """No file of a test need outlive the machine; that it was synced, and in which order, faults see at the device."""
    patch.setattr("os.fsync", lambda _: None)


def poison_freed_slots(patch: Any) -> None:
    """Overwrite every slot when it is freed, so that reading what is no longer owned shows as wrong bytes."""
    give = Arena.give

    def give_poisoned(arena: Arena, page_class: str, slots: Any) -> None:
        if arena._buffer is not None and len(slots):
            shape = (len(slots), arena.slot_bytes(page_class))
            Arena.write(arena, page_class, slots, _filler(shape))  # not a write that a fault can strike
        give(arena, page_class, slots)

    patch.setattr(Arena, "give", give_poisoned)


def _filler(shape: tuple[int, int]) -> Any:
    import torch

    return torch.full(shape, POISON, dtype=torch.uint8)


def checkpoint_at(record: PrefixRecord, boundary: int) -> Checkpoint:
    """The one checkpoint a prefix holds at `boundary` tokens."""
    (found,) = [c for c in record.checkpoints.values() if c.boundary == boundary]
    return found
