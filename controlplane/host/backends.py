"""One tracing backend, over OTLP in HTTP or gRPC: what the standard `OTEL_*` variables say, unless the code says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import MetricExporter
from opentelemetry.sdk.trace.export import SpanExporter

from controlplane.errors import SettingsError
from controlplane.host.sampling import Sampling
from controlplane.host.sender import BATCH_SPANS, SpanSender
from controlplane.settings import GRPC, HTTP, VoiceSettings

# gRPC receivers take 4 MiB a message unless told otherwise; a span with its JSON texts is up to 2 KiB.
GRPC_BATCH_SPANS = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """Where spans, and metrics, go beside the history. `endpoint`, `headers` and `certificate_file` come before the
    `OTEL_EXPORTER_OTLP_*` variables; what is empty here is read from these by the exporters. An `endpoint` is a base
    URL for HTTP, host and port for gRPC.
    """

    protocol: str = HTTP
    metrics_protocol: str = ""  # empty: the same
    endpoint: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    certificate_file: str | None = None
    timeout_seconds: float | None = None  # None: OTEL_EXPORTER_OTLP_TIMEOUT, 10 s by default
    sampling: Sampling = field(default_factory=Sampling)
    traces: bool = True
    metrics: bool = True

    @classmethod
    def of(cls, voice: VoiceSettings) -> Backend:
        """The one that the environment names."""
        return cls(
            protocol=voice.traces_protocol,
            metrics_protocol=voice.metrics_protocol,
            sampling=Sampling(ratio=voice.sampler_ratio, follow_caller=voice.sampler_follows_caller),
            traces=voice.traces,
            metrics=voice.metrics,
        )

    def sender(self) -> SpanSender:
        """Its span processor. Raises SettingsError when gRPC is asked for and not installed."""
        batch = GRPC_BATCH_SPANS if self.protocol == GRPC else BATCH_SPANS
        name = self.endpoint or "the tracing backend"
        return SpanSender(self._span_exporter(), keeps=self.sampling.keeps, batch_spans=batch, name=name)

    def _span_exporter(self) -> SpanExporter:
        if self.protocol == GRPC:
            return _grpc("trace_exporter").OTLPSpanExporter(**self._grpc_options())  # type: ignore[no-any-return]
        return OTLPSpanExporter(**self._http_options("traces"))

    def metric_exporter(self) -> MetricExporter:
        """Its exporter of metrics. Raises as `sender` does."""
        if (self.metrics_protocol or self.protocol) == GRPC:
            return _grpc("metric_exporter").OTLPMetricExporter(**self._grpc_options())  # type: ignore[no-any-return]
        return OTLPMetricExporter(**self._http_options("metrics"))

    def _http_options(self, signal: str) -> dict[str, Any]:
        return {
            "endpoint": f"{self.endpoint.rstrip('/')}/v1/{signal}" if self.endpoint else None,
            "headers": dict(self.headers) or None,
            "certificate_file": self.certificate_file,
            "timeout": self.timeout_seconds,
            "session": _NamedCertificateFirst(),
        }

    def _grpc_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "endpoint": self.endpoint or None,
            "headers": tuple(self.headers.items()) or None,
            "timeout": self.timeout_seconds,
        }
        if self.certificate_file:
            options["credentials"] = _grpc_credentials(self.certificate_file)
        return options


class _NamedCertificateFirst(requests.Session):
    """`requests` lets REQUESTS_CA_BUNDLE overrule a session's own certificate; the one named for the backend holds."""

    def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
        return super().merge_environment_settings(
            url, proxies, stream, self.verify if verify is None else verify, cert
        )  # fmt: skip


def _grpc(part: str) -> Any:
    import importlib

    try:
        return importlib.import_module(f"opentelemetry.exporter.otlp.proto.grpc.{part}")
    except ImportError as error:
        raise SettingsError(
            "grpc_missing",
            f"OTLP over gRPC was asked for, and its package is not installed ({error.name}).",
            "Install kvdeck[grpc], or set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf.",
        ) from None


def _grpc_credentials(certificate_file: str) -> Any:
    import grpc

    with open(certificate_file, "rb") as file:
        return grpc.ssl_channel_credentials(file.read())
