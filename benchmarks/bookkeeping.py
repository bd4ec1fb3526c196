"""The cost of deciding, without bytes: acquire, five validations, lease, commit and release, beside the peers.

    python -m benchmarks.bookkeeping --trace TRACE [--requests 3000]
        [--peers DIR [--peer-python PATH] [--vllm-python PATH]]

Requests are fed as the peers' drivers feed them: prompts cut to whole pages, 16 leases open while later requests
start, and only the time inside the cache counts. Each run has a process of its own; runs are interleaved.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from benchmarks.harness import Contender, machine, median_of, percentile_us, print_table, ratio_of, run_interleaved

SPEC = "bench-full-swa"
WINDOW_TOKENS = 128  # of its sliding layer
OURS = {
    "spans": "kvdeck, spans on",
    "bare": "kvdeck, spans on, no curve",
    "plain": "kvdeck, spans off",
    "match": "kvdeck, index match only",
}
PEER_CACHES = {"unified-swa": "SGLang unified tree, full + SWA", "unified": "SGLang unified tree, full only"}
VLLM_BLOCKS = {16: "vLLM hybrid manager, block 16", 64: "vLLM hybrid manager, block 64"}
PEER_SHORT = {
    PEER_CACHES["unified-swa"]: "SGLang SWA",
    PEER_CACHES["unified"]: "SGLang full",
    VLLM_BLOCKS[16]: "vLLM 16",
    VLLM_BLOCKS[64]: "vLLM 64",
}
HOW_TO_PEERS = """\
{name} was not run. To compare with it in the same run, make it a virtual environment outside the repository
(the driver's README lists the packages; no GPU needed) and pass
    --peers FOLDER_OF_{driver} {option} THAT_ENVIRONMENT/bin/python"""


class CountingProcessor(SpanProcessor):
    """A span processor that counts and forgets: the engine's own side of telemetry, without an exporter's."""

    def __init__(self) -> None:
        self.spans = 0

    def on_end(self, span: ReadableSpan) -> None:
        self.spans += 1


def prompts(trace: Path, count: int, page_tokens: int) -> Any:
    """The trace's prompts, int32 arrays cut to whole pages, as the peers cut them."""
    from controlplane.workload.traces import Trace

    records = Trace(trace)
    for _, record in zip(range(count), records, strict=False):
        tokens = records.tokens_of(record)
        yield tokens[: len(tokens) // page_tokens * page_tokens]


def run_worker(a: argparse.Namespace) -> dict[str, Any]:
    """One run of our engine in this process: busy seconds by call, and what was found."""
    from engine import CacheEngine, EngineConfig, preset
    from engine.model.objects import bytes_per_token

    spec = preset(SPEC)
    counter = CountingProcessor()
    config = EngineConfig(
        # As many bytes as the pool's tokens need: our checkpoints live inside it, the peers' windows in a second pool.
        gpu_bytes=int(a.pool_tokens * bytes_per_token(spec)),
        materialise=False,
        spans=a.worker in ("spans", "bare"),
        codec="none",
        engine_id="bench",
        **({"curve_samples": 0} if a.worker == "bare" else {}),
    )
    engine = CacheEngine(spec, config, span_processors=[counter])
    try:
        timed = feed(engine, prompts(a.trace, a.requests, spec.page_tokens), a.inflight, a.worker == "match")
        violations = engine.check()
    finally:
        engine.close()
    tally = engine.spans_recorded()
    return timed | {
        "spans_recorded": tally.recorded,
        "spans_dropped": tally.dropped_checks + tally.dropped_requests,
        "spans_handed_over": counter.spans,
        "violations": violations,
    }


def feed(engine: Any, requests: Any, inflight: int, time_match: bool) -> dict[str, Any]:
    """Every request: acquire, commit up to `inflight` later, release; busy seconds by call."""
    clock = time.perf_counter
    seconds: dict[str, list[float]] = {"match": [], "acquire": [], "commit": [], "release": []}
    tokens_of = {"prompt": 0, "lcp": 0, "usable": 0, "replay": 0}
    live: deque[Any] = deque()

    def finish() -> None:
        tokens, lease = live.popleft()
        t0 = clock()
        engine.commit(tokens, None, lease=lease, checkpoints=[*lease.checkpoint_hints])
        t1 = clock()
        lease.release()
        seconds["commit"].append(t1 - t0)
        seconds["release"].append(clock() - t1)

    for tokens in requests:
        if time_match:  # a run of its own: it would warm the tree for `acquire`
            t0 = clock()
            engine.index.match("default", tokens.tobytes())
            seconds["match"].append(clock() - t0)
        t0 = clock()
        lease = engine.acquire(tokens)
        seconds["acquire"].append(clock() - t0)
        tokens_of["prompt"] += len(tokens)
        tokens_of["lcp"] += lease.lcp_tokens
        tokens_of["usable"] += lease.usable_tokens
        tokens_of["replay"] += lease.replay_tokens
        live.append((tokens, lease))
        if len(live) > inflight:
            finish()
    while live:
        finish()
    return _summary(seconds, tokens_of)


def _summary(seconds: dict[str, list[float]], tokens_of: dict[str, int]) -> dict[str, Any]:
    busy = sum(sum(seconds[k]) for k in ("acquire", "commit", "release"))
    prompt = max(1, tokens_of["prompt"])
    summary: dict[str, Any] = {
        "requests": len(seconds["acquire"]),
        "prompt_tokens": tokens_of["prompt"],
        "req_per_s": len(seconds["acquire"]) / busy,
        "lcp_hit_rate": tokens_of["lcp"] / prompt,
        "usable_hit_rate": tokens_of["usable"] / prompt,
        "net_hit_rate": (tokens_of["usable"] - tokens_of["replay"]) / prompt,
    }
    for call, values in seconds.items():
        if values:
            summary |= {f"{call}_p50_us": percentile_us(values, 0.5), f"{call}_p99_us": percentile_us(values, 0.99)}
    return summary


def contenders(a: argparse.Namespace) -> list[Contender]:
    """Ours in four ways, then every peer that can be run."""
    shared: tuple[str, ...] = (
        "--requests",
        str(a.requests),
        "--pool-tokens",
        str(a.pool_tokens),
        "--inflight",
        str(a.inflight),
    )
    shared = (*shared, "--trace", str(a.trace.resolve()))
    ours = [
        Contender(
            name=name,
            command=(sys.executable, "-m", "benchmarks.bookkeeping", "--worker", kind, *shared),
        )
        for kind, name in OURS.items()
    ]
    return [*ours, *_sglang(a, shared), *_vllm(a)]


def _sglang(a: argparse.Namespace, shared: tuple[str, ...]) -> list[Contender]:
    if a.peers is None or a.peer_python is None:
        return []
    command = (*_driver(a.peer_python, a.peers / "bench_sglang.py"), "--page-size", "64", *shared)
    return [Contender(name=name, command=(*command, "--cache", cache)) for cache, name in PEER_CACHES.items()]


def _vllm(a: argparse.Namespace) -> list[Contender]:
    """One full and one sliding group, as in our spec, in one pool of as many bytes: a block of either is as large, and
    like ours its windows live inside the pool."""
    if a.peers is None or a.vllm_python is None:
        return []
    command = (
        *_driver(a.vllm_python, a.peers / "bench_vllm.py"), "--trace", str(a.trace.resolve()),
        "--limit", str(a.requests), "--concurrency", str(a.inflight), "--window", str(WINDOW_TOKENS),
    )  # fmt: skip
    return [
        Contender(
            name=name,
            command=(*command, "--block-size", str(size), "--num-blocks", str(a.pool_tokens // size)),
        )
        for size, name in VLLM_BLOCKS.items()
    ]


def _driver(python: Path, driver: Path) -> tuple[str, str]:
    # absolute(), not resolve(): an environment's python is a link, and must be called by its own path.
    return str(python.absolute()), str(driver.resolve())


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _tenths(value: float) -> str:
    return f"{value:,.1f}"


def _share(value: float) -> str:
    return f"{value:.2%}"


COLUMNS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("requests/s", "req_per_s", _count),
    ("acquire p50 us", "acquire_p50_us", _tenths),
    ("p99", "acquire_p99_us", _tenths),
    ("match p50 us", "match_p50_us", _tenths),
    ("p99", "match_p99_us", _tenths),
    ("hit lcp", "lcp_hit_rate", _share),
    ("usable", "usable_hit_rate", _share),
    ("net of replay", "net_hit_rate", _share),
)


def in_our_terms(name: str, run: dict[str, Any]) -> dict[str, Any]:
    """A peer's result under our names. Its one hit rate is of tokens it would serve: compare it with our usable one.

    vLLM hashes a prompt before it looks it up, which ours does inside the calls: both count as time in the cache.
    """
    if name in VLLM_BLOCKS.values():
        each_us, lookup = run["latency_us"], run["latency_us"]["lookup"]
        busy_us = sum(each_us[call]["mean"] for call in ("hash", "lookup", "allocate", "free"))
        run = run | {"req_per_s": 1e6 / busy_us, "match_p50_us": lookup["p50"], "match_p99_us": lookup["p99"]}
    return run | {"usable_hit_rate": run["hit_rate"]} if name in PEER_SHORT else run


def _values(name: str, runs: list[dict[str, Any]]) -> list[float | None]:
    """One line's medians; a run of matches alone has no other figures, because it warmed its tree."""
    only_match = name == OURS["match"]
    return [None if only_match and not key.startswith("match") else median_of(runs, key) for _, key, _ in COLUMNS]


def report(a: argparse.Namespace, results: dict[str, list[dict[str, Any]]]) -> None:
    """Print the table: medians over rounds, and our requests/s over each peer's, pair by pair."""
    peers = [name for name in PEER_SHORT if name in results]
    columns: list[tuple[str, Callable[[Any], str]]] = [("run", str), *((title, show) for title, _, show in COLUMNS)]
    columns += [(f"x {PEER_SHORT[name]}", lambda v: f"{v:.2f}") for name in peers]
    rows = []
    for name, runs in results.items():
        ratios = [None if name == OURS["match"] else ratio_of(runs, results[peer], "req_per_s") for peer in peers]
        rows.append([name, *_values(name, runs), *ratios])
    title = f"bookkeeping: {a.trace.name}, {a.requests:,} requests, page 64, {a.pool_tokens:,}-token pool, {SPEC}"
    print_table(f"{title}, median of {a.rounds} ({machine()})", columns, rows)
    _print_notes(results)
    for name, caches, driver, option in (
        ("SGLang", PEER_CACHES, "bench_sglang.py", "--peer-python"),
        ("vLLM", VLLM_BLOCKS, "bench_vllm.py", "--vllm-python"),
    ):
        if not set(caches.values()) & results.keys():
            print("\n" + HOW_TO_PEERS.format(name=name, driver=driver, option=option))


def _print_notes(results: dict[str, list[dict[str, Any]]]) -> None:
    on, off = results[OURS["spans"]], results[OURS["plain"]]
    recorded, dropped = sum(r["spans_recorded"] for r in on), sum(r["spans_dropped"] for r in on)
    print(
        f"\nspans: {recorded / sum(r['requests'] for r in on):.1f} a request, {dropped:,} of {recorded:,} dropped; "
        f"off is {ratio_of(off, on, 'req_per_s'):.2f} times as fast as on"
    )
    for name, runs in results.items():
        for violation in sorted({v for r in runs for v in r.get("violations", [])}):
            print(f"BROKEN INVARIANT in {name}: {violation}")


def arguments() -> argparse.ArgumentParser:
    """The command line; `--worker` is how a run is started in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, required=True, help="a Mooncake or Qwen-Bailian JSONL trace")
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--pool-tokens", type=int, default=2_000_000)
    parser.add_argument("--inflight", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", type=Path, help="folder of bench_sglang.py and bench_vllm.py")
    parser.add_argument("--peer-python", type=Path, help="python of an environment with SGLang")
    parser.add_argument("--vllm-python", type=Path, help="python of an environment with vLLM")
    parser.add_argument("--json", action="store_true", help="print every run as JSON instead of the table")
    parser.add_argument("--worker", choices=list(OURS), help=argparse.SUPPRESS)
    return parser


def main() -> None:
    """Run everything, or, as a worker, one run."""
    a = arguments().parse_args()
    if a.worker:
        print(json.dumps(run_worker(a)))
        return
    told = run_interleaved(contenders(a), a.rounds)
    results = {name: [in_our_terms(name, run) for run in runs] for name, runs in told.items()}
    if a.json:
        print(json.dumps(results, indent=2))
    else:
        report(a, results)


if __name__ == "__main__":
    main()
