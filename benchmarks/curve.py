"""What sampling the curve costs on the request path: the engine with it and without it, in one run.

    python -m benchmarks.curve --trace TRACE [--requests 3000] [--rounds 3] [--samples 2048]

The bookkeeping benchmark's own worker (no bytes, spans on, 16 leases open), once with the sampler and once without in
each round, each in a process of its own. The cost is highest at the start of an engine's life, when every page is new.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.bookkeeping import SPEC, CountingProcessor, feed, prompts
from benchmarks.harness import Contender, machine, median_of, print_table, ratio_of, run_interleaved

OFF, ON = "sampler off", "sampler on"


def run_worker(a: argparse.Namespace) -> dict[str, Any]:
    """One engine in this process, its busy seconds, and the curve it ended with."""
    from engine import CacheEngine, EngineConfig, preset
    from engine.model.objects import bytes_per_token

    spec = preset(SPEC)
    n_bytes = int(a.pool_tokens * bytes_per_token(spec))
    config = EngineConfig(gpu_bytes=n_bytes, materialise=False, codec="none", curve_samples=a.worker)
    engine = CacheEngine(spec, config, span_processors=[CountingProcessor()])
    try:
        timed = feed(engine, prompts(a.trace, a.requests, spec.page_tokens), 16, time_match=False)
        curve = engine.curve().get("total", {})
    finally:
        engine.close()
    return timed | {"samples": curve.get("samples"), "rate": curve.get("rate")}


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, required=True, help="a Mooncake or Qwen-Bailian JSONL trace")
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--pool-tokens", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=2048, help="pages watched")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    return parser


def main() -> None:
    """Measure and print the table; as a worker, print one JSON object."""
    a = arguments().parse_args()
    if a.worker is not None:
        print(json.dumps(run_worker(a)))
        return
    command = (sys.executable, "-m", "benchmarks.curve", "--trace", str(a.trace), "--requests", str(a.requests))
    command += ("--pool-tokens", str(a.pool_tokens))
    contenders = [Contender(name=OFF, command=(*command, "--worker", "0"))]
    contenders.append(Contender(name=ON, command=(*command, "--worker", str(a.samples))))
    found = run_interleaved(contenders, a.rounds)
    rows = []
    for name, runs in found.items():
        figures = [median_of(runs, key) for key in ("req_per_s", "acquire_p50_us", "acquire_p99_us", "commit_p50_us")]
        rows.append([name, *figures, ratio_of(runs, found[OFF], "req_per_s"), median_of(runs, "samples")])
    whole, micro, share = "{:,.0f}".format, "{:.0f}".format, "{:.3f}".format
    columns = [("run", str), ("requests/s", whole), ("acquire p50 us", micro), ("p99", micro)]
    columns += [("commit p50 us", micro), ("x off", share), ("samples", whole)]
    print_table(
        f"{a.trace.name}, first {a.requests:,} requests, {a.samples:,} pages watched ({machine()})", columns, rows
    )


if __name__ == "__main__":
    main()
