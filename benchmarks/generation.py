"""Time to the first token with a long shared prefix: computed, and reused from each tier.

    python -m benchmarks.generation [--family gemma3] [--size laptop] [--device cpu] [--prefix 4096] [--rounds 5]

Requests share `--prefix` tokens and end in 32 of their own. Every round asks transformers alone (the whole prompt in
one call), kvdeck without reuse (the prompt in chunks), and once for each way the shared prefix can lie: on the GPU
tier, there coded losslessly, on the host, on disk, and on disk after a restart of the engine. Ratios are within a
round. The last column is the time spent in kvdeck (acquire, load, capture, commit) over the prefill that the hit saved.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.harness import machine, print_table
from benchmarks.models import FAMILIES, SIZES, random_model
from engine import CacheEngine, EngineConfig
from engine.commands.ticket import CommandRequest
from engine.integrations.huggingface import PrefixCache, spec_of
from engine.integrations.huggingface.generation import CallbackStreamer

OWN_TOKENS = 32
ALONE, NO_REUSE = "transformers alone", "kvdeck, no reuse"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Bench:
    """One model, one data folder; engines come and go over it."""

    def __init__(self, a: argparse.Namespace, folder: Path) -> None:
        self.a, self.folder = a, folder
        self.model = random_model(a.family, a.size, a.device, DTYPES[a.dtype])
        self.spec = spec_of(self.model)
        self.shared = np.random.default_rng(1).integers(3, 8000, a.prefix).astype(np.int32)
        self._suffix = 100

    @contextmanager
    def open(self) -> Iterator[tuple[Any, Any]]:
        config = EngineConfig(
            device=self.a.device, gpu_bytes=self.a.gpu_mib << 20, host_bytes=self.a.gpu_mib << 20,
            disk_bytes=2 * self.a.gpu_mib << 20, data_dir=self.folder, restore_timeout_s=30.0,
        )  # fmt: skip
        with CacheEngine(self.spec, config) as engine:
            yield engine, PrefixCache(self.model, engine, chunk_tokens=self.a.chunk)

    def prompt(self) -> np.ndarray:
        """The shared prefix with an end that nobody has seen yet."""
        self._suffix += 1
        own = np.random.default_rng(self._suffix).integers(3, 8000, OWN_TOKENS).astype(np.int32)
        return np.concatenate([self.shared, own])

    def ask_alone(self) -> dict[str, Any]:
        """The same request without kvdeck: one call for the whole prompt."""
        first: list[float] = []
        ids = torch.from_numpy(self.prompt().astype(np.int64)).unsqueeze(0).to(self.model.device)
        streamer = CallbackStreamer(lambda _: first.append(time.perf_counter()))
        start = time.perf_counter()
        self.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=1, do_sample=False, streamer=streamer
        )
        return {"ttft_s": first[0] - start, "computed": ids.shape[1], "kvdeck_s": 0.0, "load_s": 0.0, "store_s": 0.0}

    def ask(self, cache: Any) -> dict[str, Any]:
        """One request: seconds to its first token, and what kvdeck did for it."""
        first: list[float] = []
        prompt = self.prompt()
        start = time.perf_counter()
        done = cache.generate(
            prompt, max_new_tokens=1, do_sample=False, streamer=lambda _: first.append(time.perf_counter()),
            deadline_s=30.0,
        )  # fmt: skip
        timings = done.timings
        return {
            "ttft_s": first[0] - start,
            "usable": done.usable_tokens,
            "computed": done.computed_tokens,
            "tier": done.explanation.tier,
            "codec": done.explanation.codec,
            "kvdeck_s": timings.kvdeck_s,
            "load_s": timings.acquire_s + timings.load_s,
            "store_s": timings.capture_s + timings.commit_s,
        }


def command(engine: Any, kind: str, **arguments: Any) -> None:
    """An operator's command on every prefix held; what is leased, coded or below already refuses, which is fine."""
    ids = [row["prefix.id"] for row in engine.snapshot()]
    engine.execute(CommandRequest(id=f"bench-{kind}", kind=kind, arguments={"prefix_ids": ids, **arguments}))


def one_round(bench: Bench) -> dict[str, dict[str, Any]]:
    """Every route once. A route that did not happen as named is an error, not a number."""
    found: dict[str, dict[str, Any]] = {}
    with bench.open() as (engine, cache):
        command(engine, "evict", descendants=True)
        found[ALONE] = bench.ask_alone()
        engine.reconfigure({"mode": "bypass"}, revision=1)
        found[NO_REUSE] = bench.ask(cache)
        engine.reconfigure({"mode": "normal"}, revision=2)
        _warm(bench, cache)
        found["GPU tier"] = _expect(bench.ask(cache), "gpu", "native")
        command(engine, "compress", codec="lossless")
        found["GPU tier, lossless"] = _expect(bench.ask(cache), "gpu", "lossless")
        command(engine, "offload", tier="host")
        found["host"] = _expect(bench.ask(cache), "host", "")
        command(engine, "offload", tier="disk")
        found["disk"] = _expect(bench.ask(cache), "disk", "")
    with bench.open() as (_, cache):
        found["disk, restarted"] = _expect(bench.ask(cache), "disk", "")
    return found


def _warm(bench: Bench, cache: Any) -> None:
    """Two siblings: the first brings the pages, the second the checkpoint at the branch point."""
    for _ in range(2):
        bench.ask(cache)


def _expect(found: dict[str, Any], tier: str, codec: str) -> dict[str, Any]:
    if found["tier"] != tier or (codec and found["codec"] != codec):
        raise SystemExit(f"a hit from {tier} {codec} was wanted, it came from {found['tier']!r} {found['codec']!r}")
    return found


def rows_of(rounds: list[dict[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Medians over rounds; ratios and shares from each round's own run without reuse."""
    rows = []
    for route in rounds[0]:
        ours, alone, none = ([r[name] for r in rounds] for name in (route, ALONE, NO_REUSE))
        hit = route not in (ALONE, NO_REUSE)
        # What was saved is the prefill itself: kvdeck's own time is no part of it.
        saved = [b["ttft_s"] - a["ttft_s"] + a["kvdeck_s"] for a, b in zip(ours, none, strict=True)]
        rows.append(
            {
                "route": route,
                "ttft_ms": median(r["ttft_s"] for r in ours) * 1e3,
                "x_alone": median(b["ttft_s"] / a["ttft_s"] for a, b in zip(ours, alone, strict=True)),
                "x_no_reuse": median(b["ttft_s"] / a["ttft_s"] for a, b in zip(ours, none, strict=True)),
                "saved_tokens": median(r["usable"] for r in ours) if hit else None,
                "load_ms": median(r["load_s"] for r in ours) * 1e3,
                "store_ms": median(r["store_s"] for r in ours) * 1e3,
                "share": median(a["kvdeck_s"] / s for a, s in zip(ours, saved, strict=True)) if hit else None,
            }
        )
    return rows


def _tenths(value: float) -> str:
    return f"{value:,.1f}"


COLUMNS: list[tuple[str, Callable[[Any], str]]] = [
    ("shared prefix from", str), ("first token ms", _tenths), ("x alone", _tenths), ("x no reuse", _tenths),
    ("tokens saved", lambda v: f"{v:,.0f}"), ("acquire + load ms", _tenths), ("capture + commit ms", _tenths),
    ("kvdeck / saved prefill", lambda v: f"{v:.1%}"),
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", choices=FAMILIES, default="gemma3")
    parser.add_argument("--size", choices=SIZES, default="laptop")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--prefix", type=int, default=4096, help="tokens every request shares")
    parser.add_argument("--chunk", type=int, default=None, help="prefill chunk in tokens; default one page")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gpu-mib", type=int, default=1024, help="size of the GPU tier; the host is as large")
    parser.add_argument("--json", action="store_true")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(a, Path(folder))
        rounds = []
        for number in range(a.rounds + 1):
            print(f"round {number}/{a.rounds}{' (warm-up)' if not number else ''}", file=sys.stderr, flush=True)
            rounds.append(one_round(bench))
    rows = rows_of(rounds[1:])
    if a.json:
        print(json.dumps(rows))
        return
    parameters = sum(p.numel() for p in bench.model.parameters()) / 1e6
    title = (
        f"{a.family}, {parameters:,.0f} M parameters, {a.dtype}, {a.device}; {a.prefix:,} shared tokens; {machine()}"
    )
    print_table(title, COLUMNS, [list(row.values()) for row in rows])


if __name__ == "__main__":
    main()
