"""The exporters against a real control plane, and against nothing at all."""

from __future__ import annotations

from pathlib import Path

from databases import free_port
from opentelemetry.sdk.trace import TracerProvider
from sqlalchemy import select
from steering_support import Deck, add_engine, prefix_id, wait_for

from controlplane.auth import Role
from controlplane.clock import utc_now
from controlplane.host.export import Export, build_export
from controlplane.host.sender import SpanSender
from controlplane.store.models import MetricPoint, PrefixVersion

RESOURCE = {
    "service.name": "kvdeck-engine",
    "service.instance.id": "engine-1",
    "kvdeck.engine.id": "engine-1",
    "kvdeck.engine.boot_id": "boot",
}
TRANSITION = {
    "kvcache.prefix.id": prefix_id(1),
    "kvcache.namespace": "default",
    "kvcache.life": 1,
    "kvcache.version": 1,
    "kvcache.state.from": "NEW",
    "kvcache.state.to": "FULL",
    "kvcache.cause": "commit",
    "kvcache.reason": "none",
    "kvcache.tokens": 64,
}


def speak(export: Export) -> None:
    """One transition and one recovery, as an engine tells them."""
    provider = TracerProvider(resource=export.resource, shutdown_on_exit=False)
    for processor in export.span_processors:
        provider.add_span_processor(processor)
    tracer = provider.get_tracer("kvdeck.engine")
    tracer.start_span("kvcache.transition", attributes=TRANSITION).end()
    counter = export.meter_provider.get_meter("kvdeck.engine").create_counter("kvcache.recoveries")
    counter.add(3, {"tier": "disk", "outcome": "failed"})


def test_what_was_said_during_an_outage_arrives_after_it(tmp_path: Path) -> None:
    deck = Deck(tmp_path)
    add_engine(deck, utc_now())
    export = build_export(deck.url, deck.tokens[Role.ENGINE], RESOURCE)
    try:
        speak(export)
        wait_for(lambda: history(export).waiting_spans == 1, "the span to be kept")
        deck.start()
        wait_for(lambda: transitions(deck), "the transition")
        wait_for(lambda: points(deck), "the counter")
    finally:
        export.shutdown()
        deck.stop()
        deck.store.dispose()
    assert history(export).waiting_spans == 0
    assert points(deck)[-1].attributes == "outcome=failed,tier=disk"


def history(export: Export) -> SpanSender:
    assert export.history is not None
    return export.history


def transitions(deck: Deck) -> list[PrefixVersion]:
    with deck.store.read() as session:
        return list(session.scalars(select(PrefixVersion)))


def points(deck: Deck) -> list[MetricPoint]:
    with deck.store.read() as session:
        return list(session.scalars(select(MetricPoint).where(MetricPoint.name == "kvcache.recoveries")))


def test_shutdown_twice_is_once() -> None:
    export = build_export(f"http://127.0.0.1:{free_port()}", "token", RESOURCE)
    speak(export)
    export.shutdown()
    export.shutdown()
    assert history(export).dropped_spans == 1
