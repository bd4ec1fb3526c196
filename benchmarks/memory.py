"""What the books cost in memory: bytes of bookkeeping a cached page and a prefix.

    python -m benchmarks.memory [--pages 1000000]

Books are kept without tensors (materialise=False), so all that grows is bookkeeping. Resident memory is read from the
kernel after the garbage collector ran; each shape of tree has a process of its own.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Contender, machine, print_table, run_once
from engine import CacheEngine, EngineConfig, preset
from engine.model.objects import bytes_per_token, checkpoint_bytes

SPEC = "bench-full-swa"
SHAPES = {"long": 512, "middle": 64, "short": 8}
"""Pages a prefix: documents, chats, turns."""


def resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def run_worker(a: argparse.Namespace) -> dict[str, Any]:
    """Commit prompts of one length until the tree has `--pages` pages."""
    spec = preset(SPEC)
    prompt_pages = SHAPES[a.worker]
    prompts = a.pages // prompt_pages
    need = int(a.pages * spec.page_tokens * bytes_per_token(spec) * 1.05) + 2 * prompts * checkpoint_bytes(spec)
    config = EngineConfig(
        gpu_bytes=need * 2,
        slab_bytes=1 << 20,
        materialise=False,
        spans=False,
        codec="none",
        checkpoint_budget_ratio=0.6,
    )
    rng = np.random.default_rng(0)
    with CacheEngine(spec, config) as engine:
        empty = resident_bytes()
        for _ in range(prompts):
            tokens = rng.integers(0, 1 << 30, prompt_pages * spec.page_tokens).astype(np.int32)
            engine.commit(tokens, None, checkpoints=[len(tokens)])
        grown = resident_bytes() - empty
        held = sum(row["pages"] for row in engine.snapshot())
        prefixes = len(engine.snapshot())
    tokens_bytes = held * spec.page_tokens * 4
    return {
        "pages": held,
        "prefixes": prefixes,
        "grown": grown,
        "page": grown / held,
        "beside_tokens": (grown - tokens_bytes) / held,
        "prefix": grown / prefixes,
        "share": grown / (held * spec.page_tokens * bytes_per_token(spec)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pages", type=int, default=1_000_000)
    parser.add_argument("--worker", choices=SHAPES, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.worker:
        print(json.dumps(run_worker(a)))
        return
    rows = []
    for shape, pages in SHAPES.items():
        command = (sys.executable, "-m", "benchmarks.memory", "--worker", shape, "--pages", str(a.pages))
        print(f"{pages} pages a prefix", file=sys.stderr, flush=True)
        found = run_once(Contender(name=shape, command=command))
        keys = ("pages", "prefixes", "page", "beside_tokens", "prefix", "share")
        rows.append([f"{pages} pages a prefix", *(found[key] for key in keys)])
    columns = [
        ("tree of", str), ("pages", _count), ("prefixes", _count), ("bytes a page", _count),
        ("of it beside token ids", _count), ("bytes a prefix", _count), ("of its KV", lambda v: f"{v:.2%}"),
    ]  # fmt: skip
    print_table(f"bookkeeping in memory, {SPEC}; {machine()}", columns, rows)


def _count(value: float) -> str:
    return f"{value:,.0f}"


if __name__ == "__main__":
    main()
