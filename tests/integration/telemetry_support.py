"""A workload that makes an engine say everything it can say, and receivers that keep what they are sent."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from controlplane.workload.driver import Driver, DriverConfig
from controlplane.workload.generator import Generator, GeneratorConfig
from engine import CacheEngine, CommandRequest, EngineConfig, Tier, preset
from engine.integrations.synthetic import SyntheticModel
from engine.memory.codec import LOSSY
from engine.schedule.quality import Quality

SPEC = preset("small-deepseek-v4")
KIB = 1 << 10


class ReadOut:
    """A model reduced to its last step: fixed random projections of what was loaded, as logits."""

    def judge(self, native: Any, coded: Any, tokens: Any) -> Quality:
        right, wrong = self._logits(native), self._logits(coded)
        p, q = (torch.log_softmax(x, dim=1) for x in (right, wrong))
        kl = float((p.exp() * (p - q)).sum(1).mean())
        return Quality(logit_error=float((right - wrong).abs().max()), kl=kl, positions=len(right))

    def _logits(self, state: Any) -> torch.Tensor:
        luck = torch.Generator().manual_seed(7)
        found = torch.zeros(4, 24, dtype=torch.float64)
        for key in sorted(state.entries):
            values = state.entries[key].double().reshape(-1)
            found += (values @ torch.randn(len(values), 96, generator=luck, dtype=torch.float64)).view(4, 24)
        return found


def replay(engine: CacheEngine, n_requests: int, seed: int = 3) -> int:
    """A generated workload with every loaded byte compared; returns how many were wrong."""
    model = SyntheticModel(engine.spec, codec=LOSSY, code_compressed=True)
    driver = Driver(engine, model, DriverConfig(restore_deadline_s=5.0, inflight=4))
    return driver.run(islice(Generator(GeneratorConfig(seed=seed)), n_requests)).wrong_bytes


def loud_config(folder: Path, **changes: object) -> EngineConfig:
    """Tiers so small that a few hundred requests move prefixes through all of them."""
    values: dict[str, object] = {
        "engine_id": "loud",
        "gpu_bytes": 2048 * KIB,
        "host_bytes": 1024 * KIB,
        "disk_bytes": 8 * KIB * KIB,
        "slab_bytes": 64 * KIB,
        "data_dir": folder,
        "dashboard_url": "http://127.0.0.1:8411",
        "persist_s": 1.0,
        "code_compressed": True,
    }
    return EngineConfig(**(values | changes))  # type: ignore[arg-type]


def say_everything(engine: CacheEngine, n_requests: int = 150) -> None:
    """Every kind of span, every attribute and every instrument: every command, a judge, a replay, and damage."""
    engine.set_quality_judge(ReadOut())
    model = SyntheticModel(SPEC)
    tokens = np.random.default_rng(1).integers(0, 1 << 20, 6 * SPEC.page_tokens, dtype=np.int32)
    for end in (4, 6):  # a parent and its child
        part = tokens[: end * SPEC.page_tokens]
        with engine.acquire(part, namespace="capped", deadline_s=5.0) as lease:
            engine.commit(part, model.prefill(part, 0, [len(part)]), lease=lease)
    engine.reconfigure({"admission_rule": "first_pages:2"}, revision=0)  # drops a checkpoint past the second page
    other = tokens[::-1].copy()
    engine.commit(other, model.prefill(other, 0, [len(other)]))
    engine.reconfigure({"namespace_caps": {"capped": {"max_prefixes": 500}}}, revision=1)
    mine = lease_prefix(engine, tokens, "capped")
    for kind, arguments in (
        ("pin", {"ttl_s": 60}), ("unpin", {}), ("compress", {"codec": "int8"}), ("offload", {"tier": "disk"}),
        ("scrub", {"max_bytes": 1 << 30}), ("warm", {}), ("compact", {"max_pages": 100}),
    ):  # fmt: skip
        ids = {} if kind in ("scrub", "compact") else {"prefix_ids": [mine]}
        done = run(engine, kind, **ids, **arguments)
        assert done.status == "succeeded", (kind, done)
    run(engine, "evict", prefix_ids=[mine])
    assert replay(engine, n_requests) == 0
    damage_one_file(engine)
    run(engine, "scrub", max_bytes=1 << 30)
    engine.acquire(tokens[: SPEC.page_tokens], refuse="load_failed").release()
    engine.flush_telemetry()


def restore_one(engine: CacheEngine, seed: int) -> None:
    """A new prefix goes down and comes back: one recovery more, whatever other traffic does."""
    model = SyntheticModel(SPEC)
    tokens = np.random.default_rng(seed).integers(0, 1 << 20, 2 * SPEC.page_tokens, dtype=np.int32)
    engine.commit(tokens, model.prefill(tokens, 0, [len(tokens)]))
    mine = lease_prefix(engine, tokens, "default")
    for kind, arguments in (("offload", {"tier": "disk"}), ("warm", {})):
        assert run(engine, kind, prefix_ids=[mine], **arguments).status == "succeeded", kind


def run(engine: CacheEngine, kind: str, **arguments: Any) -> Any:
    """One operator's command, from a click with a trace of its own."""
    click = f"00-{'c1' * 16}-{'d2' * 8}-01"
    request = CommandRequest(id=f"c-{kind}", kind=kind, arguments=arguments, actor="test", traceparent=click)
    return engine.execute(request)


def lease_prefix(engine: CacheEngine, tokens: Any, namespace: str) -> str:
    """The prefix that a request of these tokens is served from."""
    with engine.acquire(tokens, namespace=namespace, deadline_s=5.0) as lease:
        assert lease.usable_tokens
        return str(lease.explanation.prefix_id)


def damage_one_file(engine: CacheEngine) -> None:
    """Flips one byte at the end of one stored object that lives on disk alone."""
    on_disk = [r for r in engine.snapshot() if r["state.to"] == "PARTIAL_OFFLOAD" and r[f"bytes.{Tier.DISK}"]]
    assert on_disk
    folder = Path(str(engine.config.data_dir)) / "objects"
    file = max(folder.glob("*.safetensors"), key=lambda path: path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[-1] ^= 0xFF
    file.write_bytes(data)
