"""What the spans cost the engine, and whether any is lost when requests come in a burst.

    python -m benchmarks.telemetry [--requests 4000] [--rounds 3] [--burst 20000]

Same requests with spans off, on, on with one trace in ten exported, and on with all of them exported over OTLP/HTTP to
a receiver in another process. Only the time inside the engine's calls counts, as in benchmarks.bookkeeping. The burst
asks for short prompts as fast as one thread can, and lets nothing wait for the exporters.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from benchmarks.bookkeeping import CountingProcessor
from benchmarks.harness import Contender, machine, median_of, print_table, ratio_of, run_interleaved
from engine import CacheEngine, EngineConfig, preset
from engine.model.objects import bytes_per_token

SPEC = "bench-full-swa"
POOL_TOKENS = 400_000
MODES = {
    "off": "spans off",
    "on": "spans on",
    "sampled": "spans on, 1 trace in 10 exported",
    "all": "spans on, all exported",
}


class OneInTen(SpanProcessor):
    """Hands one trace in ten on to another processor, whole traces or nothing."""

    def __init__(self, inner: SpanProcessor) -> None:
        self._inner = inner

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Spans arrive finished."""

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_id % 10 == 0:
            self._inner.on_end(span)

    def shutdown(self) -> None:
        self._inner.shutdown()


class _Receiver(BaseHTTPRequestHandler):
    """Takes OTLP and throws it away; another process, so that its work is not ours."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@contextmanager
def receiver() -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.telemetry", "--receive"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


def prompts(count: int) -> Iterator[np.ndarray]:
    """Prompts of 8 to 40 pages that share one of 64 heads of up to 20 pages."""
    rng = np.random.default_rng(0)
    heads = [rng.integers(0, 1 << 30, int(rng.integers(4, 21)) * 64).astype(np.int32) for _ in range(64)]
    for _ in range(count):
        head = heads[min(63, int(rng.exponential(12)))]
        own = rng.integers(0, 1 << 30, int(rng.integers(4, 21)) * 64).astype(np.int32)
        yield np.concatenate([head, own])


def run_worker(a: argparse.Namespace) -> dict[str, Any]:
    counter = CountingProcessor()
    processors: list[SpanProcessor] = [counter]
    if a.worker in ("sampled", "all"):
        exporter = OTLPSpanExporter(endpoint=f"{a.endpoint}/v1/traces", timeout=2)
        batch = BatchSpanProcessor(exporter, max_queue_size=65_536, max_export_batch_size=2_048)
        processors.append(OneInTen(batch) if a.worker == "sampled" else batch)
    spec = preset(SPEC)
    config = EngineConfig(
        gpu_bytes=int(POOL_TOKENS * bytes_per_token(spec)), materialise=False, codec="none", spans=a.worker != "off"
    )
    with CacheEngine(spec, config, span_processors=processors) as engine:
        busy = _feed(engine, a.requests)
        burst_s = _burst(engine, a.burst)
        tally = engine.spans_recorded()
        engine.flush_telemetry()
    for processor in processors[1:]:
        processor.shutdown()
    return {
        "req_per_s": a.requests / busy,
        "burst_req_per_s": a.burst / burst_s,
        "recorded": tally.recorded,
        "handed_over": counter.spans,
        "dropped_checks": tally.dropped_checks,
        "dropped_requests": tally.dropped_requests,
        # Transitions and failures are never dropped: what is missing beyond the counted drops would be one of them.
        "lost": tally.recorded - tally.dropped_checks - tally.dropped_requests - counter.spans
        if a.worker != "off"
        else 0,
    }


def _feed(engine: CacheEngine, count: int) -> float:
    busy, clock = 0.0, time.perf_counter
    for tokens in prompts(count):
        start = clock()
        with engine.acquire(tokens) as lease:
            engine.commit(tokens, None, lease=lease, checkpoints=lease.checkpoint_hints)
        busy += clock() - start
    return busy


def _burst(engine: CacheEngine, count: int) -> float:
    """Short prompts, acquired and given back; one in ten is committed, so that there are transitions too."""
    rng = np.random.default_rng(1)
    short = [rng.integers(0, 1 << 30, 128).astype(np.int32) for _ in range(256)]
    start = time.perf_counter()
    for number in range(count):
        tokens = short[number % 256]
        with engine.acquire(tokens) as lease:
            if number % 10 == 0:
                engine.commit(tokens, None, lease=lease, checkpoints=lease.checkpoint_hints)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--burst", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", choices=MODES, help=argparse.SUPPRESS)
    parser.add_argument("--endpoint", default="", help=argparse.SUPPRESS)
    parser.add_argument("--receive", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.receive:
        server = ThreadingHTTPServer(("127.0.0.1", 0), _Receiver)
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()
    if a.worker:
        print(json.dumps(run_worker(a)))
        return
    with receiver() as endpoint:
        shared = ("--requests", str(a.requests), "--burst", str(a.burst), "--endpoint", endpoint)
        contenders = [
            Contender(name=name, command=(sys.executable, "-m", "benchmarks.telemetry", "--worker", mode, *shared))
            for mode, name in MODES.items()
        ]
        results = run_interleaved(contenders, a.rounds)
    off = results[MODES["off"]]
    rows = [
        [
            name,
            median_of(found, "req_per_s"),
            ratio_of(off, found, "req_per_s"),
            median_of(found, "burst_req_per_s"),
            *(sum(r[key] for r in found) for key in ("recorded", "dropped_checks", "dropped_requests", "lost")),
        ]
        for name, found in results.items()
    ]
    columns = [
        ("telemetry", str), ("requests/s", _count), ("slower x", lambda v: f"{v:.2f}"), ("burst requests/s", _count),
        ("spans", _count), ("dropped: passed checks", _count), ("requests", _count), ("transitions, failures", _count),
    ]  # fmt: skip
    print_table(f"spans on and off, {SPEC}; {machine()}", columns, rows)


def _count(value: float) -> str:
    return f"{value:,.0f}"


if __name__ == "__main__":
    main()
