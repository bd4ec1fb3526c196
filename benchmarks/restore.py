"""Restores from disk and host to the GPU tier, beside a plain read and a plain copy of the same bytes.

    python -m benchmarks.restore [--pages 1 16 64] [--total-mb 300] [--rounds 5] [--lmcache-python PATH]

A restore finds the prefix, reads or copies its pages to their slots, compares every checksum, maps and publishes them.
The plain read fills one buffer from the same files, the plain copy one buffer from another (the faster of numpy's and
torch's). All memory has been touched before, on both sides. Files are read from the page cache, and once dropped from
it as far as the kernel obeys. Who goes first changes every round; a ratio is of one round, and the table shows medians.
Every restored byte is compared with the truth outside the measured time.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.harness import Contender, machine, print_table, run_once
from engine import CacheEngine, EngineConfig, Tier, preset
from engine.commands.ticket import CommandRequest
from engine.integrations.synthetic import SyntheticModel

SPEC = "gpt-oss-120b"
DEADLINE_S = 120.0
HOW_TO_LMCACHE = """\
LMCache was not run. To compare with its fs adapter, make it a virtual environment outside the repository
(pip install lmcache==0.5.6; no GPU needed) and pass
    --lmcache-python THAT_ENVIRONMENT/bin/python"""
HEADS_BYTES = 1 << 20
"""More than the headers, tokens and checksums of one prefix's files."""


class Bench:
    """Some prefixes of one engine, all on the GPU tier and below, and the plain way to move the same bytes."""

    def __init__(self, engine: CacheEngine, pages: int, total_bytes: int) -> None:
        self.engine = engine
        self.model = SyntheticModel(engine.spec)
        tokens = pages * engine.spec.page_tokens
        self.prompts = [np.random.default_rng(0).integers(0, 9999, tokens).astype(np.int32)]
        self._commit(self.prompts[0])
        each = engine.stats()["tiers"]["gpu"]["live_bytes"]
        for seed in range(1, max(2, round(total_bytes / each))):
            self.prompts.append(np.random.default_rng(seed).integers(0, 9999, tokens).astype(np.int32))
            self._commit(self.prompts[-1])
        self.total_bytes = engine.stats()["tiers"]["gpu"]["live_bytes"]
        room = self.total_bytes + len(self.prompts) * HEADS_BYTES
        self._source, self._target = np.ones(room, dtype=np.uint8), np.zeros(room, dtype=np.uint8)

    def _commit(self, prompt: npt.NDArray[np.int32]) -> None:
        self.engine.commit(prompt, self.model.prefill(prompt, 0, [len(prompt)]))

    def offload(self, tier: Tier) -> None:
        ids = [row["prefix.id"] for row in self.engine.snapshot()]
        arguments = {"prefix_ids": ids, "tier": str(tier)}
        done = self.engine.execute(CommandRequest(id="bench", kind="offload", arguments=arguments))
        if done.status != "succeeded":
            raise SystemExit(f"offloading to {tier} ended as {done.status}: {done.outcome}")

    def restore(self, tier: Tier) -> float:
        """Bytes a second of bringing all prefixes back, one request each."""
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
        return (self._moved(tier) - before) / seconds

    def _moved(self, tier: Tier) -> int:
        return self.engine._tiers.io[tier].read.moved_bytes  # the figure that `stats` and the metrics show

    def plain_read(self) -> float:
        """Bytes a second of reading the same files whole, one after the other, into one buffer."""
        files, into, total = self._files(), self._target.data, 0
        start = time.perf_counter()
        for path in files:
            with open(path, "rb", buffering=0) as handle:
                while n := handle.readinto(into[total:]):
                    total += n
        return total / (time.perf_counter() - start)

    def plain_copy(self) -> float:
        """Bytes a second of copying as many bytes, prefix by prefix."""
        each = self.total_bytes // len(self.prompts)
        ways: list[Callable[[slice], object]] = [
            lambda part: np.copyto(self._target[part], self._source[part]),
            lambda part: torch.from_numpy(self._target[part]).copy_(torch.from_numpy(self._source[part])),
        ]
        best = 0.0
        for way in ways:
            start = time.perf_counter()
            for first in range(0, each * len(self.prompts), each):
                way(slice(first, first + each))
            best = max(best, each * len(self.prompts) / (time.perf_counter() - start))
        return best

    def _files(self) -> list[Path]:
        folder = self.engine.config.data_dir
        assert folder is not None
        return sorted((folder / "objects").glob("*.safetensors"))

    def prepare_files(self, *, dropped: bool) -> None:
        """Have the page cache hold all of them, or none as far as the kernel obeys."""
        for path in self._files():
            with open(path, "rb", buffering=0) as handle:
                if dropped:
                    os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                else:
                    handle.readall()


class Way(NamedTuple):
    """One line of the table for each size of prefix."""

    name: str
    tier: Tier
    dropped: bool = False


# The host first: once a prefix has its files, it leaves the GPU without a copy on the host.
WAYS = (
    Way("host to GPU tier / plain copy", Tier.HOST),
    Way("disk to GPU tier / plain read, cached", Tier.DISK),
    Way("disk to GPU tier / plain read, dropped", Tier.DISK, dropped=True),
)


def one_round(bench: Bench, way: Way, *, plain_first: bool) -> dict[str, float]:
    """Bytes a second: restored from the way's tier, and moved the plain way."""
    bench.offload(way.tier)
    found: dict[str, float] = {}
    for what in ("plain", "restore") if plain_first else ("restore", "plain"):
        if way.tier is Tier.DISK:
            bench.prepare_files(dropped=way.dropped)
        if what == "restore":
            found[what] = bench.restore(way.tier)
        else:
            found[what] = bench.plain_read() if way.tier is Tier.DISK else bench.plain_copy()
    return found


def measure(pages: int, a: argparse.Namespace) -> list[list[Any]]:
    """The table's rows for prefixes of so many pages."""
    size, rows = int(a.total_mb * 3e6) + (1 << 30), []
    with tempfile.TemporaryDirectory(dir=a.folder) as folder:
        config = EngineConfig(
            gpu_bytes=size, host_bytes=size, disk_bytes=size, data_dir=Path(folder), restore_timeout_s=DEADLINE_S,
            prefill_tokens_per_s=1.0,
        )  # fmt: skip
        with CacheEngine(preset(SPEC), config) as engine:
            bench = Bench(engine, pages, int(a.total_mb * 1e6))
            for way in WAYS:
                rounds = []
                for number in range(a.rounds + 1):
                    print(f"{pages} pages, {way.name}: round {number}/{a.rounds}", file=sys.stderr, flush=True)
                    rounds.append(one_round(bench, way, plain_first=number % 2 == 1))
                rows.append(_row(way.name, pages, rounds[1:]))  # the first warms up
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pages", type=int, nargs="+", default=[1, 16, 64], help="of a prefix; 2.3 MB each")
    parser.add_argument("--total-mb", type=float, default=300.0, help="of all prefixes of one size")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where the files go: a folder on the device to measure")
    parser.add_argument("--lmcache-python", type=Path, help="python of an environment with LMCache")
    a = parser.parse_args()
    rows = [row for pages in a.pages for row in measure(pages, a)]
    rows += lmcache(a)
    columns: list[tuple[str, Callable[[Any], str]]] = [
        ("way", str), ("pages", str), ("restore MB/s", _count), ("plain MB/s", _count), ("ratio", "{:.0%}".format),
        ("lowest", "{:.0%}".format), ("highest", "{:.0%}".format),
    ]  # fmt: skip
    print_table(f"restore with checksums, {SPEC}, {a.total_mb:g} MB a size; {machine()}", columns, rows)
    if a.lmcache_python is None:
        print(f"\n{HOW_TO_LMCACHE}")


def lmcache(a: argparse.Namespace) -> list[list[Any]]:
    """LMCache's rows, measured in its own process and environment; none without one."""
    if a.lmcache_python is None:
        return []
    driver = str(Path(__file__).with_name("peer_lmcache.py"))
    # absolute(), not resolve(): an environment's python is a link, and must be called by its own path.
    command = (str(a.lmcache_python.absolute()), driver, "--total-mb", str(a.total_mb), "--rounds", str(a.rounds))
    folder = () if a.folder is None else ("--folder", a.folder)
    print("LMCache", file=sys.stderr, flush=True)
    told = run_once(Contender(name="LMCache", command=(*command, *folder)))
    return [_row(f"LMCache fs / plain read, {state}", None, rounds) for state, rounds in told.items()]


def _row(name: str, pages: int | None, rounds: list[dict[str, float]]) -> list[Any]:
    restored, plain = ([r[key] / 1e6 for r in rounds] for key in ("restore", "plain"))
    ratios = [a / b for a, b in zip(restored, plain, strict=True)]
    return [name, pages, median(restored), median(plain), median(ratios), min(ratios), max(ratios)]


def _count(value: float) -> str:
    return f"{value:,.0f}"


if __name__ == "__main__":
    main()
