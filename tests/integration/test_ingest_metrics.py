"""Cumulative counters into growth by minute: restarts, repeats, first contact, histograms."""

from __future__ import annotations

import datetime as dt

import pytest
from ingest_support import ENGINE, NOW, counter, gauge, histogram, new_store, points, register, send_points
from opentelemetry.sdk.metrics import export as sdk
from sqlalchemy import select

from controlplane.ingest.metrics import ingest_metrics
from controlplane.store import queries
from controlplane.store.models import MetricRollup
from controlplane.store.queries import TimeRange
from controlplane.store.series_key import series_attributes, series_key

MINUTE = NOW.replace(second=0)
HOUR = TimeRange(NOW - dt.timedelta(hours=1), NOW + dt.timedelta(hours=1))
LONG_AGO = NOW - dt.timedelta(days=3)


def seconds(count: float) -> dt.timedelta:
    return dt.timedelta(seconds=count)


@pytest.fixture
def store(database):
    store = new_store(database, ENGINE)
    yield store
    store.dispose()


def growth(store, name: str = "kvcache.queries") -> list[tuple[dt.datetime, float]]:
    with store.read() as session:
        return [(row.minute, row.delta) for row in minutes_of(session, name)]


def minutes_of(session, name: str) -> list[MetricRollup]:
    by_name = select(MetricRollup).where(MetricRollup.name == name)
    return list(session.scalars(by_name.order_by(MetricRollup.minute, MetricRollup.attributes)))


def queries_at(value: float, at: dt.datetime, started: dt.datetime = NOW) -> sdk.Metric:
    return counter("kvcache.queries", value, at, started, of="tokens")


def test_growth_lands_in_the_minute_of_the_point(store):
    send_points(store, queries_at(10, NOW))
    send_points(store, queries_at(15, NOW + seconds(2)))
    send_points(store, queries_at(40, NOW + seconds(60)))
    assert growth(store) == [(MINUTE, 15), (MINUTE + seconds(60), 25)]


def test_a_point_sent_twice_or_late_adds_nothing(store):
    send_points(store, queries_at(10, NOW))
    send_points(store, queries_at(30, NOW + seconds(4)))
    again = send_points(store, queries_at(30, NOW + seconds(4)))
    late = send_points(store, queries_at(20, NOW + seconds(2)))
    assert (again.repeated, late.repeated) == (1, 1)
    assert growth(store) == [(MINUTE, 30)]


def test_a_new_boot_starts_from_zero_even_above_the_old_value(store):
    send_points(store, queries_at(10, NOW))
    register(store, boot="boot-2")
    send_points(store, queries_at(12, NOW + seconds(2), NOW + seconds(1)), boot="boot-2")
    assert growth(store) == [(MINUTE, 22)]


def test_a_counter_that_shrinks_inside_a_boot_was_started_again(store):
    send_points(store, queries_at(10, NOW))
    send_points(store, queries_at(3, NOW + seconds(2)))
    assert growth(store) == [(MINUTE, 13)]


def test_what_was_counted_before_first_contact_is_not_growth(store):
    send_points(store, queries_at(5_000_000, NOW, LONG_AGO))
    send_points(store, queries_at(5_000_007, NOW + seconds(2), LONG_AGO))
    assert growth(store) == [(MINUTE, 7)]


def test_a_series_that_appears_while_its_boot_reports_counts_from_its_first_value(store):
    send_points(store, queries_at(5_000_000, NOW, LONG_AGO))
    failed = counter("kvcache.recoveries", 1, NOW + seconds(2), LONG_AGO, tier="disk", outcome="failed")
    send_points(store, failed)
    assert growth(store, "kvcache.recoveries") == [(MINUTE, 1)]


def test_several_points_of_one_series_in_one_export_are_taken_in_order_of_time(store):
    send_points(store, queries_at(30, NOW + seconds(4)), queries_at(10, NOW), queries_at(20, NOW + seconds(2)))
    assert growth(store) == [(MINUTE, 30)]


def test_gauges_keep_their_last_and_largest_value_and_do_not_grow(store):
    for offset, value in enumerate((0.2, 0.9, 0.4)):
        send_points(store, gauge("kvcache.fragmentation", value, NOW + seconds(offset), **{"class": "kv"}))
    with store.read() as session:
        (row,) = minutes_of(session, "kvcache.fragmentation")
        (now,) = queries.metric_now(session, "kvcache.fragmentation")
    assert (row.last, row.maximum, row.delta, series_attributes(row.attributes)) == (0.4, 0.9, 0.0, {"class": "kv"})
    assert (now.value, now.at) == (0.4, NOW + seconds(2))


def test_histogram_buckets_grow_by_minute_and_give_quantiles(store):
    name, labels = "kvcache.tier.io.duration", {"tier": "disk", "direction": "read"}
    send_points(store, histogram(name, [90, 9, 1, 0], NOW, NOW, **labels))
    send_points(store, histogram(name, [90, 9, 1, 10], NOW + seconds(60), NOW, **labels))
    with store.read() as session:
        first, second = minutes_of(session, name)
        p50 = queries.series(session, "tier_io_p50", HOUR).points
        p99 = queries.series(session, "tier_io_p99", HOUR).points
    assert (first.bucket_deltas["counts"], first.count_delta) == ([90, 9, 1, 0], 100)
    assert (second.bucket_deltas["counts"], second.count_delta) == ([0, 0, 0, 10], 10)
    assert [(p.label, p.samples) for p in p50] == [("disk read", 100), ("disk read", 10)]
    assert p50[0].value == pytest.approx(0.001 * 50 / 90)
    assert p99[0].value == pytest.approx(0.01)
    assert p99[1].value == pytest.approx(0.1)  # above the last bound: at least that


def test_points_that_cannot_be_used_are_counted_and_the_others_kept(store):
    delta = sdk.Metric(
        "kvcache.hits",
        "",
        "1",
        sdk.Sum([sdk.NumberDataPoint({}, 0, 1, 1)], sdk.AggregationTemporality.DELTA, True),
    )
    outcome = send_points(
        store,
        delta,
        gauge("kvcache.leases", float("nan"), NOW),
        gauge("kvcache.mode", 0, NOW, label="x" * 300),
        queries_at(1, NOW),
    )
    assert (outcome.accepted, outcome.rejected_total) == (1, 3)
    assert "temporality" in outcome.message
    assert growth(store) == [(MINUTE, 1)]


def test_other_scopes_are_ignored(store):
    with store.write() as session:
        outcome = ingest_metrics(session, points(queries_at(1, NOW), scope="other"))
    assert (outcome.accepted, outcome.ignored) == (0, 1)


def test_a_series_key_gives_its_attributes_back():
    attributes = {"namespace": "a,b=c%d é", "of": "tokens"}
    assert series_attributes(series_key(attributes)) == attributes
    assert series_key({"b": 1, "a": 2}) == "a=2,b=1"
    assert series_attributes("") == {}
