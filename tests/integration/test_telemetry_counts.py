"""Every validation, transition and request the engine counts reaches an OTLP receiver as a span of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from live_support import KIB, engine_config
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from otlp_support import Received, attribute, http_receiver

from controlplane.host.export import build_export
from controlplane.workload.driver import Driver, DriverConfig
from controlplane.workload.generator import Generator, GeneratorConfig
from engine import CacheEngine, preset
from engine.integrations.synthetic import SyntheticModel

REQUESTS = 400


@pytest.fixture
def receiver() -> Iterator[Received]:
    with http_receiver() as found:
        yield found


def test_a_whole_replay_arrives_as_spans_equal_to_the_engines_own_counts(receiver: Received, tmp_path: Path) -> None:
    spec = preset("small-deepseek-v4")
    export = build_export(receiver.url, "", {"service.name": "kvdeck-engine", "kvdeck.engine.id": "count"})
    config = engine_config(tmp_path, gpu_bytes=2048 * KIB, host_bytes=1024 * KIB, disk_bytes=8 * KIB * KIB)
    engine = CacheEngine(spec, config, span_processors=export.span_processors, resource=export.resource)
    requests = islice(Generator(GeneratorConfig(seed=3)), REQUESTS)
    report = Driver(engine, SyntheticModel(spec), DriverConfig(restore_deadline_s=5.0, inflight=4)).run(requests)
    engine.close()
    counters, tally = engine.counters(), engine.spans_recorded()
    export.shutdown()

    names = Counter(span.name for span in receiver.spans)
    assert report.wrong_bytes == 0
    assert counters.requests == REQUESTS
    assert names["kvcache.acquire"] == counters.requests
    assert names["kvcache.validate"] == counters.validations
    assert names["kvcache.transition"] == counters.transitions
    assert sum(names.values()) == tally.recorded
    assert tally.dropped_checks == tally.dropped_requests == 0
    assert counters.transitions > counters.requests  # pressure moved prefixes through the tiers
    assert sum(counters.recoveries.values()) > 0
    ids = [(span.trace_id, span.span_id) for span in receiver.spans]
    assert len(set(ids)) == len(ids)
    assert_versions_are_dense(receiver.spans)
    assert_children_have_their_parents(receiver.spans)


def assert_versions_are_dense(spans: list[Span]) -> None:
    lives: dict[tuple[object, object], list[int]] = {}
    for span in spans:
        if span.name == "kvcache.transition":
            key = attribute(span, "kvcache.prefix.id"), attribute(span, "kvcache.life")
            lives.setdefault(key, []).append(int(str(attribute(span, "kvcache.version"))))
    assert lives
    for versions in lives.values():
        assert sorted(versions) == list(range(1, len(versions) + 1))


def assert_children_have_their_parents(spans: list[Span]) -> None:
    """A validation of a request is a child of that request's acquire."""
    acquires = {span.span_id for span in spans if span.name == "kvcache.acquire"}
    checks = [span for span in spans if span.name == "kvcache.validate"]
    assert all(span.parent_span_id in acquires for span in checks)
