"""Every validation, transition and request the engine counts reaches an OTLP receiver as a span of its own."""

from __future__ import annotations

import gzip
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path

import pytest
from live_support import KIB, engine_config
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from controlplane.host.export import build_export
from controlplane.workload.driver import Driver, DriverConfig
from controlplane.workload.generator import Generator, GeneratorConfig
from engine import CacheEngine, preset
from engine.integrations.synthetic import SyntheticModel

REQUESTS = 400


class Receiver:
    """A small but real OTLP/HTTP receiver: it decodes what comes and keeps the spans."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.raw = bytearray()
        keep = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                if self.path == "/v1/traces":
                    keep.raw += body
                    message = ExportTraceServiceRequest.FromString(body)
                    for resource in message.resource_spans:
                        for scope in resource.scope_spans:
                            keep.spans.extend(scope.spans)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = False
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


def attribute(span: Span, name: str) -> object:
    for item in span.attributes:
        if item.key == name:
            return getattr(item.value, str(item.value.WhichOneof("value")))
    return None


def test_a_whole_replay_arrives_as_spans_equal_to_the_engines_own_counts(receiver: Receiver, tmp_path: Path) -> None:
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


def test_no_token_id_and_no_prompt_leaves_the_engine(receiver: Receiver, tmp_path: Path) -> None:
    import numpy as np

    spec = preset("small-deepseek-v4")
    export = build_export(receiver.url, "", {"service.name": "kvdeck-engine"})
    engine = CacheEngine(
        spec, engine_config(tmp_path), span_processors=export.span_processors, resource=export.resource
    )
    model = SyntheticModel(spec)
    tokens = np.full(640, 1_734_829_927, dtype=np.int32)  # one id, easy to find: its bytes spell "gggg"
    with engine.acquire(tokens) as lease:
        engine.commit(tokens, model.prefill(tokens, 0, [640]), lease=lease)
    engine.close()
    export.shutdown()
    assert receiver.spans
    assert b"1734829927" not in receiver.raw
    assert b"gggg" not in receiver.raw
