"""Small but real OTLP receivers, over HTTP and gRPC, plain and TLS: they decode what comes and keep it all."""

from __future__ import annotations

import gzip
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import trustme
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

TRACES = trace_service_pb2.ExportTraceServiceRequest
METRICS = metrics_service_pb2.ExportMetricsServiceRequest


@dataclass
class Received:
    """All that one receiver was sent."""

    url: str = ""
    spans: list[Span] = field(default_factory=list)
    resources: list[Resource] = field(default_factory=list)
    schema_urls: set[str] = field(default_factory=set)
    metric_names: set[str] = field(default_factory=set)
    headers: list[dict[str, str]] = field(default_factory=list)
    raw: bytearray = field(default_factory=bytearray)
    sizes: list[int] = field(default_factory=list)

    def take_traces(self, message: Any, headers: dict[str, str]) -> None:
        self.headers.append(headers)
        self.sizes.append(message.ByteSize())
        for resource in message.resource_spans:
            self.resources.append(resource.resource)
            for scope in resource.scope_spans:
                self.schema_urls.add(scope.schema_url)
                self.spans.extend(scope.spans)

    def take_metrics(self, message: Any, headers: dict[str, str]) -> None:
        self.headers.append(headers)
        for resource in message.resource_metrics:
            for scope in resource.scope_metrics:
                self.metric_names |= {metric.name for metric in scope.metrics}


class _Authority:
    """A certificate authority of this test alone, and a server's certificate by it."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        self.server = authority.issue_cert("127.0.0.1", "localhost")
        self.client = authority.issue_cert("engine.test")
        self.root_file = folder / "root.pem"
        self.client_file, self.client_key_file = folder / "client.pem", folder / "client.key"
        authority.cert_pem.write_to_path(self.root_file)
        self.client.cert_chain_pems[0].write_to_path(self.client_file)
        self.client.private_key_pem.write_to_path(self.client_key_file)
        self.root_pem = authority.cert_pem.bytes()

    def context(self) -> ssl.SSLContext:
        found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.server.configure_cert(found)
        found.load_verify_locations(self.root_file)
        found.verify_mode = ssl.CERT_REQUIRED  # who speaks must show a certificate too
        return found

    def credentials(self) -> Any:
        key, chain = self.server.private_key_pem.bytes(), self.server.cert_chain_pems[0].bytes()
        return grpc.ssl_server_credentials([(key, chain)], self.root_pem, require_client_auth=True)


def authority(folder: Path) -> _Authority:
    """A new authority with its files in `folder`."""
    return _Authority(folder)


@contextmanager
def http_receiver(tls: _Authority | None = None) -> Iterator[Received]:
    """Takes OTLP over HTTP on a free port of 127.0.0.1."""
    found = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            headers = {name.lower(): value for name, value in self.headers.items()}
            found.raw += body
            if self.path == "/v1/traces":
                found.take_traces(TRACES.FromString(body), headers)
            elif self.path == "/v1/metrics":
                found.take_metrics(METRICS.FromString(body), headers)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False
    if tls is not None:
        server.socket = tls.context().wrap_socket(server.socket, server_side=True)
    found.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Service:
    def __init__(self, received: Received, answer: Any, take: Any) -> None:
        self._received, self._answer, self._take = received, answer, take

    def Export(self, request: Any, context: Any) -> Any:
        self._received.raw += request.SerializeToString()
        self._take(request, {item.key: item.value for item in context.invocation_metadata()})
        return self._answer()


@contextmanager
def grpc_receiver(tls: _Authority | None = None) -> Iterator[Received]:
    """Takes OTLP over gRPC, with gRPC's own limits, on a free port of 127.0.0.1."""
    found = Received()
    server = grpc.server(ThreadPoolExecutor(4))
    traces = _Service(found, trace_service_pb2.ExportTraceServiceResponse, found.take_traces)
    metrics = _Service(found, metrics_service_pb2.ExportMetricsServiceResponse, found.take_metrics)
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(traces, server)  # type: ignore[no-untyped-call]
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(metrics, server)  # type: ignore[no-untyped-call]
    address = "127.0.0.1:0"
    port = server.add_secure_port(address, tls.credentials()) if tls else server.add_insecure_port(address)
    found.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    server.start()
    try:
        yield found
    finally:
        server.stop(None).wait()


def attribute(span: Span, name: str) -> Any:
    """The value of one attribute; None where it is absent."""
    for item in span.attributes:
        if item.key == name:
            return getattr(item.value, str(item.value.WhichOneof("value")))
    return None
