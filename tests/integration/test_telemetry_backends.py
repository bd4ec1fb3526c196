"""An engine speaks to its history and to tracing backends at once, as the standard OTEL_* variables say."""

from __future__ import annotations

import gc
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_support import SpanLog
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from otlp_support import Received, attribute, authority, grpc_receiver, http_receiver
from telemetry_support import SPEC, loud_config, replay, say_everything

from controlplane.errors import SettingsError
from controlplane.host.backends import GRPC_BATCH_SPANS, Backend
from controlplane.host.export import Export, build_export
from controlplane.host.sampling import Sampling
from controlplane.settings import VoiceSettings
from engine import CacheEngine
from engine.telemetry.identity import identity_of
from engine.telemetry.registry import INSTRUMENTS, RESOURCE, SCHEMA_URL

RECEIVERS = {"http/protobuf": http_receiver, "grpc": grpc_receiver}
CALLER = f"00-{'ab' * 16}-{'cd' * 8}-"


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> Callable[..., VoiceSettings]:
    """Sets OTEL_* variables and reads them as an engine host does."""

    def put(**values: str) -> VoiceSettings:
        for name, value in values.items():
            monkeypatch.setenv(f"OTEL_{name}", value)
        return VoiceSettings.from_environment()

    return put


# Once in seven runs under load a client's TLS socket was left to the garbage collector. Whose it is was not found; what
# arrives and what is dropped is asserted all the same.
LEFT_OVER = r"ignore:Exception ignored in. <ssl\.SSLSocket:pytest.PytestUnraisableExceptionWarning"
pytestmark = pytest.mark.filterwarnings(LEFT_OVER)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An end that waits until all is sent: a busy machine may want longer than the end of a process is worth."""
    for name, seconds in (("export.SHUTDOWN_SECONDS", 60.0), ("sender.SHUTDOWN_SECONDS", 60.0),
                          ("export.METRIC_TIMEOUT_SECONDS", 30.0)):  # fmt: skip
        monkeypatch.setattr(f"controlplane.host.{name}", seconds)


@contextmanager
def speaking(
    history: Received | None, folder: Path, *, voice: VoiceSettings | None = None, backends: tuple[Backend, ...] = ()
) -> Iterator[tuple[CacheEngine, Export]]:
    """A loud engine; at the end of the block everything has been sent."""
    url = history.url if history else ""
    export = build_export(url, "secret", identity_of("loud", "boot", SPEC), voice=voice, backends=backends)
    with ExitStack() as parts:
        parts.callback(export.shutdown)
        engine = CacheEngine(
            SPEC, loud_config(folder), span_processors=export.span_processors, meter_provider=export.meter_provider,
            resource=export.resource, boot_id="boot",
        )  # fmt: skip
        parts.callback(engine.close)
        yield engine, export
    gc.collect()  # so that a socket left over counts as this test's, where it is expected


def commit(engine: CacheEngine, seed: int, **how: Any) -> None:
    tokens = np.random.default_rng(seed).integers(0, 1000, 3 * SPEC.page_tokens, dtype=np.int32)
    from engine.integrations.synthetic import SyntheticModel

    with engine.acquire(tokens, **how) as lease:
        engine.commit(tokens, SyntheticModel(SPEC).prefill(tokens, 0, [len(tokens)]), lease=lease)


@pytest.mark.parametrize("protocol", RECEIVERS)
@pytest.mark.usefixtures("patient")
def test_history_and_backend_both_get_every_span_and_metric(
    protocol: str, tmp_path: Path, variables: Callable[..., VoiceSettings]
) -> None:
    with http_receiver() as history, RECEIVERS[protocol]() as backend:
        voice = variables(
            EXPORTER_OTLP_ENDPOINT=backend.url, EXPORTER_OTLP_PROTOCOL=protocol,
            EXPORTER_OTLP_HEADERS="x-tenant=blue,authorization=Basic Zm9v", RESOURCE_ATTRIBUTES="zone=a",
        )  # fmt: skip
        with speaking(history, tmp_path, voice=voice) as (engine, export):
            say_everything(engine, 60)
    tally = engine.spans_recorded()
    assert export.history is not None
    assert (export.history.dropped_spans, export.backends[0].dropped_spans) == (0, 0)
    for received in (history, backend):
        assert Counter(span.name for span in received.spans) == Counter(tally.by_name)
        assert received.schema_urls == {SCHEMA_URL}
        assert received.metric_names == INSTRUMENTS.keys()
        (resource,) = {frozenset((a.key, a.value.string_value) for a in r.attributes) for r in received.resources}
        assert RESOURCE.keys() - {"kvdeck.faults.armed"} <= dict(resource).keys()
        assert dict(resource)["zone"] == "a"
    assert {h["x-tenant"] for h in backend.headers} == {"blue"}
    assert {h["authorization"] for h in backend.headers} == {"Basic Zm9v"}
    # What is meant for the backend stays with the backend.
    assert all("x-tenant" not in h for h in history.headers)
    assert {h["authorization"] for h in history.headers} == {"Bearer secret"}
    assert max(backend.sizes) < 4 << 20


@pytest.mark.parametrize("protocol", RECEIVERS)
@pytest.mark.usefixtures("patient")
def test_a_backend_behind_tls_with_certificates_on_both_sides(
    protocol: str, tmp_path: Path, variables: Callable[..., VoiceSettings]
) -> None:
    tls = authority(tmp_path)
    with RECEIVERS[protocol](tls) as backend:
        voice = variables(
            EXPORTER_OTLP_ENDPOINT=backend.url, EXPORTER_OTLP_PROTOCOL=protocol,
            EXPORTER_OTLP_CERTIFICATE=str(tls.root_file), EXPORTER_OTLP_CLIENT_CERTIFICATE=str(tls.client_file),
            EXPORTER_OTLP_CLIENT_KEY=str(tls.client_key_file),
        )  # fmt: skip
        with speaking(None, tmp_path / "engine", voice=voice) as (engine, _):
            commit(engine, 1)
    assert Counter(span.name for span in backend.spans) == Counter(engine.spans_recorded().by_name)
    assert backend.metric_names


@pytest.mark.parametrize("protocol", RECEIVERS)
def test_a_backend_whose_certificate_is_not_trusted_gets_nothing(
    protocol: str, tmp_path: Path, variables: Callable[..., VoiceSettings]
) -> None:
    tls = authority(tmp_path)
    with RECEIVERS[protocol](tls) as backend:
        voice = variables(EXPORTER_OTLP_ENDPOINT=backend.url, EXPORTER_OTLP_PROTOCOL=protocol)
        with speaking(None, tmp_path / "engine", voice=voice) as (engine, export):
            commit(engine, 1)
    assert not backend.spans
    assert export.backends[0].dropped_spans == engine.spans_recorded().recorded


@pytest.mark.usefixtures("patient")
def test_several_backends_beside_the_history_each_with_its_own_sampling(tmp_path: Path) -> None:
    few, none = Sampling(ratio=0.2), Sampling(ratio=0.0)
    with http_receiver() as history, http_receiver() as some, grpc_receiver() as least:
        backends = (
            Backend(endpoint=some.url, sampling=few),
            Backend(protocol="grpc", endpoint=least.url, sampling=none, metrics=False),
        )
        with speaking(history, tmp_path, backends=backends) as (engine, export):
            say_everything(engine, 200)
    tally = engine.spans_recorded()
    assert len(history.spans) == tally.recorded
    click = bytes.fromhex("c1" * 16)  # the operator's trace is sampled: it is kept whole
    vital = {key(span) for span in history.spans if is_vital(span) or span.trace_id == click}
    assert vital == {key(span) for span in least.spans}
    assert vital < {key(span) for span in some.spans} < {key(span) for span in history.spans}
    bound = 0.2 * 2**64  # of the trace id's lower half, as OpenTelemetry's own sampler does
    expected = {
        key(span)
        for span in history.spans
        if is_vital(span) or span.trace_id == click or int.from_bytes(span.trace_id[8:], "big") < bound
    }
    assert {key(span) for span in some.spans} == expected
    assert export.backends[0].passed_spans == tally.recorded - len(some.spans)
    assert not least.metric_names
    assert some.metric_names == history.metric_names


def is_vital(span: Any) -> bool:
    return span.name in ("kvcache.transition", "kvcache.command") or span.status.code == 2


def key(span: Any) -> tuple[bytes, bytes]:
    return span.trace_id, span.span_id


def test_a_callers_trace_goes_on_with_its_state_and_its_decision(tmp_path: Path) -> None:
    with http_receiver() as history, http_receiver() as backend:
        backends = (Backend(endpoint=backend.url, sampling=Sampling(ratio=0.0)),)
        with speaking(history, tmp_path, backends=backends) as (engine, _):
            commit(engine, 1, traceparent=f"{CALLER}01", tracestate="vendor=a,other=b")
            commit(engine, 2, traceparent=f"00-{'ef' * 16}-{'cd' * 8}-00")
            commit(engine, 3)
    first, second, third = (span for span in history.spans if span.name == "kvcache.acquire")
    assert (first.trace_id.hex(), second.trace_id.hex()) == ("ab" * 16, "ef" * 16)
    for span in (first, second):
        assert span.parent_span_id == bytes.fromhex("cd" * 8)
        assert span.flags & 0x300 == 0x300  # the parent is another process's
    children = [span for span in history.spans if span.parent_span_id == first.span_id]
    assert {span.name for span in children} >= {"kvcache.commit"}
    for span in children:
        assert span.trace_state == first.trace_state == "vendor=a,other=b"
        assert span.flags & 0x300 == 0x100  # the parent is ours
    # Ratio 0 for traces that begin here; of the caller's two the sampled one is kept whole; transitions always.
    for trace_id, whole in ((first.trace_id, True), (second.trace_id, False), (third.trace_id, False)):
        said = {key(span): span.name for span in history.spans if span.trace_id == trace_id}
        kept = {key(span) for span in backend.spans if span.trace_id == trace_id}
        assert kept == {k for k, name in said.items() if whole or name == "kvcache.transition"}
        assert {"kvcache.acquire", "kvcache.commit", "kvcache.transition"} <= set(said.values())


def test_an_ordinary_processor_sees_the_callers_decision_but_for_what_is_vital(tmp_path: Path) -> None:
    log = SpanLog()
    with CacheEngine(SPEC, loud_config(tmp_path), span_processors=[log]) as engine:
        commit(engine, 1, traceparent=f"{CALLER}00")
    mine = [span for span in log.spans if span.context and span.context.trace_id == int("ab" * 16, 16)]
    decided = {span.name: bool(span.context.trace_flags.sampled) for span in mine if span.context}
    assert decided == {"kvcache.acquire": False, "kvcache.commit": False, "kvcache.transition": True}


def test_the_current_opentelemetry_span_is_the_parent_when_none_is_passed(tmp_path: Path) -> None:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("caller")
    silent = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False).get_tracer("caller")
    log = SpanLog()
    with CacheEngine(SPEC, loud_config(tmp_path), span_processors=[log]) as engine:
        with tracer.start_as_current_span("request") as caller:
            commit(engine, 1)
        with silent.start_as_current_span("request") as unsampled:
            commit(engine, 2)
            commit(engine, 3, traceparent="")  # nobody's child, whatever is current
    acquires = [span for span in log.spans if span.name == "kvcache.acquire"]
    for span, parent in zip(acquires, (caller, unsampled), strict=False):
        context = parent.get_span_context()
        assert (span.context.trace_id, span.parent.span_id) == (context.trace_id, context.span_id)
        assert span.parent.is_remote
        assert span.context.trace_flags.sampled == context.trace_flags.sampled
    assert acquires[2].parent is None
    commits = [span for span in log.spans if span.name == "kvcache.commit"]
    assert [span.parent.span_id for span in commits] == [span.context.span_id for span in acquires]


def test_a_transition_links_to_its_cause_and_repeats_its_ids(tmp_path: Path) -> None:
    with http_receiver() as history, speaking(history, tmp_path) as (engine, _):
        assert replay(engine, 60) == 0
    by_id = {key(span): span for span in history.spans}
    caused = [s for s in history.spans if s.name == "kvcache.transition" and s.links]
    assert caused
    for span in caused:
        (link,) = span.links
        assert (link.trace_id, link.span_id) in by_id
        assert attribute(span, "kvcache.cause.trace_id") == link.trace_id.hex()
        assert attribute(span, "kvcache.cause.span_id") == link.span_id.hex()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("protocol", RECEIVERS)
@pytest.mark.parametrize("answers", [False, None], ids=["never answers", "not there"])
def test_shutdown_ends_without_a_receiver(
    protocol: str, answers: bool | None, tmp_path: Path, variables: Callable[..., VoiceSettings]
) -> None:
    with black_hole(listens=answers is False) as address:
        voice = variables(EXPORTER_OTLP_ENDPOINT=f"http://{address}", EXPORTER_OTLP_PROTOCOL=protocol)
        with speaking(Received(url=f"http://{address}"), tmp_path, voice=voice) as (engine, export):
            commit(engine, 1)
    recorded = engine.spans_recorded().recorded
    assert export.history is not None
    assert (export.history.dropped_spans, export.backends[0].dropped_spans) == (recorded, recorded)


@contextmanager
def black_hole(*, listens: bool) -> Iterator[str]:
    """An address where connections are taken and never answered, or where nobody is."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if listens:
            server.listen(64)
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("protocol", RECEIVERS)
def test_a_burst_is_sent_in_batches_that_receivers_take(protocol: str, tmp_path: Path) -> None:
    with RECEIVERS[protocol]() as received:
        backends = (Backend(protocol=protocol, endpoint=received.url, metrics=False),)
        with speaking(None, tmp_path, backends=backends) as (engine, _):
            threads = [threading.Thread(target=many, args=(engine, seed)) for seed in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert len(received.spans) == engine.spans_recorded().recorded > 2 * GRPC_BATCH_SPANS
    assert max(received.sizes) < 4 << 20


def many(engine: CacheEngine, seed: int) -> None:
    tokens = np.random.default_rng(seed).integers(0, 1000, 2 * SPEC.page_tokens, dtype=np.int32)
    commit(engine, seed)
    for _ in range(300):
        engine.acquire(tokens).release()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "http/protobuf or grpc"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317", "http(s) address"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote", "parentbased_traceidratio"),
        ("OTEL_TRACES_EXPORTER", "zipkin", "otlp or none"),
        ("KVDECK_METRICS_PORT", "http", "whole number from 1 to 65535"),
        ("KVDECK_DASHBOARD_URL", "deck", "http(s) address"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named(name: str, value: str, said: str) -> None:
    with pytest.raises(SettingsError, match=name) as error:
        VoiceSettings.from_environment({name: value})
    assert said in error.value.hint


def test_a_ratio_out_of_range_is_named() -> None:
    with pytest.raises(SettingsError, match="OTEL_TRACES_SAMPLER_ARG"):
        VoiceSettings.from_environment({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "2"})


def test_none_and_disabled_mean_no_backend() -> None:
    base = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
    assert VoiceSettings.from_environment(base).has_backend
    assert not VoiceSettings.from_environment({**base, "OTEL_SDK_DISABLED": "true"}).has_backend
    assert not VoiceSettings.from_environment({}).has_backend
    only = VoiceSettings.from_environment({**base, "OTEL_METRICS_EXPORTER": "none"})
    assert (only.traces, only.metrics) == (True, False)


def test_grpc_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    with pytest.raises(SettingsError, match="not installed") as error:
        Backend(protocol="grpc", endpoint="http://127.0.0.1:1").sender()
    assert "kvdeck[grpc]" in error.value.hint


def test_no_span_is_current_by_itself() -> None:
    assert not trace.get_current_span().get_span_context().is_valid
