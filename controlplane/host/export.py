"""Builds the ordinary OpenTelemetry exporters the engine's pump feeds, bounded in memory and in time.

A receiver that is down costs the engine nothing but memory up to the bounds here: span batches that could not be sent
are kept and sent again, oldest first, until the backlog is full; then the oldest go, and are counted.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

QUEUE_SPANS = 65_536
BATCH_SPANS = 2_048
SCHEDULE_MILLISECONDS = 500
METRIC_INTERVAL_MILLISECONDS = 2_000
EXPORT_TIMEOUT_SECONDS = 2.0
BACKLOG_SPANS = 65_536
DOUBT_EVERY = 10  # failures in a row
SHUTDOWN_MILLISECONDS = 3_000

# What these say of a receiver that is down is said once by the agent; at every batch it would flood the terminal.
NOISY_LOGGERS = (
    "opentelemetry.exporter",
    "opentelemetry.sdk._shared_internal",
    "opentelemetry.sdk.metrics",
    "opentelemetry.sdk.trace",
    "urllib3.connectionpool",
)


class BacklogExporter(SpanExporter):
    """Keeps batches the wrapped exporter failed to send and sends them before newer ones; bounded by spans."""

    def __init__(self, exporter: SpanExporter, most_spans: int = BACKLOG_SPANS) -> None:
        self._exporter = exporter
        self._most_spans = most_spans
        self._batches: deque[Sequence[ReadableSpan]] = deque()
        self._spans = 0
        self._failures = 0  # in a row
        self._closing = threading.Event()
        self.dropped_spans = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Sends the backlog and then `spans`; stops at the first failure, as the receiver is most likely down."""
        self._keep(spans)
        while self._batches:
            if self._exporter.export(self._batches[0]) is not SpanExportResult.SUCCESS:
                self._doubt_oldest()
                return SpanExportResult.FAILURE
            self._spans -= len(self._batches.popleft())
            self._failures = 0
            if self._closing.is_set():
                break
        return SpanExportResult.SUCCESS

    def _doubt_oldest(self) -> None:
        # A batch the receiver will never take must not hold up the others: if the newest one goes through, it is bad.
        self._failures += 1
        if self._failures % DOUBT_EVERY or len(self._batches) < 2 or self._closing.is_set():
            return
        if self._exporter.export(self._batches[-1]) is SpanExportResult.SUCCESS:
            self._spans -= len(self._batches.pop())
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        oldest = self._batches.popleft()
        self._spans -= len(oldest)
        self.dropped_spans += len(oldest)

    def _keep(self, spans: Sequence[ReadableSpan]) -> None:
        self._batches.append(spans)
        self._spans += len(spans)
        while self._spans > self._most_spans and len(self._batches) > 1:
            self._drop_oldest()

    @property
    def waiting_spans(self) -> int:
        """Spans that are kept to be sent again."""
        return self._spans

    def shutdown(self) -> None:
        """Ends the wrapped exporter; what is still kept is given up."""
        self._closing.set()
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = SHUTDOWN_MILLISECONDS) -> bool:
        """Nothing is buffered but the backlog, which only a receiver that is back can take."""
        return self._exporter.force_flush(timeout_millis)


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What the engine needs to speak: where finished spans go, where its instruments live, and how to end it."""

    resource: Resource
    span_processors: tuple[SpanProcessor, ...]
    meter_provider: MeterProvider
    backlog: BacklogExporter

    def shutdown(self) -> None:
        """Sends what can still be sent and ends; takes a few seconds at most, also with the receiver down."""
        # Both at once: each has its own bound, and they do not depend on one another.
        threads = [threading.Thread(target=self._shutdown_metrics, daemon=True)]
        threads += [
            threading.Thread(target=_shutdown_spans, args=(processor,), daemon=True)
            for processor in self.span_processors
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SHUTDOWN_MILLISECONDS / 1000 + EXPORT_TIMEOUT_SECONDS)

    def _shutdown_metrics(self) -> None:
        self.meter_provider.shutdown(timeout_millis=SHUTDOWN_MILLISECONDS)


def build_export(endpoint: str, token: str, resource_attributes: Mapping[str, str]) -> Export:
    """Exporters of spans and metrics over OTLP/HTTP to the receiver at `endpoint` (its base URL)."""
    _quieten()
    base = endpoint.rstrip("/")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    resource = Resource.create(dict(resource_attributes))
    spans = OTLPSpanExporter(
        endpoint=f"{base}/v1/traces", headers=headers, timeout=EXPORT_TIMEOUT_SECONDS, compression=Compression.Gzip
    )
    backlog = BacklogExporter(spans)
    processor = BatchSpanProcessor(
        backlog,
        max_queue_size=QUEUE_SPANS,
        max_export_batch_size=BATCH_SPANS,
        schedule_delay_millis=SCHEDULE_MILLISECONDS,
    )
    metrics = OTLPMetricExporter(endpoint=f"{base}/v1/metrics", headers=headers, timeout=EXPORT_TIMEOUT_SECONDS)
    reader = PeriodicExportingMetricReader(
        metrics,
        export_interval_millis=METRIC_INTERVAL_MILLISECONDS,
        export_timeout_millis=EXPORT_TIMEOUT_SECONDS * 1000,
    )
    provider = MeterProvider(metric_readers=[reader], resource=resource, shutdown_on_exit=False)
    return Export(resource=resource, span_processors=(processor,), meter_provider=provider, backlog=backlog)


def _shutdown_spans(processor: SpanProcessor) -> None:
    # The SDK's own bound is a parameter here only; its default of 30 seconds is what a dead receiver would cost.
    if isinstance(processor, BatchSpanProcessor):
        processor._batch_processor.shutdown(timeout_millis=SHUTDOWN_MILLISECONDS)
    else:
        processor.shutdown()


def _quieten() -> None:
    for name in NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
