"""A replay's spans in real tracing backends, asked back through their APIs: equal to what the engine counted."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from backend_support import RealBackend, Seen, devtools, phoenix
from telemetry_support import SPEC, loud_config, run, say_everything

from controlplane.host.backends import Backend
from controlplane.host.export import build_export
from engine import CacheEngine
from engine.telemetry.identity import identity_of
from engine.telemetry.registry import SPANS

Opened = Callable[[Path], AbstractContextManager[RealBackend]]
PATIENCE_SECONDS = 300.0
CALLER = f"00-{'ab' * 16}-{'cd' * 8}-01"


@pytest.mark.backends
@pytest.mark.timeout(600)
@pytest.mark.parametrize("opened", [phoenix, devtools], ids=lambda f: f.__name__)
def test_a_replay_in_a_real_backend_is_what_the_engine_counted(opened: Opened, tmp_path: Path) -> None:
    with opened(tmp_path / "backend") as backend:
        identity = identity_of("loud", "boot", SPEC) | {"openinference.project.name": "kvdeck-test"}
        target = Backend(protocol=backend.protocol, endpoint=backend.endpoint, metrics=False)
        export = build_export("", "", identity, backends=[target])
        with CacheEngine(
            SPEC, loud_config(tmp_path / "engine"), span_processors=export.span_processors, resource=export.resource
        ) as engine:
            say_everything(engine, 400)
            run(engine, "compact", max_pages=10)
            engine.acquire([1] * 500, traceparent=CALLER).release()
        assert export.backends[0].force_flush(300_000)  # a real one may be slow; the engine would not wait for it
        export.shutdown()
        tally, counters = engine.spans_recorded(), engine.counters()
        assert (tally.dropped_checks, tally.dropped_requests, export.backends[0].dropped_spans) == (0, 0, 0)
        spans = arrived(backend, tally.recorded)
    names = Counter(span.name for span in spans)
    sys.stdout.write(f"\n{opened.__name__}: {len(spans)} spans over {backend.protocol}: {dict(names)}\n")
    assert names == Counter(tally.by_name)
    assert names.keys() == SPANS.keys()
    assert names["kvcache.acquire"] == counters.requests
    assert names["kvcache.validate"] == counters.validations
    assert names["kvcache.transition"] == counters.transitions
    assert tokens(spans, "kvcache.usable_tokens") == counters.usable_tokens
    assert tokens(spans, "kvcache.prompt_tokens") == counters.prompt_tokens
    assert_parents_are_right(spans)
    assert_causes_are_right(spans, keeps_links=backend.keeps_links)


def arrived(backend: RealBackend, count: int) -> list[Seen]:
    """What the backend holds once it holds that many, or at the end of our patience."""
    end = time.monotonic() + PATIENCE_SECONDS
    while len(spans := backend.spans()) < count and time.monotonic() < end:
        time.sleep(1.0)
    return spans


def tokens(spans: list[Seen], name: str) -> int:
    return sum(int(span.attributes[name]) for span in spans if span.name == "kvcache.acquire")


def assert_parents_are_right(spans: list[Seen]) -> None:
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans)
    outside = {span.parent_id for span in spans if span.parent_id and span.parent_id not in by_id}
    assert outside == {"cd" * 8, "d2" * 8}  # the caller's span, and the operator's click
    for span in spans:
        if (parent := by_id.get(span.parent_id)) is not None:
            assert span.trace_id == parent.trace_id
        if span.name == "kvcache.commit" and span.parent_id:
            assert by_id[span.parent_id].name == "kvcache.acquire"
        if span.name == "kvcache.warmup":
            assert by_id[span.parent_id].name == "kvcache.command"


def assert_causes_are_right(spans: list[Seen], *, keeps_links: bool) -> None:
    by_id = {span.span_id: span for span in spans}
    caused = [s for s in spans if s.name == "kvcache.transition" and s.attributes.get("kvcache.cause.span_id")]
    assert caused
    for span in caused:
        cause = by_id[span.attributes["kvcache.cause.span_id"]]
        assert cause.trace_id == span.attributes["kvcache.cause.trace_id"]
        if keeps_links:
            assert span.links == ((cause.trace_id, cause.span_id),)
    assert all(span.attributes["kvcache.verdict"] == "fail" for span in spans
               if span.name == "kvcache.validate" and span.failed)  # fmt: skip
    assert any(span.failed for span in spans)
