"""Requests and validations as sums by minute: every span counts once, however often and in whatever batch it comes."""

from __future__ import annotations

import datetime as dt

import pytest
from ingest_support import BOOT, ENGINE, NOW, Spans, new_store, register, send, traces
from sqlalchemy import select

from controlplane.errors import BadRequest, Conflict, NotFound
from controlplane.ingest.spans import ingest_traces
from controlplane.store import models, queries
from controlplane.store.queries import TimeRange

HOURS = dt.timedelta(hours=1)
HOUR = TimeRange(NOW - dt.timedelta(hours=1), NOW + dt.timedelta(hours=1))


@pytest.fixture
def store(database):
    store = new_store(database, ENGINE)
    yield store
    store.dispose()


def requests(store) -> int:
    with store.read() as session:
        return queries.overview(session, HOUR).requests


def test_requests_are_summed_by_minute(store):
    spans = Spans()
    send(store, spans.acquire(), spans.acquire(), spans.acquire(at=NOW + dt.timedelta(minutes=1)))
    with store.read() as session:
        rows = session.scalars(select(models.RequestRollup).order_by(models.RequestRollup.minute)).all()
    assert [(row.minute, row.requests, row.usable_tokens) for row in rows] == [
        (NOW.replace(second=0), 2, 128),
        (NOW.replace(second=0) + dt.timedelta(minutes=1), 1, 64),
    ]


def test_sums_grow_over_exports(store):
    spans = Spans()
    send(store, spans.acquire())
    send(store, spans.acquire())
    assert requests(store) == 2


def test_the_same_export_twice_counts_once(store):
    batch = [Spans().acquire(), Spans().validate()]
    send(store, *batch)
    outcome = send(store, *batch)
    assert outcome.repeated == 2
    assert requests(store) == 1


def test_spans_sent_again_in_other_batches_count_once(store):
    spans = Spans()
    found = [spans.acquire(at=NOW + dt.timedelta(seconds=index)) for index in range(6)]
    send(store, *found[:3])
    send(store, *found[2:5])
    send(store, found[5], found[0], found[0])
    assert requests(store) == 6


def test_an_export_that_was_rolled_back_leaves_nothing_that_would_hide_its_repeat(store):
    span = Spans().acquire()

    def die_before_the_commit():
        with store.write() as session:
            ingest_traces(session, traces([span]))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        die_before_the_commit()
    send(store, span)
    assert requests(store) == 1


def test_what_is_remembered_to_find_repeats_is_bounded(store):
    spans = Spans()
    for hours in range(4):
        send(store, spans.acquire(at=NOW + dt.timedelta(hours=hours)), now=NOW + dt.timedelta(hours=hours))
    with store.read() as session:
        assert len(session.scalars(select(models.IngestedBatch)).all()) <= 2


def test_passing_validations_are_counted_and_failing_ones_kept(store):
    spans = Spans()
    failed = spans.validate("fail", "tail_absent")
    send(store, spans.validate(), spans.validate(), failed)
    send(store, failed)
    with store.read() as session:
        counts = queries.validation_counts(session, HOUR)
        (failure,) = queries.list_failures(session, HOUR)
    assert {(row.verdict, row.reason): row.count for row in counts} == {("pass", "none"): 2, ("fail", "tail_absent"): 1}
    assert (failure.reason, failure.boundary, failure.object_kind) == ("tail_absent", 128, "uncompressed_tail")
    assert failure.trace_id == f"{failed.context.trace_id:032x}"


def test_why_not_a_hit_is_told_in_tokens(store):
    send(store, Spans().acquire(usable=64, lcp=100))
    with store.read() as session:
        (reason,) = queries.miss_reasons(session, HOUR)
    assert (reason.reason, reason.requests, reason.tokens_lost) == ("window_stale", 1, 36)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"life": 0}, "life must be a whole number from 1"),
        ({"state__to": "MELTED"}, "state.to 'MELTED' is not one of"),
        ({"prefix__id": "x" * 33}, "prefix.id must be a text of 1 to 32"),
        ({"objects": "{"}, "objects must map object kinds to tiers to bytes"),
        ({"objects": '{"a": {"gpu": -1}}'}, "objects must map"),
        ({"pinned": 1}, "pinned must be true or false, got 1"),
        ({"checkpoints": '{"id": 1}'}, "checkpoints must be a list"),
        ({"namespace": "a\x00b"}, "NUL"),
        ({"tokens": True}, "tokens must be a whole number"),
    ],
)
def test_a_bad_span_is_counted_with_its_reason_and_costs_no_good_one(store, attributes, reason):
    spans = Spans()
    outcome = send(store, spans.acquire(), spans.transition(1, **attributes), spans.transition(1, prefix="b" * 32))
    assert outcome.rejected_total == 1
    assert reason in outcome.message
    assert requests(store) == 1
    with store.read() as session:
        assert queries.list_prefixes(session).total == 1


def test_other_scopes_and_spans_the_store_has_no_use_for_are_ignored(store):
    outcome = send(store, Spans(scope="flask").acquire(), Spans().span("kvcache.compact", {"kvcache.pages": 1}))
    assert (outcome.ignored, outcome.accepted, outcome.rejected_total) == (2, 0, 0)
    assert requests(store) == 0


def test_an_engine_that_never_registered_is_told_so(store):
    with pytest.raises(NotFound, match="No engine 'stranger'"):
        send(store, Spans(engine="stranger").acquire())


def test_another_boot_than_the_registered_one_is_a_conflict(store):
    with pytest.raises(Conflict, match="boot 'boot-2'"):
        send(store, Spans(boot="boot-2").acquire())
    register(store, boot="boot-2")
    send(store, Spans(boot="boot-2").acquire())
    with pytest.raises(Conflict):
        send(store, Spans(boot=BOOT).acquire())
    assert requests(store) == 1


def test_a_resource_without_an_engine_is_a_bad_request(store):
    request = traces([Spans().acquire()])
    del request.resource_spans[0].resource.attributes[:]
    with pytest.raises(BadRequest, match=r"kvdeck\.engine\.id"), store.write() as session:
        ingest_traces(session, request)


def test_one_unknown_engine_among_known_ones_is_a_partial_success(store):
    outcome = send(store, Spans(engine="stranger").acquire(), Spans().acquire())
    assert (outcome.accepted, outcome.rejected_total) == (1, 1)
    assert "stranger" in outcome.message


def test_a_span_of_before_what_is_remembered_is_not_counted_again_and_that_is_said(store):
    spans = Spans()
    first = spans.acquire()
    send(store, first)
    later = NOW + dt.timedelta(hours=2)
    send(store, spans.acquire(at=later), now=later)
    outcome = send(store, first, now=later)
    assert outcome.rejected_total == 1
    assert "not counted again" in outcome.message
    assert requests(store) == 1


def test_what_waited_out_a_long_outage_is_counted_also_by_a_clock_that_is_hours_off(store):
    spans = Spans()
    behind = dt.timedelta(hours=9)  # the engine's clock
    send(store, spans.acquire(at=NOW - behind))
    for hours in range(2, 6):  # sent when the control plane was back, from before and during the outage
        outcome = send(store, spans.acquire(at=NOW - behind + dt.timedelta(minutes=hours)), now=NOW + 6 * HOURS)
        assert (outcome.accepted, outcome.rejected_total) == (1, 0)


def test_a_new_boot_is_counted_from_its_own_beginning(store):
    send(store, Spans().acquire(at=NOW))
    send(store, Spans().acquire(at=NOW + 3 * HOURS), now=NOW + 3 * HOURS)
    send(store, Spans().acquire(at=NOW + 6 * HOURS), now=NOW + 6 * HOURS)
    register(store, boot="boot-2")
    outcome = send(store, Spans(boot="boot-2").acquire(at=NOW - HOURS), now=NOW + 6 * HOURS)
    assert (outcome.accepted, outcome.rejected_total) == (1, 0)
