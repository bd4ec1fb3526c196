"""One replay from start to end: engine, synthetic model, driver, and the report whatever happens on the way."""

from __future__ import annotations

import itertools
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricReader, NumberDataPoint

from controlplane.workload.driver import Driver, DriverConfig, engine_facts
from controlplane.workload.generator import Generator, GeneratorConfig
from controlplane.workload.report import Report
from controlplane.workload.request import Request
from controlplane.workload.traces import Trace, TraceError
from engine import CacheEngine, EngineConfig, preset
from engine.integrations.synthetic import SyntheticModel

MIB = 1 << 20

# Sized so that the first 3,000 requests of the Mooncake conversation trace with `small-deepseek-v4` fill every tier and
# find prefixes in each: 28M distinct tokens of 25 bytes; LRU over 50 MB finds 8.5%, over 150 MB 22%, over 550 MB 31%.
GPU_MIB, HOST_MIB, DISK_MIB = 48, 96, 384
GENERATED_REQUESTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """What is replayed into what. Tier sizes in MiB; 0 leaves the tier out.

    `trace` None takes the built-in workload, which has no end: `limit` None is then 1,000 requests. `data_dir` None
    puts the disk tier into a temporary folder that is removed at the end.
    """

    trace: Path | None
    spec: str = "small-deepseek-v4"
    limit: int | None = None
    namespace: str = "default"
    gpu_mib: int = GPU_MIB
    host_mib: int = HOST_MIB
    disk_mib: int = DISK_MIB
    data_dir: Path | None = None
    device: str = "cpu"
    codec: str = "lossless"
    mode: str = "normal"
    cap_prefixes: int | None = None
    checkpoint_every_tokens: int = 0
    materialise: bool = True
    block_tokens: int | None = None
    time_unit: str | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """The report and the engine's own facts; `error` is the broken line that ended the trace early, if one did."""

    report: Report
    engine: dict[str, Any]
    error: TraceError | None = None
    interrupted: bool = False

    @property
    def failed(self) -> bool:
        """Wrong bytes, a broken invariant or a broken trace: anything that a script must not take for success."""
        return bool(self.report.wrong_bytes or self.engine["violations"] or self.error)

    def as_dict(self) -> dict[str, Any]:
        return self.report.as_dict(self.engine) | {
            "error": None if self.error is None else {"line": self.error.line, "message": str(self.error)},
            "interrupted": self.interrupted,
        }


def run_replay(
    config: ReplayConfig,
    driving: DriverConfig,
    *,
    stop: threading.Event | None = None,
    on_request: Callable[[Report], None] | None = None,
) -> ReplayResult:
    """Replay a trace. Raises `TraceError` only when nothing of it can be read, `EngineError` for a bad setting.

    `stop` ends it after the request in hand; a broken line ends it too, with all requests before it counted.
    """
    stop = stop or threading.Event()
    requests = _requests(config)
    spec = preset(config.spec)
    error: TraceError | None = None
    reader = InMemoryMetricReader()
    with _data_dir(config) as folder, _engine(config, folder, reader) as engine:
        model = SyntheticModel(spec, config.seed, device=config.device, codec=config.codec)
        driver = Driver(engine, model if config.materialise else None, driving, stop=stop, on_request=on_request)
        try:
            driver.run(requests)
        except TraceError as broken:
            error = broken
        facts = engine_facts(engine) | {"bytes_moved": _bytes_moved(reader)}
    return ReplayResult(report=driver.report, engine=facts, error=error, interrupted=stop.is_set())


def _requests(config: ReplayConfig) -> Iterator[Request]:
    if config.trace is None:
        return itertools.islice(Generator(GeneratorConfig(seed=config.seed)), config.limit or GENERATED_REQUESTS)
    trace = Trace(config.trace, block_tokens=config.block_tokens, time_unit=config.time_unit)
    return trace.requests(config.namespace, config.limit)


@contextmanager
def _data_dir(config: ReplayConfig) -> Iterator[Path | None]:
    if config.disk_mib == 0 or config.data_dir is not None:
        yield config.data_dir if config.disk_mib else None
        return
    with tempfile.TemporaryDirectory(prefix="kvdeck-replay-") as folder:
        yield Path(folder)


@contextmanager
def _engine(config: ReplayConfig, data_dir: Path | None, reader: MetricReader) -> Iterator[CacheEngine]:
    settings = EngineConfig(
        gpu_bytes=config.gpu_mib * MIB,
        host_bytes=config.host_mib * MIB,
        disk_bytes=config.disk_mib * MIB,
        data_dir=data_dir,
        device=config.device,
        materialise=config.materialise,
        mode=config.mode,
        cap_prefixes=config.cap_prefixes,
        codec=config.codec,
        checkpoint_every_tokens=config.checkpoint_every_tokens,
        engine_id="replay",
    )
    meters = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    try:
        with CacheEngine(preset(config.spec), settings, meter_provider=meters) as engine:
            yield engine
    finally:
        meters.shutdown()


def _bytes_moved(reader: InMemoryMetricReader) -> dict[str, int]:
    """Bytes by tier and direction, from the metric an operator would look at."""
    data = reader.get_metrics_data()
    scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics] if data else []
    points = [
        point
        for scope in scopes
        for metric in scope.metrics
        if metric.name == "kvcache.tier.io.bytes"
        for point in metric.data.data_points
        if isinstance(point, NumberDataPoint)
    ]
    return {" ".join(str(v) for v in dict(p.attributes or {}).values()): int(p.value) for p in points}
