"""What the spans cost the engine, and whether any is lost: in a burst, and at a steady rate to real receivers.

    python -m benchmarks.telemetry [--requests 4000] [--rounds 3] [--burst 20000] [--rate 5000] [--seconds 20]

Same requests with spans off, on, on with one trace in ten exported, and on with all of them exported over OTLP/HTTP to
a receiver in another process. Only the time inside the engine's calls counts, as in benchmarks.bookkeeping. The burst
asks for short prompts as fast as one thread can, and lets nothing wait for the exporters. The second table: so many
spans a second over HTTP, over gRPC, to both at once, and to nobody; the receivers decode and count what comes.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import httpx
import numpy as np
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import add_TraceServiceServicer_to_server

from benchmarks.bookkeeping import CountingProcessor
from benchmarks.harness import Contender, machine, median_of, print_table, ratio_of, run_interleaved
from controlplane.host.backends import Backend
from controlplane.host.export import build_export
from controlplane.host.sampling import Sampling
from controlplane.settings import GRPC
from engine import CacheEngine, EngineConfig, preset
from engine.model.objects import bytes_per_token

SPEC = "bench-full-swa"
POOL_TOKENS = 400_000
STEADY = {"http": "HTTP", "grpc": "gRPC", "both": "HTTP and gRPC at once", "down": "nobody there"}
MODES = {
    "off": "spans off",
    "on": "spans on",
    "sampled": "spans on, 1 trace in 10 exported",
    "all": "spans on, all exported",
}


class Receivers:
    """Takes OTLP over HTTP and gRPC, decodes it and counts the spans; another process, so that its work is not ours."""

    def __init__(self) -> None:
        self.counts = {"http": 0, "grpc": 0}
        counts = self.counts

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                if self.path == "/v1/traces":
                    counts["http"] += spans_in(ExportTraceServiceRequest.FromString(body))
                self._answer(b"")

            def do_GET(self) -> None:
                self._answer(json.dumps(counts).encode())

            def _answer(self, body: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        class Service:
            def Export(self, request: Any, _context: Any) -> Any:
                counts["grpc"] += spans_in(request)
                return ExportTraceServiceResponse()

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.grpc = grpc.server(ThreadPoolExecutor(4))
        add_TraceServiceServicer_to_server(Service(), self.grpc)
        self.grpc_port = self.grpc.add_insecure_port("127.0.0.1:0")

    def serve(self) -> None:
        self.grpc.start()
        print(f"http://127.0.0.1:{self.http.server_port} http://127.0.0.1:{self.grpc_port}", flush=True)
        self.http.serve_forever()


def spans_in(message: Any) -> int:
    return sum(len(scope.spans) for resource in message.resource_spans for scope in resource.scope_spans)


@contextmanager
def receivers() -> Iterator[tuple[str, str]]:
    """Addresses over HTTP and gRPC."""
    command = [sys.executable, "-m", "benchmarks.telemetry", "--receive"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        http, over_grpc = process.stdout.readline().split()
        yield http, over_grpc
    finally:
        process.terminate()
        process.wait()


def backends_of(a: argparse.Namespace) -> list[Backend]:
    """What one worker exports to."""
    over_http = Backend(endpoint=a.http, metrics=False)
    over_grpc = Backend(protocol=GRPC, endpoint=a.grpc, metrics=False)
    nobody = Backend(endpoint="http://127.0.0.1:9", metrics=False)  # the discard port: nobody listens
    return {
        "sampled": [replace(over_http, sampling=Sampling(ratio=0.1))],
        "all": [over_http],
        "http": [over_http],
        "grpc": [over_grpc],
        "both": [over_http, over_grpc],
        "down": [nobody],
    }.get(a.worker, [])


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
    export = build_export("", "", {}, backends=backends_of(a))
    spec = preset(SPEC)
    config = EngineConfig(
        gpu_bytes=int(POOL_TOKENS * bytes_per_token(spec)), materialise=False, codec="none", spans=a.worker != "off"
    )
    with CacheEngine(spec, config, span_processors=[counter, *export.span_processors]) as engine:
        found = _steady(engine, a.rate, a.seconds) if a.worker in STEADY else _both_loads(engine, a)
        tally = engine.spans_recorded()
        engine.flush_telemetry()
    start = time.perf_counter()
    export.shutdown()
    sent = sum(sender.sent_spans for sender in export.backends)
    return found | {
        "shutdown_s": time.perf_counter() - start,
        "recorded": tally.recorded,
        "sent": sent,
        "expected": tally.recorded * len(export.backends),
        "dropped_checks": tally.dropped_checks,
        "dropped_requests": tally.dropped_requests,
        "given_up": sum(sender.dropped_spans for sender in export.backends),
        # Transitions and failures are never dropped: what is missing beyond the counted drops would be one of them.
        "lost": tally.recorded - tally.dropped_checks - tally.dropped_requests - counter.spans
        if a.worker != "off"
        else 0,
    }


def _both_loads(engine: CacheEngine, a: argparse.Namespace) -> dict[str, Any]:
    return {
        "req_per_s": a.requests / _feed(engine, a.requests),
        "burst_req_per_s": a.burst / _burst(engine, a.burst),
    }


def _steady(engine: CacheEngine, spans_per_s: float, seconds: float) -> dict[str, Any]:
    """Hits on a few prompts, paced by the spans that they make."""
    rng = np.random.default_rng(1)
    short = [rng.integers(0, 1 << 30, 128).astype(np.int32) for _ in range(64)]
    for tokens in short:
        with engine.acquire(tokens) as lease:
            engine.commit(tokens, None, lease=lease, checkpoints=lease.checkpoint_hints)
    first, start, cpu = engine.spans_recorded().recorded, time.perf_counter(), time.process_time()
    number = 0
    while (elapsed := time.perf_counter() - start) < seconds:
        if engine.spans_recorded().recorded - first > spans_per_s * elapsed:
            time.sleep(0.002)
            continue
        for _ in range(8):
            number += 1
            engine.acquire(short[number % 64]).release()
    made = engine.spans_recorded().recorded - first
    return {"spans_per_s": made / elapsed, "cpu_ratio": (time.process_time() - cpu) / elapsed}


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
    parser.add_argument("--rate", type=float, default=5000.0, help="spans a second of the second table")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--only-steady", action="store_true", help="only the second table")
    parser.add_argument("--worker", choices=(*MODES, *STEADY), help=argparse.SUPPRESS)
    parser.add_argument("--http", default="", help=argparse.SUPPRESS)
    parser.add_argument("--grpc", default="", help=argparse.SUPPRESS)
    parser.add_argument("--receive", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.receive:
        Receivers().serve()
    if a.worker:
        print(json.dumps(run_worker(a)))
        return
    with receivers() as (http, over_grpc):
        shared = ["--http", http, "--grpc", over_grpc]
        for name in ("requests", "burst", "rate", "seconds"):
            shared += [f"--{name}", str(getattr(a, name))]
        if not a.only_steady:
            print_cost(run_interleaved(contenders(MODES, shared), a.rounds))
        print_steady(run_interleaved(contenders(STEADY, shared), 1))
        counted = httpx.get(http, trust_env=False).json()
    print(f"spans that the receivers decoded: {counted['http']:,} over HTTP, {counted['grpc']:,} over gRPC")


def contenders(modes: dict[str, str], shared: list[str]) -> list[Contender]:
    command = (sys.executable, "-m", "benchmarks.telemetry", "--worker")
    return [Contender(name=name, command=(*command, mode, *shared)) for mode, name in modes.items()]


def print_cost(results: dict[str, list[dict[str, Any]]]) -> None:
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


def print_steady(results: dict[str, list[dict[str, Any]]]) -> None:
    keys = ("spans_per_s", "expected", "sent", "dropped_checks", "dropped_requests", "lost", "given_up")
    rows = [
        [name, *(found[0][key] for key in keys), found[0]["cpu_ratio"], found[0]["shutdown_s"]]
        for name, found in results.items()
    ]
    columns = [
        ("to", str), ("spans/s", _count), ("to send", _count), ("sent", _count), ("dropped: passed checks", _count),
        ("requests", _count), ("transitions, failures", _count), ("given up at the end", _count),
        ("CPU, cores", lambda v: f"{v:.2f}"), ("shutdown, s", lambda v: f"{v:.2f}"),
    ]  # fmt: skip
    print_table(f"a steady rate of spans; {machine()}", columns, rows)


def _count(value: float) -> str:
    return f"{value:,.0f}"


if __name__ == "__main__":
    main()
