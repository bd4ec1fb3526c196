"""Builds what the engine speaks through: the history, tracing backends, and metrics that are pushed or pulled.

A receiver that is down costs the engine nothing but memory up to a bound (sender.py). The history's exporter takes
nothing from the `OTEL_*` variables: these are for backends, and their headers may hold another service's key.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor
from requests.auth import AuthBase
from requests.utils import DEFAULT_CA_BUNDLE_PATH

from controlplane.host.backends import Backend
from controlplane.host.pull import PullEndpoint, PullReader
from controlplane.host.sender import SHUTDOWN_SECONDS, SpanSender
from controlplane.settings import VoiceSettings

METRIC_INTERVAL_MILLISECONDS = 2_000
METRIC_TIMEOUT_SECONDS = 2.0
SPAN_TIMEOUT_SECONDS = 10.0  # a busy database may take its time; the end of the process does not wait for it

# What these say of a receiver that is down is said once by the agent; at every batch it would flood the terminal.
NOISY_LOGGERS = (
    "opentelemetry.exporter",
    "opentelemetry.sdk._shared_internal",
    "opentelemetry.sdk.metrics",
    "opentelemetry.sdk.trace",
    "urllib3.connectionpool",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What the engine needs to speak: where finished spans go, where its instruments live, and how to end it.

    `history` and `backends` are among the `span_processors`; `endpoint` is there when metrics are pulled.
    """

    resource: Resource
    span_processors: tuple[SpanProcessor, ...]
    meter_provider: MeterProvider
    history: SpanSender | None
    backends: tuple[SpanSender, ...]
    endpoint: PullEndpoint | None

    def shutdown(self) -> None:
        """Sends what can still be sent and ends; takes a few seconds at most, also with the receivers down."""
        if self.endpoint is not None:
            self.endpoint.close()
        # All at once: each has its own bound, and they do not depend on one another.
        threads = [threading.Thread(target=self._shutdown_metrics, daemon=True)]
        threads += [threading.Thread(target=processor.shutdown, daemon=True) for processor in self.span_processors]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SHUTDOWN_SECONDS + METRIC_TIMEOUT_SECONDS)

    def _shutdown_metrics(self) -> None:
        self.meter_provider.shutdown(timeout_millis=int(SHUTDOWN_SECONDS * 1000))


def build_export(
    endpoint: str,
    token: str,
    resource_attributes: Mapping[str, str],
    *,
    voice: VoiceSettings | None = None,
    backends: Sequence[Backend] = (),
) -> Export:
    """Exporters to the control plane at `endpoint` (its base URL; empty: none) and to what `voice` and `backends` name.

    Raises SettingsError for a port that is taken, or for a protocol whose package is not installed.
    """
    _quieten()
    voice = voice or VoiceSettings()
    found = [*([Backend.of(voice)] if voice.has_backend else []), *backends]
    resource = Resource.create(_named(resource_attributes, voice))
    history = SpanSender(_history_spans(endpoint, token), name="the control plane") if endpoint else None
    senders = tuple(backend.sender() for backend in found if backend.traces)
    pull = PullReader() if voice.metrics_port else None
    exporters: list[MetricExporter] = [_history_metrics(endpoint, token)] if endpoint else []
    exporters += [backend.metric_exporter() for backend in found if backend.metrics]
    readers: list[MetricReader] = [_periodic(exporter) for exporter in exporters]
    provider = MeterProvider(
        metric_readers=[*readers, *([pull] if pull else [])], resource=resource, shutdown_on_exit=False
    )
    return Export(
        resource=resource,
        span_processors=(*([history] if history else []), *senders),
        meter_provider=provider,
        history=history,
        backends=senders,
        endpoint=PullEndpoint(voice.metrics_host, voice.metrics_port, pull) if pull else None,
    )


def _named(attributes: Mapping[str, str], voice: VoiceSettings) -> dict[str, Any]:
    # The SDK puts OTEL_SERVICE_NAME below what the program says; here it is the person's word against a default.
    return {**attributes, "service.name": voice.service_name} if voice.service_name else dict(attributes)


def _periodic(exporter: MetricExporter) -> PeriodicExportingMetricReader:
    return PeriodicExportingMetricReader(
        exporter,
        export_interval_millis=METRIC_INTERVAL_MILLISECONDS,
        export_timeout_millis=METRIC_TIMEOUT_SECONDS * 1000,
    )


def _history_spans(endpoint: str, token: str) -> OTLPSpanExporter:
    return OTLPSpanExporter(
        endpoint=f"{endpoint.rstrip('/')}/v1/traces",
        timeout=SPAN_TIMEOUT_SECONDS,
        compression=Compression.Gzip,
        certificate_file=DEFAULT_CA_BUNDLE_PATH,
        session=_session(token),
    )


def _history_metrics(endpoint: str, token: str) -> OTLPMetricExporter:
    return OTLPMetricExporter(
        endpoint=f"{endpoint.rstrip('/')}/v1/metrics",
        timeout=METRIC_TIMEOUT_SECONDS,
        compression=Compression.NoCompression,
        certificate_file=DEFAULT_CA_BUNDLE_PATH,
        session=_session(token),
    )


class _OnlyOurs(AuthBase):
    """Sends our token, and none of the headers that `OTEL_EXPORTER_OTLP_HEADERS` names for somebody else."""

    KEPT = ("accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "host")

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        for name in [name for name in request.headers if name.lower() not in self.KEPT]:
            del request.headers[name]
        if self._token:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return request


def _session(token: str) -> requests.Session:
    session = requests.Session()
    session.auth = _OnlyOurs(token)
    session.trust_env = False  # a proxy named in the environment is not for a control plane on the same network
    return session


def _quieten() -> None:
    for name in NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
