"""Which rule of admission and of eviction hits more at which cap, and what one eviction costs.

    python -m benchmarks.admission --trace TRACE [--caps 2,5,10,25] [--requests N]

The trace is replayed through the engine's books (no bytes), one request after another, with a tier that holds so many
per cent of the trace's distinct blocks; a page is a block. Usable tokens over prompt tokens is the hit rate. Then
100,000 leaves are held and evicted one by one.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.harness import machine, percentile_us, print_table

SPEC = "bench-full-swa"
LEAVES = 100_000
EVICTED = 2_000


def engine_of(page_tokens: int, pages: int, **settings: Any) -> Any:
    """Books for `pages` pages and the checkpoints' share beside them."""
    from engine import CacheEngine, EngineConfig, preset
    from engine.model.objects import bytes_per_token

    spec = replace(preset(SPEC), page_tokens=page_tokens)
    n_bytes = int(pages * page_tokens * bytes_per_token(spec))
    return CacheEngine(
        spec, EngineConfig(gpu_bytes=n_bytes, materialise=False, spans=False, codec="none", **settings)
    )  # fmt: skip


def blocks_of(trace: Path, limit: int | None) -> tuple[int, int]:
    """Distinct blocks of a trace, and the tokens of a block."""
    from itertools import islice

    from controlplane.workload.traces import Trace

    records = Trace(trace)
    return len({block for record in islice(records, limit) for block in record.hash_ids}), records.block_tokens


def hit_rate(trace: Path, limit: int | None, page_tokens: int, pages: int, admission: str, eviction: str) -> float:
    """One replay: acquire, commit at the checkpoints that the lease asks for, release."""
    from controlplane.workload.traces import Trace

    engine = engine_of(page_tokens, pages, admission_rule=admission, eviction=eviction)
    records = Trace(trace)
    prompt = usable = 0
    try:
        for n, record in enumerate(records):
            if limit is not None and n >= limit:
                break
            tokens = records.tokens_of(record)
            with engine.acquire(tokens) as lease:
                engine.commit(tokens, None, lease=lease, checkpoints=lease.checkpoint_hints)
                prompt, usable = prompt + len(tokens), usable + lease.usable_tokens
        if broken := engine.check():
            raise SystemExit(f"BROKEN INVARIANT: {broken[0]}")
    finally:
        engine.close()
    return usable / max(1, prompt)


def evictions(eviction: str) -> list[float]:
    """Seconds of each of EVICTED evictions (choosing and removing) while LEAVES leaves are held."""
    import numpy as np

    from engine.consistency.prefix import CauseOf
    from engine.consistency.state import Cause
    from engine.schedule.leaving import For

    engine = engine_of(64, LEAVES + 64, eviction=eviction)
    try:
        for n in range(LEAVES):
            engine.commit(np.full(64, n, dtype=np.int32))
        ledger, leaving = engine._ledger, engine._publisher._room._leaving
        found = []
        for _ in range(EVICTED):
            start = time.perf_counter()
            with ledger.lock:
                ledger.remove(leaving.next_node(For(), set()), CauseOf(Cause.PRESSURE))
            found.append(time.perf_counter() - start)
        return found
    finally:
        engine.close()


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, required=True, help="a Mooncake or Qwen-Bailian JSONL trace")
    parser.add_argument("--requests", type=int, help="only so many of its requests")
    parser.add_argument("--caps", default="2,5,10,25", help="per cent of the distinct blocks")
    parser.add_argument("--first-pages", type=int, default=16, help="N of first_pages:N, in blocks")
    return parser


def main() -> None:
    """Replay everything and print two tables."""
    a = arguments().parse_args()
    distinct, block_tokens = blocks_of(a.trace, a.requests)
    rows = []
    for percent in map(float, a.caps.split(",")):
        pages = max(8, int(distinct * percent / 100))
        for admission in ("all", "second_touch", f"first_pages:{a.first_pages}"):
            rates = [
                hit_rate(a.trace, a.requests, block_tokens, pages, admission, eviction)
                for eviction in ("lru", "cost_aware")
            ]
            rows.append([f"{percent:g} %", admission, *rates])
    share = "{:.1%}".format
    title = f"usable hit rate: {a.trace.name}, {distinct:,} distinct blocks of {block_tokens} tokens ({machine()})"
    print_table(title, [("cap", str), ("admission", str), ("lru", share), ("cost_aware", share)], rows)
    spent = [(name, evictions(name)) for name in ("lru", "cost_aware")]
    micro = "{:.1f}".format
    table = [[name, percentile_us(values, 0.5), percentile_us(values, 0.99)] for name, values in spent]
    print()
    print_table(f"one eviction among {LEAVES:,} leaves", [("rule", str), ("p50 us", micro), ("p99", micro)], table)


if __name__ == "__main__":
    main()
