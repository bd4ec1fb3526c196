"""Transitions in any order, twice, late or lost: what the store says of a prefix stays right."""

from __future__ import annotations

import datetime as dt
import itertools
import json

import pytest
from ingest_support import ENGINE, LIFE, NOW, PREFIX, Spans, new_store, send
from sqlalchemy import select

from controlplane.ingest.gaps import Span, holes, remaining
from controlplane.store import Store, models, queries


@pytest.fixture
def store(database):
    store = new_store(database, ENGINE)
    yield store
    store.dispose()


def detail(store: Store, prefix: str = PREFIX) -> queries.PrefixDetail:
    with store.read() as session:
        return queries.get_prefix(session, ENGINE, prefix)


def three_transitions(spans: Spans) -> list:
    return [
        spans.transition(1, "FULL", checkpoints=json.dumps([{"id": "c1", "boundary": 64, "kinds": [], "tiers": []}])),
        spans.transition(2, "COMPRESSED", at=NOW + dt.timedelta(seconds=1)),
        spans.transition(
            3,
            "PARTIAL_OFFLOAD",
            at=NOW + dt.timedelta(seconds=2),
            checkpoints=json.dumps([{"id": "c2", "boundary": 128, "kinds": ["swa_window"], "tiers": ["host"]}]),
            pinned=True,
        ),
    ]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_any_order_of_delivery_gives_the_same_prefix_and_history(store, order):
    spans = three_transitions(Spans())
    for index in order:
        send(store, spans[index])
    found = detail(store)
    assert (found.now.state, found.now.version, found.now.gpu_bytes, found.now.pinned) == (
        "PARTIAL_OFFLOAD",
        3,
        103,
        True,
    )
    assert [row.version for row in found.versions] == [3, 2, 1]
    assert [row.checkpoint_id for row in found.checkpoints] == ["c2"]
    assert all(gap.closed_by == "span" for gap in found.gaps)


def test_the_same_export_twice_changes_nothing(store):
    spans = three_transitions(Spans())
    send(store, *spans)
    before = detail(store)
    send(store, *spans)
    assert detail(store) == before


def test_a_hole_in_the_versions_is_an_open_gap(store):
    spans = Spans()
    send(store, spans.transition(1), spans.transition(5))
    (gap,) = detail(store).gaps
    assert (gap.first_version, gap.last_version, gap.closed_at) == (2, 4, None)


def test_a_lost_first_version_is_a_gap_too(store):
    send(store, Spans().transition(3))
    (gap,) = detail(store).gaps
    assert (gap.first_version, gap.last_version) == (1, 2)


def test_late_spans_shrink_split_and_close_a_gap(store):
    spans = Spans()
    send(store, spans.transition(1), spans.transition(7))
    send(store, spans.transition(4))
    assert sorted((g.first_version, g.last_version) for g in detail(store).gaps) == [(2, 3), (5, 6)]
    send(store, spans.transition(2), spans.transition(6))
    assert sorted((g.first_version, g.last_version) for g in detail(store).gaps) == [(3, 3), (5, 5)]
    send(store, spans.transition(5), spans.transition(3))
    assert {(g.closed_by, g.closed_at) for g in detail(store).gaps} == {("span", NOW)}


def test_the_end_of_a_life_closes_its_gaps(store):
    spans = Spans()
    send(store, spans.transition(1), spans.transition(3))
    send(store, spans.transition(4, "EVICTED"))
    (gap,) = detail(store).gaps
    assert gap.closed_by == "evicted"


def test_a_late_span_still_counts_as_come_after_an_eviction_closed_its_gap(store):
    spans = Spans()
    late = spans.transition(2)
    send(store, spans.transition(1), spans.transition(3, "EVICTED"))
    send(store, late)
    (gap,) = detail(store).gaps
    assert gap.closed_by == "span"


def test_a_later_life_wins_however_low_its_version(store):
    spans = Spans()
    send(store, spans.transition(1, life=LIFE + 10), spans.transition(9, "EVICTED"))
    found = detail(store)
    assert (found.now.life, found.now.version, found.now.state) == (LIFE + 10, 1, "FULL")


def test_an_evicted_prefix_has_no_checkpoints_and_is_not_listed(store):
    spans = three_transitions(Spans())
    send(store, *spans, Spans().transition(4, "EVICTED"))
    assert detail(store).checkpoints == []
    with store.read() as session:
        assert queries.list_prefixes(session).total == 0
        assert queries.list_prefixes(session, states=["EVICTED"]).total == 1


def test_what_a_prefix_served_survives_transitions_and_counts_before_the_first_one(store):
    spans = Spans()
    send(store, spans.acquire(usable=64))
    with store.read() as session:
        assert queries.list_prefixes(session).total == 0  # nothing is known of it yet
    send(store, spans.transition(1))
    send(store, spans.acquire(usable=32, at=NOW + dt.timedelta(seconds=5)), spans.transition(2))
    now = detail(store).now
    assert (now.tokens_served, now.requests_served, now.served_at) == (96, 2, NOW + dt.timedelta(seconds=5))


def test_history_keeps_what_the_cause_was(store):
    send(
        store,
        Spans().transition(1, "QUARANTINED", cause="corruption", reason="checksum", cause__trace_id="b" * 32),
    )
    (version,) = detail(store).versions
    assert (version.cause, version.reason, version.cause_trace_id) == ("corruption", "checksum", "b" * 32)
    assert len(version.trace_id) == 32
    assert len(version.span_id) == 16
    assert not version.repaired


def test_more_prefixes_than_one_lookup_takes(store):
    spans = Spans()
    send(store, *(spans.transition(2, prefix=f"{number:032x}") for number in range(1200)))
    with store.read() as session:
        assert queries.list_prefixes(session).total == 1200
        assert len(session.scalars(select(models.HistoryGap)).all()) == 1200


def test_holes_and_remaining():
    assert holes([4, 2, 7], 1) == [Span(3, 3), Span(5, 6)]
    assert holes([1, 2], 2) == []
    assert remaining(Span(2, 6), [4, 9]) == [Span(2, 3), Span(5, 6)]
    assert remaining(Span(2, 3), [3, 2]) == []
