"""Builds real OTLP payloads (SDK spans and points, the exporter's encoder) and real stores for the tests."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable
from typing import Any

from databases import Database
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import export as metrics
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from controlplane.ingest.engines import register_engine
from controlplane.ingest.metrics import ingest_metrics
from controlplane.ingest.outcome import IngestOutcome
from controlplane.ingest.spans import ingest_traces
from controlplane.store import Store

NOW = dt.datetime(2026, 3, 1, 12, 0, 30, tzinfo=dt.UTC)
LIFE = 1_772_366_400_000_000_000  # a birth shortly before NOW, in nanoseconds
PREFIX = "a" * 32
ENGINE = "engine-1"
BOOT = "boot-1"


def new_store(database: Database, *engines: str) -> Store:
    """A store of its own with these engines registered."""
    store = database.open()
    for engine in engines:
        register(store, engine)
    return store


def register(store: Store, engine: str = ENGINE, boot: str = BOOT) -> None:
    """Register an engine, or its next boot."""
    with store.write() as session:
        register_engine(
            session,
            engine,
            boot_id=boot,
            model="toy",
            fingerprint="f",
            page_tokens=64,
            labels={},
            observed={},
            clock=lambda: NOW,
        )


def resource(engine: str = ENGINE, boot: str = BOOT) -> Resource:
    """What an engine calls itself."""
    return Resource({"service.name": "kvdeck-engine", "kvdeck.engine.id": engine, "kvdeck.engine.boot_id": boot})


def nanoseconds(at: dt.datetime) -> int:
    """Nanoseconds since 1970."""
    return int(at.timestamp() * 1_000_000) * 1000


class Spans:
    """SDK spans of one engine, kept until they are exported: once, twice, or in another order."""

    def __init__(self, engine: str = ENGINE, boot: str = BOOT, scope: str = "kvdeck.engine") -> None:
        self._provider = TracerProvider(resource=resource(engine, boot), shutdown_on_exit=False)
        self._tracer = self._provider.get_tracer(scope)

    def span(self, name: str, attributes: dict[str, Any], at: dt.datetime = NOW) -> ReadableSpan:
        span = self._tracer.start_span(name, attributes=attributes, start_time=nanoseconds(at))
        span.end(end_time=nanoseconds(at) + 1000)
        assert isinstance(span, ReadableSpan)
        return span

    def transition(
        self, version: int, state: str = "FULL", *, prefix: str = PREFIX, at: dt.datetime = NOW, **more: Any
    ) -> ReadableSpan:
        fields = {
            "prefix.id": prefix,
            "namespace": "tenant-a",
            "life": LIFE,
            "version": version,
            "state.from": "NEW" if version == 1 else "FULL",
            "state.to": state,
            "cause": "commit",
            "tokens": 128,
            "pages": 2,
            "bytes": 10,
            "bytes.gpu": 100 + version,
            "objects": json.dumps({"compressed_kv": {"gpu": 100}}),
        } | {name.replace("__", "."): value for name, value in more.items()}
        return self.span("kvcache.transition", {f"kvcache.{name}": value for name, value in fields.items()}, at)

    def validate(self, verdict: str = "pass", reason: str = "none", at: dt.datetime = NOW) -> ReadableSpan:
        return self.span(
            "kvcache.validate",
            {
                "kvcache.prefix.id": PREFIX,
                "kvcache.validation": "tail_intact",
                "kvcache.object.kind": "uncompressed_tail",
                "kvcache.boundary": 128,
                "kvcache.verdict": verdict,
                "kvcache.reason": reason,
            },
            at,
        )

    def acquire(self, usable: int = 64, lcp: int = 100, prompt: int = 200, at: dt.datetime = NOW) -> ReadableSpan:
        return self.span(
            "kvcache.acquire",
            {
                "kvcache.prefix.id": PREFIX,
                "kvcache.namespace": "tenant-a",
                "kvcache.outcome": "partial",
                "kvcache.reason": "window_stale",
                "kvcache.state": "FULL",
                "kvcache.tier": "gpu",
                "kvcache.prompt_tokens": prompt,
                "kvcache.lcp_tokens": lcp,
                "kvcache.usable_tokens": usable,
                "kvcache.replay_tokens": 8,
            },
            at,
        )


def traces(spans: Iterable[ReadableSpan]) -> ExportTraceServiceRequest:
    """The spans as the OTLP exporter encodes them."""
    return encode_spans(list(spans))


def send(store: Store, *spans: ReadableSpan, now: dt.datetime = NOW) -> IngestOutcome:
    """Ingest spans as one export."""
    with store.write() as session:
        return ingest_traces(session, traces(spans), clock=lambda: now)


def counter(name: str, value: float, at: dt.datetime, started: dt.datetime, **attributes: str) -> metrics.Metric:
    """One cumulative counter with one point."""
    point = metrics.NumberDataPoint(_dotted(attributes), nanoseconds(started), nanoseconds(at), value)
    return metrics.Metric(name, "", "1", metrics.Sum([point], metrics.AggregationTemporality.CUMULATIVE, True))


def gauge(name: str, value: float, at: dt.datetime, **attributes: str) -> metrics.Metric:
    """One gauge with one point."""
    point = metrics.NumberDataPoint(_dotted(attributes), 0, nanoseconds(at), value)
    return metrics.Metric(name, "", "1", metrics.Gauge([point]))


def histogram(name: str, counts: list[int], at: dt.datetime, started: dt.datetime, **attributes: str) -> metrics.Metric:
    """One cumulative histogram with bounds 0.001, 0.01, 0.1."""
    point = metrics.HistogramDataPoint(
        attributes=_dotted(attributes),
        start_time_unix_nano=nanoseconds(started),
        time_unix_nano=nanoseconds(at),
        count=sum(counts),
        sum=float(sum(counts)),
        bucket_counts=counts,
        explicit_bounds=[0.001, 0.01, 0.1],
        min=0.0,
        max=1.0,
    )
    return metrics.Metric(name, "", "s", metrics.Histogram([point], metrics.AggregationTemporality.CUMULATIVE))


def _dotted(attributes: dict[str, str]) -> dict[str, str]:
    return {name.replace("__", "."): value for name, value in attributes.items()}


def points(
    *found: metrics.Metric, engine: str = ENGINE, boot: str = BOOT, scope: str = "kvdeck.engine"
) -> ExportMetricsServiceRequest:
    """The metrics as the OTLP exporter encodes them."""
    scoped = metrics.ScopeMetrics(InstrumentationScope(scope), list(found), "")
    return encode_metrics(metrics.MetricsData([metrics.ResourceMetrics(resource(engine, boot), [scoped], "")]))


def send_points(store: Store, *found: metrics.Metric, boot: str = BOOT) -> IngestOutcome:
    """Ingest metrics as one export."""
    with store.write() as session:
        return ingest_metrics(session, points(*found, boot=boot))
