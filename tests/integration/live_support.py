"""A real engine with its real exporters and agent beside a real control plane, and requests whose bytes are checked."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from steering_support import Deck, running_agent

from controlplane.auth import Role
from controlplane.host.agent import Agent, AgentOptions
from controlplane.host.export import build_export
from engine import CacheEngine, EngineConfig, Lease, preset
from engine.integrations.synthetic import SyntheticModel

SPEC = preset("small-deepseek-v4")
KIB = 1 << 10
AGENT = AgentOptions(poll_seconds=1.0, heartbeat_seconds=0.3, tick_seconds=0.1, first_backoff_seconds=0.05)


def prompt(number: int, n_tokens: int = 1500) -> npt.NDArray[np.int32]:
    """A prompt of its own for every number."""
    return np.random.default_rng(number).integers(0, 50_000, n_tokens).astype(np.int32)


@dataclass
class Live:
    """An engine and the model that computes for it."""

    engine: CacheEngine
    model: SyntheticModel
    wrong_bytes: int = 0
    verified_bytes: int = 0

    def serve(self, tokens: npt.NDArray[np.int32], deadline_s: float = 5.0) -> Lease:
        """One request: acquire, compare every loaded byte, compute the rest, commit, release."""
        with self.engine.acquire(tokens, deadline_s=deadline_s) as lease:
            if lease.usable_tokens:
                found = self.model.verify(lease.load(), tokens)
                self.wrong_bytes += found.wrong_bytes
                self.verified_bytes += found.bytes_checked
            start = lease.resume_tokens // SPEC.page_tokens * SPEC.page_tokens
            state = self.model.prefill(tokens, start, [b for b in lease.checkpoint_hints if b > start])
            self.engine.commit(tokens, state, lease=lease)
        return lease


def engine_config(folder: Path, **changes: object) -> EngineConfig:
    """Tiers so small that a few dozen prompts reach the disk."""
    values: dict[str, object] = {
        "engine_id": "live",
        "gpu_bytes": 1024 * KIB,
        "slab_bytes": 64 * KIB,
        "disk_bytes": 64 * KIB * KIB,
        "data_dir": folder,
    }
    return EngineConfig(**(values | changes))  # type: ignore[arg-type]


@contextlib.contextmanager
def live_engine(deck: Deck, folder: Path, **changes: object) -> Iterator[Live]:
    """Registered with the deck and speaking to it, until the block ends."""
    boot_id = uuid.uuid4().hex
    attributes = {
        "service.name": "kvdeck-engine",
        "kvdeck.engine.id": "live",
        "kvdeck.engine.boot_id": boot_id,
        "kvdeck.model": SPEC.name,
        "kvdeck.fingerprint": SPEC.fingerprint,
    }
    with ExitStack() as parts:
        export = build_export(deck.url, deck.tokens[Role.ENGINE], attributes)
        parts.callback(export.shutdown)
        engine = CacheEngine(
            SPEC,
            engine_config(folder, **changes),
            span_processors=export.span_processors,
            meter_provider=export.meter_provider,
            resource=export.resource,
            boot_id=boot_id,
        )
        parts.callback(engine.close)
        agent = Agent(engine, url=deck.url, token=deck.tokens[Role.ENGINE], data_dir=folder / "agent", options=AGENT)
        parts.enter_context(running_agent(agent))
        yield Live(engine, SyntheticModel(SPEC))
