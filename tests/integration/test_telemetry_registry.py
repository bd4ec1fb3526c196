"""What the engine says is what its registry lists: every name both ways, from a workload that says everything."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from engine_support import SpanLog
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Gauge, Histogram, InMemoryMetricReader, Sum
from opentelemetry.sdk.trace import ReadableSpan
from telemetry_support import SPEC, loud_config, say_everything

from engine import CacheEngine
from engine.telemetry.identity import identity_of
from engine.telemetry.registry import (
    ATTRIBUTES,
    INSTRUMENTS,
    RESOURCE,
    SCHEMA_URL,
    SCOPE_NAME,
    SCOPE_VERSION,
    SPANS,
    InstrumentKind,
)

ROOT = Path(__file__).parents[2]
PYTHON_TYPES = {"string": str, "int": int, "double": float, "boolean": bool}
POINTS = {InstrumentKind.COUNTER: Sum, InstrumentKind.GAUGE: Gauge, InstrumentKind.HISTOGRAM: Histogram}


@dataclass
class Said:
    """All spans and metrics of one engine's day."""

    spans: list[ReadableSpan]
    metrics: dict[str, Any]
    scope: Any

    def by_kind(self) -> dict[str, list[ReadableSpan]]:
        found: dict[str, list[ReadableSpan]] = defaultdict(list)
        for span in self.spans:
            found[span.name].append(span)
        return found


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Said:
    log, reader = SpanLog(), InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    config = loud_config(tmp_path_factory.mktemp("loud"))
    engine = CacheEngine(SPEC, config, span_processors=[log], meter_provider=provider)
    try:
        say_everything(engine)
        data = reader.get_metrics_data()
    finally:
        engine.close()
        provider.shutdown()
    assert data is not None
    (scope,) = data.resource_metrics[0].scope_metrics
    return Said(spans=log.spans, metrics={metric.name: metric for metric in scope.metrics}, scope=scope)


def test_every_kind_of_span_in_the_registry_was_said_and_no_other(said: Said) -> None:
    assert said.by_kind().keys() == SPANS.keys()


@pytest.mark.parametrize("name", SPANS)
def test_a_span_carries_the_attributes_the_registry_gives_it(said: Said, name: str) -> None:
    kind, spans = SPANS[name], said.by_kind()[name]
    carried = [set(span.attributes or {}) for span in spans]
    assert set.intersection(*carried) >= set(kind.attributes)
    # Why tokens were lost is provoked cause by cause in test_engine_losses.py.
    provoked = {n for n in (*kind.attributes, *kind.sometimes) if not n.startswith("kvcache.lost.")}
    assert provoked <= set.union(*carried) <= {*kind.attributes, *kind.sometimes}


def test_every_attribute_is_of_its_type_and_one_of_its_values(said: Said) -> None:
    for span in said.spans:
        for name, value in (span.attributes or {}).items():
            known = ATTRIBUTES[name]
            assert type(value) is PYTHON_TYPES[known.type], (span.name, name, value)
            assert not known.values or value in known.values, (span.name, name, value)


def test_every_attribute_in_the_registry_belongs_to_a_span() -> None:
    assert {name for kind in SPANS.values() for name in (*kind.attributes, *kind.sometimes)} == ATTRIBUTES.keys()


def test_only_the_spans_that_may_fail_have_failed_and_links_say_what_the_cause_ids_say(said: Said) -> None:
    for span in said.spans:
        if not span.status.is_ok:
            assert SPANS[span.name].error_when != "never", span.name
            assert span.status.description
        found = dict(span.attributes or {})
        if SPANS[span.name].link is None:
            assert not span.links
        else:
            ids = [(f"{k.context.trace_id:032x}", f"{k.context.span_id:016x}") for k in span.links]
            cause = found.get("kvcache.cause.trace_id"), found.get("kvcache.cause.span_id")
            assert ids == ([] if cause == (None, None) else [cause])
    assert any(span.links for span in said.spans)


def test_spans_and_metrics_name_their_schema(said: Said) -> None:
    scopes = {(s.instrumentation_scope.name, s.instrumentation_scope.version, s.instrumentation_scope.schema_url)
              for s in said.spans if s.instrumentation_scope}  # fmt: skip
    assert scopes == {(SCOPE_NAME, SCOPE_VERSION, SCHEMA_URL)}
    assert said.scope.scope.name == SCOPE_NAME
    assert said.scope.schema_url == SCHEMA_URL


def test_every_instrument_in_the_registry_was_read_and_no_other(said: Said) -> None:
    assert said.metrics.keys() == INSTRUMENTS.keys()


@pytest.mark.parametrize("name", INSTRUMENTS)
def test_an_instrument_has_the_kind_unit_labels_and_bound_of_the_registry(said: Said, name: str) -> None:
    known, metric = INSTRUMENTS[name], said.metrics[name]
    assert (metric.unit, metric.description) == (known.unit, known.meaning)
    assert isinstance(metric.data, POINTS[known.kind])
    points = metric.data.data_points
    assert points
    assert {frozenset(point.attributes) for point in points} == {frozenset(label.name for label in known.labels)}
    assert len(points) <= known.most_series
    for label in known.labels:
        assert len({point.attributes[label.name] for point in points}) <= label.bound


def test_no_name_in_the_source_is_missing_from_the_registry() -> None:
    known = ATTRIBUTES.keys() | INSTRUMENTS.keys() | SPANS.keys()
    written: set[str] = set()
    for path in (ROOT / "engine").rglob("*.py"):
        if "registry" not in path.parts:
            written |= set(re.findall(r'"((?:kvcache|gen_ai)\.[a-z_.]+)"', path.read_text(encoding="utf-8")))
    assert len(written) > 60
    assert written <= known


def test_names_for_prometheus_are_unique_and_follow_its_conventions() -> None:
    pulled = [name for i in INSTRUMENTS.values() for name in i.pulled.values()]
    assert len(set(pulled)) == len(pulled)
    for instrument in INSTRUMENTS.values():
        for name in instrument.pulled.values():
            assert re.fullmatch(r"kvcache_[a-z_]+", name)
            assert name.endswith("_total") == (instrument.kind is InstrumentKind.COUNTER)
            if instrument.unit in ("s", "By"):
                assert {"s": "_seconds", "By": "_bytes"}[instrument.unit] in name


def test_the_resource_says_who_speaks(said: Said) -> None:
    resource = identity_of("engine-1", "boot", SPEC)
    assert RESOURCE.keys() - {"kvdeck.faults.armed"} == resource.keys()
    own = {n for n in said.spans[0].resource.attributes if not n.startswith("telemetry.sdk.")}
    assert own == resource.keys()
