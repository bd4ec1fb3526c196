"""The engine's metrics for Prometheus to pull: the same instruments as over OTLP, under Prometheus' names."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from opentelemetry.sdk.metrics.export import (
    HistogramDataPoint,
    Metric,
    MetricReader,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
)
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from controlplane.errors import SettingsError
from engine.telemetry.registry import INSTRUMENTS, Instrument, InstrumentKind

ENGINE = "engine"
"""The label with the engine's id, on every series: one process may hold several engines."""


class PullReader(MetricReader):
    """Reads the instruments when Prometheus asks, and at no other time."""

    def __init__(self) -> None:
        super().__init__()
        self._one_at_a_time = threading.Lock()
        self._read: MetricsData | None = None

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: Any) -> None:
        self._read = metrics_data

    def families(self) -> list[Family]:
        """What one scrape gets."""
        with self._one_at_a_time:
            self._read = None
            self.collect()
            read: MetricsData | None = self._read
        return [] if read is None else list(families(read))

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:
        """Nothing is kept."""


class _Scrape(Collector):
    def __init__(self, reader: PullReader) -> None:
        self._reader = reader

    def describe(self) -> list[Family]:
        """Nothing: registering must not read the engine."""
        return []

    def collect(self) -> list[Family]:
        return self._reader.families()


class PullEndpoint:
    """`/metrics` over HTTP on one address. Raises SettingsError when the address cannot be had."""

    def __init__(self, host: str, port: int, reader: PullReader) -> None:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Scrape(reader))
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            raise SettingsError(
                "metrics_port",
                f"Metrics cannot be served on {host}:{port}: {error.strerror or error}.",
                "Choose another KVDECK_METRICS_PORT, or leave it unset: the engine then opens no port.",
            ) from None

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_port)

    def close(self) -> None:
        """Stops listening; a scrape under way is answered."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def families(data: MetricsData) -> Iterator[Family]:
    """What an engine's metrics are for Prometheus. Instruments that are not in the registry are left out."""
    found: dict[str, Family] = {}
    for resource in data.resource_metrics:
        who = str(resource.resource.attributes.get("kvdeck.engine.id", ""))
        _add_info(found, resource, who)
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                if (known := INSTRUMENTS.get(metric.name)) is not None:
                    _add(found, known, metric, who)
    yield from found.values()


def _add_info(found: dict[str, Family], resource: ResourceMetrics, who: str) -> None:
    family = found.setdefault(
        "kvcache_engine", InfoMetricFamily("kvcache_engine", "Who speaks: boot, model, version.", labels=[ENGINE])
    )
    shown = ("kvdeck.engine.boot_id", "kvdeck.model", "kvdeck.fingerprint", "service.version")
    value = {name.rpartition(".")[2]: str(resource.resource.attributes.get(name, "")) for name in shown}
    family.add_metric([who], value)  # type: ignore[attr-defined]


def _add(found: dict[str, Family], known: Instrument, metric: Metric, who: str) -> None:
    for point in metric.data.data_points:
        labels: dict[str, str] = {str(k): str(v) for k, v in (point.attributes or {}).items()}
        name = known.pulled.get("") or known.pulled[labels.pop("of")]
        labels = {ENGINE: who} | {key.replace(".", "_"): value for key, value in labels.items()}
        family = found.get(name)
        if family is None:
            family = found[name] = _family(known, name, list(labels))
        _add_point(family, list(labels.values()), point)


def _family(known: Instrument, name: str, labels: Iterable[str]) -> Family:
    labels = list(labels)
    if known.kind is InstrumentKind.COUNTER:
        return CounterMetricFamily(name, known.meaning, labels=labels)
    if known.kind is InstrumentKind.GAUGE:
        return GaugeMetricFamily(name, known.meaning, labels=labels)
    return HistogramMetricFamily(name, known.meaning, labels=labels)


def _add_point(family: Any, labels: list[str], point: Any) -> None:
    if isinstance(point, HistogramDataPoint):
        family.add_metric(labels, _buckets(point), point.sum)
    elif isinstance(point, NumberDataPoint):
        family.add_metric(labels, point.value)


def _buckets(point: HistogramDataPoint) -> list[tuple[str, float]]:
    bounds: Mapping[int, str] = {i: f"{bound:g}" for i, bound in enumerate(point.explicit_bounds)}
    total, found = 0, []
    for i, count in enumerate(point.bucket_counts):
        total += count
        found.append((bounds.get(i, "+Inf"), float(total)))
    return found
