"""How many transitions a second one process writes: body in, committed rows out."""

from __future__ import annotations

import argparse
import time

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from benchmarks.deck.telemetry import bodies
from controlplane.ingest.engines import register_engine
from controlplane.ingest.otlp import decode
from controlplane.ingest.spans import ingest_traces
from controlplane.store import Store

ENGINES = 4
LIMIT = 64 << 20


def measure(url: str, transitions: int) -> dict[str, float]:
    """Transitions a second over all bodies, and the slowest body in milliseconds."""
    store = Store(url)
    prepared: list[list[bytes]] = []
    for number in range(ENGINES):
        _register(store, f"engine-{number}")
        prepared.append(bodies(f"engine-{number}", "boot-1", transitions // ENGINES))
    cpu_before = time.process_time()
    took = [_send(store, body) for turn in zip(*prepared, strict=True) for body in turn]
    cpu_seconds = time.process_time() - cpu_before
    store.dispose()
    count = transitions // ENGINES * ENGINES
    return {
        "per_second": count / sum(took),
        "cpu_us": cpu_seconds / count * 1e6,
        "slowest_body_ms": max(took) * 1000,
    }


def _send(store: Store, body: bytes) -> float:
    started = time.perf_counter()
    message = decode(ExportTraceServiceRequest, body, encoding="gzip", max_inflated_bytes=LIMIT)
    with store.write() as session:
        outcome = ingest_traces(session, message)
    took = time.perf_counter() - started
    if outcome.rejected_total or outcome.repeated:
        raise SystemExit(f"not every transition was taken: {outcome.message or outcome}")
    return took


def _register(store: Store, engine_id: str) -> None:
    with store.write() as session:
        register_engine(
            session,
            engine_id,
            boot_id="boot-1",
            model="toy",
            fingerprint="f",
            page_tokens=64,
            labels={},
            observed={},
        )


def rows(a: argparse.Namespace, kind: str, url: str) -> list[list[object]]:
    """The part's lines of the table."""
    target = 20_000 if kind == "sqlite" else 10_000
    found = measure(url, a.transitions)
    return [[f"ingest, {kind}: transitions/s", f">= {target:,}", f"{found['per_second']:,.0f}"]]
