"""Restores from disk and host to the GPU tier, beside a plain read and a plain copy of the same bytes.

    python -m benchmarks.restore [--prefixes 8] [--pages 16] [--rounds 5]

A restore reads whole files, compares every checksum, maps pages and publishes them; the plain read only fills the same
memory from the same files. Both find the files in the same state: dropped from the page cache as far as the kernel
obeys (`--warm` leaves them there). Every restored byte is compared with the truth outside the measured time.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.harness import machine, print_table
from engine import CacheEngine, EngineConfig, Tier, preset
from engine.commands import CommandRequest
from engine.integrations.synthetic import SyntheticModel

SPEC = "gpt-oss-120b"
DEADLINE_S = 120.0


class Bench:
    """Some prefixes of one engine, all on the GPU tier and below, and the plain way to move the same bytes."""

    def __init__(self, engine: CacheEngine, a: argparse.Namespace) -> None:
        self.engine = engine
        self.warm = a.warm
        self.model = SyntheticModel(engine.spec)
        self._plain: tuple[torch.Tensor, torch.Tensor] | None = None
        tokens = a.pages * engine.spec.page_tokens
        self.prompts = [np.random.default_rng(i).integers(0, 9999, tokens).astype(np.int32) for i in range(a.prefixes)]
        for prompt in self.prompts:
            engine.commit(prompt, self.model.prefill(prompt, 0, [tokens]))

    def offload(self, tier: Tier) -> None:
        ids = [row["prefix.id"] for row in self.engine.snapshot()]
        arguments = {"prefix_ids": ids, "tier": str(tier)}
        done = self.engine.execute(CommandRequest(id="bench", kind="offload", arguments=arguments))
        if done.status != "succeeded":
            raise SystemExit(f"offloading to {tier} ended as {done.status}: {done.outcome}")

    def restore(self, tier: Tier) -> tuple[float, int]:
        """Seconds and bytes of bringing all prefixes back, one request each."""
        self.drop_from_page_cache()
        before = self._moved(tier)
        seconds = 0.0
        for prompt in self.prompts:
            start = time.perf_counter()
            lease = self.engine.acquire(prompt, deadline_s=DEADLINE_S)
            seconds += time.perf_counter() - start
            with lease:
                if (lease.usable_tokens, lease.explanation.tier) != (len(prompt), str(tier)):
                    raise SystemExit(f"a hit from {tier} was wanted: {lease.explanation}")
                found = self.model.verify(lease.load(), prompt)
                if found.wrong_bytes:
                    raise SystemExit(f"wrong bytes: {found.first_wrong}")
        return seconds, self._moved(tier) - before

    def _moved(self, tier: Tier) -> int:
        return self.engine._tiers.io[tier].read.moved_bytes  # the figure that `stats` and the metrics show

    def plain_read(self) -> tuple[float, int]:
        """Read the same files whole, into memory as large as the largest, and copy each to where pages would go."""
        files = self._files()
        target = torch.empty(max(f.stat().st_size for f in files), dtype=torch.uint8)
        self.drop_from_page_cache()
        total, start = 0, time.perf_counter()
        for path in files:
            with open(path, "rb", buffering=0) as handle:
                raw = np.empty(os.fstat(handle.fileno()).st_size, dtype=np.uint8)
                done = 0
                while done < len(raw):
                    done += handle.readinto(raw.data[done:])
            target[: len(raw)].copy_(torch.from_numpy(raw))
            total += len(raw)
        return time.perf_counter() - start, total

    def plain_copy(self, n_bytes: int) -> tuple[float, int]:
        """Copy as many bytes from one place to another; both have been touched before."""
        if self._plain is None:
            self._plain = torch.ones(n_bytes, dtype=torch.uint8), torch.zeros(n_bytes, dtype=torch.uint8)
        source, target = self._plain
        start = time.perf_counter()
        target.copy_(source)
        return time.perf_counter() - start, source.numel()

    def _files(self) -> list[Path]:
        folder = self.engine.config.data_dir
        assert folder is not None
        return sorted((folder / "objects").glob("*.safetensors"))

    def drop_from_page_cache(self) -> None:
        if self.warm:
            return
        for path in self._files():
            with open(path, "rb") as handle:
                os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def one_round(bench: Bench, tier: Tier) -> dict[str, float]:
    """Bytes a second: restored from `tier`, and moved the plain way."""
    bench.offload(tier)
    seconds, moved = bench.restore(tier)
    plain_s, plain = bench.plain_read() if tier is Tier.DISK else bench.plain_copy(moved)
    return {"restore": moved / seconds, "plain": plain / plain_s}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prefixes", type=int, default=8)
    parser.add_argument("--pages", type=int, default=16, help="pages a prefix; 2.3 MB each")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm", action="store_true", help="leave the files in the page cache")
    a = parser.parse_args()
    spec = preset(SPEC)
    size = 3 << 30
    with tempfile.TemporaryDirectory() as folder:
        config = EngineConfig(
            gpu_bytes=size, host_bytes=size, disk_bytes=size, data_dir=Path(folder), restore_timeout_s=DEADLINE_S,
            prefill_tokens_per_s=1.0,
        )  # fmt: skip
        with CacheEngine(spec, config) as engine:
            bench = Bench(engine, a)
            rows = []
            # The host first: once a prefix has its files, it leaves the GPU without a copy on the host.
            for tier, plain in ((Tier.HOST, "plain copy"), (Tier.DISK, "plain read")):
                rounds = []
                for number in range(a.rounds + 1):
                    print(f"{tier}: round {number}/{a.rounds}", file=sys.stderr, flush=True)
                    rounds.append(one_round(bench, tier))
                rows.append(_row(f"{tier} to GPU tier / {plain}", rounds[1:]))  # the first warms up
    columns = [("way", str), ("restore MB/s", _count), ("plain MB/s", _count), ("ratio", lambda v: f"{v:.0%}")]
    state = "in the page cache" if a.warm else "dropped from the page cache"
    print_table(f"restore with checksums, {SPEC}, files {state}; {machine()}", columns, rows)


def _row(name: str, rounds: list[dict[str, float]]) -> list[Any]:
    restored, plain = ([r[key] / 1e6 for r in rounds] for key in ("restore", "plain"))
    return [name, median(restored), median(plain), median(a / b for a, b in zip(restored, plain, strict=True))]


def _count(value: float) -> str:
    return f"{value:,.0f}"


if __name__ == "__main__":
    main()
