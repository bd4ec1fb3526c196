"""Bad telemetry beside good, on both databases: the good lands exactly once, the bad is refused with a reason.

Exports are built from the protobuf messages themselves, so that they can say what no SDK would.
"""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from databases import Databases
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from ingest_support import ENGINE, LIFE, NOW, Spans, counter, histogram, new_store, points, traces
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from sqlalchemy import func, select

from controlplane.errors import BadRequest, NotFound, TooLarge
from controlplane.ingest.facts import MOST_BYTES, MOST_TOKENS, MOST_VERSION, REASONS
from controlplane.ingest.metrics import ingest_metrics
from controlplane.ingest.otlp import decode
from controlplane.ingest.outcome import IngestOutcome
from controlplane.ingest.spans import ingest_traces
from controlplane.store import Store
from controlplane.store.models import MetricPoint, PrefixVersion, RequestRecord, ValidationFailure, ValidationRollup

NS = 1_000_000_000
Spoil = Callable[[Any], None]
_numbers = itertools.count(1)


@pytest.fixture(params=["sqlite", "postgresql"], scope="module")
def store(request, tmp_path_factory) -> Iterator[Store]:
    """One database for all examples: each makes prefixes and traces of its own."""
    made = Databases(lambda: request.getfixturevalue("postgres_server"), tmp_path_factory.mktemp("db"))
    store = new_store(made.new(request.param), ENGINE)
    yield store
    store.dispose()
    made.forget()


def sets(name: str, value: Any) -> Spoil:
    """A span whose attribute is another: of any type OTLP knows."""

    def spoil(span: Any) -> None:
        for pair in [pair for pair in span.attributes if pair.key == f"kvcache.{name}"]:
            span.attributes.remove(pair)
        if value is not None:
            span.attributes.append(KeyValue(key=f"kvcache.{name}", value=as_value(value)))

    return spoil


def as_value(value: Any) -> AnyValue:
    match value:
        case AnyValue():
            return value
        case bool():
            return AnyValue(bool_value=value)
        case str():
            return AnyValue(string_value=value)
        case int():
            return AnyValue(int_value=value)
        case _:
            return AnyValue(double_value=value)


def field(name: str, value: Any) -> Spoil:
    return lambda span: setattr(span, name, value)


LIST = AnyValue()
LIST.array_value.values.append(AnyValue(string_value="x"))
IDS: list[Spoil] = [field("trace_id", b""), field("trace_id", b"x" * 15), field("trace_id", b"y" * 40),
                    field("trace_id", b"\0" * 16), field("span_id", b""), field("span_id", b"z" * 9),
                    field("span_id", b"\0" * 8)]  # fmt: skip
TIMES: list[Spoil] = [field("start_time_unix_nano", at) for at in (0, 1, 1_500_000_000 * NS, 4_000_000_000 * NS,
                                                                  2**63 - 1, 2**64 - 1)]  # fmt: skip
TEXTS = [None, "", "a\0b", "x" * 10_000, 7, 1.5, True, LIST]
NUMBERS = [None, -1, -(2**63), 2**63 - 1, "7", 1.5, float("nan"), float("inf"), True, LIST]
BAD_TRANSITION: list[Spoil] = [
    *IDS,
    *TIMES,
    *(sets(name, value) for name in ("prefix.id", "cause", "state.from", "state.to") for value in TEXTS),
    *(sets("tokens", value) for value in NUMBERS),
    *(sets(name, v) for name in ("version", "life") for v in (None, 0, -1, "1", 1.5, LIST)),
    sets("version", MOST_VERSION + 1),
    sets("life", 2**63 - 1),
    sets("bytes.gpu", MOST_BYTES + 1),
    sets("tokens", MOST_TOKENS + 1),
    *(sets("objects", v) for v in ("[]", "{", '{"a": {"gpu": -1}}', '{"a": {"gpu": 1e400}}', '{"\\u0000": {}}',
                                   '{"a": {"\\ud800": 1}}', "[" * 5000, 7)),
    *(sets("checkpoints", v) for v in ("{}", "[1]", '[{"id": "", "boundary": 1}]', "[" * 5000,
                                       '[{"id": "c", "boundary": 1, "kinds": ["\\u0000"]}]',
                                       '[{"id": "c", "boundary": 1, "tiers": [{"a": 1}]}]',
                                       '[{"id": "c", "boundary": 99999999999999}]', 7)),
    sets("namespace", ""),
    sets("command.id", "x" * 37),
    sets("cause.trace_id", "x" * 33),
    sets("pinned", "yes"),
]  # fmt: skip
BAD_VALIDATION: list[Spoil] = [
    *IDS,
    *TIMES,
    *(sets(name, value) for name in ("validation", "verdict") for value in TEXTS),
    *(sets("boundary", v) for v in NUMBERS if v not in (None, LIST)),  # it may be absent, and a list is no value
]
BAD_ACQUIRE: list[Spoil] = [
    *IDS,
    *TIMES,
    *(sets("outcome", value) for value in TEXTS),
    *(sets(n, v) for n in ("prompt_tokens", "usable_tokens", "lcp_tokens") for v in NUMBERS),
    sets("replay_tokens", -1),
    sets("usable_tokens", 201),
    sets("lost.evicted", 500),
    sets("lost.evicted", -1),
    sets("mode", "x" * 17),
    lambda span: [sets(f"lost.c{n}", 1)(span) for n in range(40)],
]
BAD = {"transition": BAD_TRANSITION, "validation": BAD_VALIDATION, "acquire": BAD_ACQUIRE}
KINDS = st.sampled_from(sorted(BAD))
ITEMS = st.lists(st.tuples(KINDS, st.integers(min_value=-1, max_value=len(BAD_TRANSITION) - 1)), min_size=1, max_size=8)


def span_of(book: Spans, kind: str, number: int) -> Any:
    """One good span as OTLP says it, of a prefix of its own."""
    if kind == "transition":
        made = book.transition(1, prefix=f"{number:032x}")
    else:
        made = book.validate("fail", f"reason_{number}") if kind == "validation" else book.acquire()
    (resource,) = traces([made]).resource_spans
    span = resource.scope_spans[0].spans[0]
    # The SDK's ids come from `random`, which hypothesis seeds anew for every example.
    span.trace_id, span.span_id = number.to_bytes(16), number.to_bytes(8)
    return span


def export_of(items: list[tuple[str, int]]) -> tuple[ExportTraceServiceRequest, dict[str, list[Any]]]:
    """An export of good spans and bad (those whose number is one of a spoil), and the good ones by kind."""
    book = Spans()
    export = traces([book.transition(1)])
    spans = export.resource_spans[0].scope_spans[0].spans
    del spans[:]
    good: dict[str, list[Any]] = {kind: [] for kind in BAD}
    for kind, which in items:
        span = span_of(book, kind, next(_numbers))
        if 0 <= which < len(BAD[kind]):
            BAD[kind][which](span)
        else:
            good[kind].append(span)
        spans.append(span)
    return export, good


def landed(store: Store, good: dict[str, list[Any]]) -> dict[str, int]:
    """How many rows each kind's good spans have."""
    models = {"transition": PrefixVersion, "validation": ValidationFailure, "acquire": RequestRecord}
    with store.read() as session:
        return {
            kind: session.scalar(
                select(func.count()).select_from(models[kind]).where(
                    models[kind].span_id.in_([span.span_id.hex() for span in spans])
                )
            )
            for kind, spans in good.items()
        }  # fmt: skip


def take(store: Store, export: Any) -> IngestOutcome:
    """Ingests what was sent, after the bytes went over the line."""
    ingest = ingest_traces if isinstance(export, ExportTraceServiceRequest) else ingest_metrics
    sent = decode(type(export), export.SerializeToString(), encoding="", max_inflated_bytes=1 << 20)
    with store.write() as session:
        return ingest(session, sent, clock=lambda: NOW)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(items=ITEMS)
@example(items=[("transition", -1), ("transition", 0), ("acquire", -1)])
def test_good_spans_land_exactly_once_whatever_else_is_in_their_batch(store: Store, items: list[Any]) -> None:
    export, good = export_of(items)
    n_good = sum(map(len, good.values()))
    first = take(store, export)
    assert (first.accepted, first.rejected_total) == (n_good, len(items) - n_good)
    assert first.rejected_by.total() == first.rejected_total
    assert set(first.rejected_by) <= set(REASONS)
    assert landed(store, good) == {kind: len(spans) for kind, spans in good.items()}
    again = take(store, export)
    assert (again.rejected_total, again.repeated) == (
        first.rejected_total,
        len(good["validation"]) + len(good["acquire"]),
    )
    assert landed(store, good) == {kind: len(spans) for kind, spans in good.items()}


@pytest.mark.parametrize("kind", list(BAD))
def test_every_bad_span_is_refused_with_a_reason_that_is_documented(store: Store, kind: str) -> None:
    refused = {}
    for which in range(len(BAD[kind])):
        export, good = export_of([(kind, which), (kind, -1)])
        outcome = take(store, export)
        refused[which] = (outcome.accepted, outcome.rejected_total, set(outcome.rejected_by) <= set(REASONS))
        assert all(0 < len(text) <= 200 for text in outcome.rejected)
        assert landed(store, good)[kind] == 1
    assert {which: found for which, found in refused.items() if found != (1, 1, True)} == {}


def test_the_sum_of_validations_counts_good_ones_only(store: Store) -> None:
    export, _ = export_of([("validation", n) for n in range(-3, len(BAD_VALIDATION))])
    total = select(func.coalesce(func.sum(ValidationRollup.count), 0)).where(ValidationRollup.engine_id == ENGINE)
    with store.read() as session:
        before = session.scalar(total)
    assert take(store, export).accepted == 3
    with store.read() as session:
        assert session.scalar(total) - before == 3


def bad_point(spoil: Spoil) -> ExportMetricsServiceRequest:
    """Three good points, and one that is spoilt between them."""
    n = next(_numbers)
    made = points(
        counter(f"kvcache.c{n}", 1, NOW, NOW),
        histogram(f"kvcache.h{n}", [1, 2, 3, 4], NOW, NOW),
        counter(f"kvcache.bad{n}", 2, NOW, NOW, tier="disk"),
        histogram(f"kvcache.i{n}", [1, 2, 3, 4], NOW, NOW),
    )
    metrics = made.resource_metrics[0].scope_metrics[0].metrics
    spoil(metrics[2])
    return made


def on_point(**values: Any) -> Spoil:
    def spoil(metric: Any) -> None:
        for name, value in values.items():
            setattr(metric.sum.data_points[0], name, value)

    return spoil


def as_histogram(**values: Any) -> Spoil:
    def spoil(metric: Any) -> None:
        metric.histogram.aggregation_temporality = 2
        data = metric.histogram.data_points.add(time_unix_nano=int(NOW.timestamp()) * NS, count=3, sum=1.0)
        data.bucket_counts.extend(values.get("bucket_counts", [1, 2]))
        data.explicit_bounds.extend(values.get("explicit_bounds", [0.5]))
        for name in values.keys() & {"count", "sum"}:
            setattr(data, name, values[name])

    return spoil


BAD_POINTS: dict[str, Spoil] = {
    "no data": lambda metric: metric.ClearField("sum"),
    "an unknown kind": lambda metric: metric.exponential_histogram.data_points.add(count=1),
    "delta": lambda metric: setattr(metric.sum, "aggregation_temporality", 1),
    "no name": lambda metric: setattr(metric, "name", ""),
    "a long name": lambda metric: setattr(metric, "name", "x" * 65),
    "a NUL": lambda metric: setattr(metric, "name", "a\0b"),
    "a long key": lambda metric: metric.sum.data_points[0].attributes.add(key="x" * 300, value=as_value("v")),
    "a NUL in a key": lambda metric: metric.sum.data_points[0].attributes.add(key="a\0", value=as_value("v")),
    "NaN": on_point(as_double=float("nan")),
    "infinite": on_point(as_double=float("-inf")),
    "huge": on_point(as_double=1e300),
    "no time": on_point(time_unix_nano=0),
    "1970": on_point(time_unix_nano=1),
    "2554": on_point(time_unix_nano=2**64 - 1),
    "no value": lambda metric: metric.sum.data_points[0].ClearField(metric.sum.data_points[0].WhichOneof("value")),
    "a huge count": as_histogram(count=2**64 - 1),
    "a huge bucket": as_histogram(bucket_counts=[2**64 - 1, 0]),
    "buckets that do not fit": as_histogram(explicit_bounds=[]),
    "no buckets": as_histogram(bucket_counts=[], explicit_bounds=[]),
    "NaN bounds": as_histogram(explicit_bounds=[float("nan")]),
    "infinite bounds": as_histogram(explicit_bounds=[float("inf")]),
    "falling bounds": as_histogram(bucket_counts=[1, 1, 1], explicit_bounds=[2.0, 1.0]),
    "many buckets": as_histogram(bucket_counts=[0] * 400, explicit_bounds=[float(n) for n in range(399)]),
    "a NaN sum": as_histogram(sum=float("nan")),
}


@pytest.mark.parametrize("what", list(BAD_POINTS))
def test_a_bad_point_never_loses_the_good_ones_beside_it(store: Store, what: str) -> None:
    export = bad_point(BAD_POINTS[what])
    outcome = take(store, export)
    assert (outcome.accepted, outcome.rejected_total) == (3, 1)
    assert set(outcome.rejected_by) <= set(REASONS)
    assert take(store, export).repeated == 3
    names = [metric.name for metric in export.resource_metrics[0].scope_metrics[0].metrics]
    with store.read() as session:
        kept = select(func.count()).select_from(MetricPoint).where(MetricPoint.name.in_([*names[:2], names[3]]))
        assert session.scalar(kept) == 3


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_cut_or_changed_body_is_refused_whole_or_read_as_something_else_never_an_error(data: st.DataObject) -> None:
    body = traces([Spans().transition(1), Spans().acquire()]).SerializeToString()
    cut = data.draw(st.integers(min_value=0, max_value=len(body)))
    flips = data.draw(st.lists(st.tuples(st.integers(0, len(body) - 1), st.integers(1, 255)), max_size=4))
    changed = bytearray(body)
    for at, by in flips:
        changed[at] ^= by
    sent, encoding = bytes(changed[:cut]), data.draw(st.sampled_from(["", "gzip", "identity"]))
    if encoding == "gzip":
        sent = gzip.compress(sent)[: data.draw(st.integers(0, 400))]
    code = ""
    try:
        decode(ExportTraceServiceRequest, sent, encoding=encoding, max_inflated_bytes=1 << 20)
    except BadRequest as error:
        code = error.code
    assert code in ("", "otlp_gzip", "otlp_protobuf")


@pytest.mark.parametrize(
    ("body", "encoding", "code"),
    [
        (b"\x0a\xff", "", "otlp_protobuf"),
        (b'{"resourceSpans": []}', "", "otlp_protobuf"),
        (b"PK\x03\x04", "gzip", "otlp_gzip"),
        (gzip.compress(b"x" * 500)[:-9], "gzip", "otlp_gzip"),
        (b"", "gzip", "otlp_gzip"),
        (b"", "br", "otlp_encoding"),
        (gzip.compress(b"\0" * 5000), "gzip", "otlp_inflated"),
    ],
)
def test_a_body_that_is_no_export_is_refused_by_name(body: bytes, encoding: str, code: str) -> None:
    with pytest.raises((BadRequest, TooLarge)) as caught:
        decode(ExportTraceServiceRequest, body, encoding=encoding, max_inflated_bytes=1000)
    assert caught.value.code == code
    assert caught.value.hint


@pytest.mark.parametrize("name", ["nobody", "a\0b", "", "x" * 65, "\n"])
def test_an_unknown_or_impossible_engine_is_refused_and_others_in_the_export_are_kept(store: Store, name: str) -> None:
    export, good = export_of([("transition", -1)])
    alone = traces([Spans(name or "x").transition(1, prefix="b" * 32)])
    for pair in alone.resource_spans[0].resource.attributes:
        if pair.key == "kvdeck.engine.id":
            pair.value.string_value = name
    with pytest.raises(NotFound if name == "nobody" else BadRequest):
        take(store, alone)
    export.resource_spans.extend(alone.resource_spans)
    outcome = take(store, export)
    assert (outcome.accepted, outcome.rejected_total) == (1, 1)
    assert set(outcome.rejected_by) <= {"engine_unknown", "otlp_resource"}
    assert landed(store, good)["transition"] == 1


def test_spans_of_another_scope_or_of_no_use_are_ignored_and_not_called_bad(store: Store) -> None:
    other = traces([Spans(scope="somebody.else").transition(1)])
    named = traces([Spans().span("kvcache.unheard_of", {})])
    for export in (other, named):
        outcome = take(store, export)
        assert (outcome.ignored, outcome.accepted, outcome.rejected_total) == (1, 0, 0)


def test_a_span_at_the_very_bounds_is_taken_and_can_be_summed(store: Store) -> None:
    export, good = export_of([("transition", -1), ("acquire", -1), ("acquire", -1)])
    first, *acquires = export.resource_spans[0].scope_spans[0].spans
    for name, most in (("version", MOST_VERSION), ("tokens", MOST_TOKENS), ("bytes.gpu", MOST_BYTES), ("life", LIFE)):
        sets(name, most)(first)
    for span in acquires:
        for name in ("prompt_tokens", "usable_tokens", "lcp_tokens", "replay_tokens"):
            sets(name, MOST_TOKENS)(span)
    assert take(store, export).accepted == 3
    assert landed(store, good) == {"transition": 1, "validation": 0, "acquire": 2}
