"""Series of several engines: ratios are sums over sums, gauges sums or the highest; histograms are added by bucket."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from ingest_support import ENGINE, NOW, new_store

from controlplane.store import models, queries
from controlplane.store.queries import TimeRange

OTHER = "engine-2"
NEXT = NOW + dt.timedelta(minutes=1)
HOUR = TimeRange(NOW - dt.timedelta(hours=1), NOW + dt.timedelta(hours=1))


@pytest.fixture
def store(database):
    store = new_store(database, ENGINE, OTHER)
    yield store
    store.dispose()


def asked(engine: str, minute: dt.datetime, prompt: int, lcp: int, usable: int, **key: str) -> models.RequestRollup:
    named = {"namespace": "a", "outcome": "hit", "reason": "none", "state": "FULL", "tier": "gpu"} | key
    tokens = {"prompt_tokens": prompt, "lcp_tokens": lcp, "usable_tokens": usable, "replay_tokens": 0}
    return models.RequestRollup(engine_id=engine, minute=minute, requests=2, **named, **tokens)


def metric(engine: str, name: str, attributes: str, minute: dt.datetime = NOW, **values: Any) -> models.MetricRollup:
    filled = {"last": 0.0, "delta": 0.0, "maximum": 0.0, "count_delta": 0, "bucket_deltas": None} | values
    return models.MetricRollup(
        engine_id=engine, name=f"kvcache.{name}", attributes=attributes, minute=minute, boot_id="b", **filled
    )


def points(store, name: str, engine: str | None = None) -> list[tuple[dt.datetime, str, float | None, int]]:
    with store.read() as session:
        found = queries.series(session, name, HOUR, engine).points
    return [(point.minute, point.label, point.value, point.samples) for point in found]


def add(store, *rows: object) -> None:
    with store.write() as session:
        session.add_all(rows)


def test_a_share_of_two_engines_is_what_both_used_over_what_both_were_asked(store):
    add(
        store,
        asked(ENGINE, NOW, 100, 60, 50),
        asked(ENGINE, NOW, 100, 0, 0, outcome="miss", namespace="b"),
        asked(OTHER, NOW, 600, 300, 150, state="COMPRESSED"),
        asked(OTHER, NEXT, 10, 10, 10),
    )
    assert points(store, "usable_and_lcp") == [
        (NOW, "lcp", 360 / 800, 800),
        (NOW, "usable", 200 / 800, 800),
        (NEXT, "lcp", 1.0, 10),
        (NEXT, "usable", 1.0, 10),
    ]
    assert points(store, "hit_rate_by_state") == [
        (NOW, "COMPRESSED", 150 / 800, 800),
        (NOW, "FULL", 50 / 800, 800),
        (NEXT, "COMPRESSED", 0.0, 10),
        (NEXT, "FULL", 1.0, 10),
    ]
    assert points(store, "requests") == [(NOW, "hit", 4.0, 4), (NOW, "miss", 2.0, 2), (NEXT, "hit", 2.0, 2)]
    assert points(store, "usable_and_lcp", ENGINE)[0] == (NOW, "lcp", 60 / 200, 200)


def test_a_minute_without_tokens_has_no_share_instead_of_none_of_them(store):
    add(store, asked(ENGINE, NOW, 0, 0, 0))
    assert points(store, "usable_and_lcp") == [(NOW, "lcp", None, 0), (NOW, "usable", None, 0)]


def test_shares_of_counters_are_sums_over_sums(store):
    add(
        store,
        metric(ENGINE, "queries", "namespace=a,of=tokens", delta=100.0),
        metric(OTHER, "queries", "namespace=b,of=tokens", delta=300.0),
        metric(OTHER, "queries", "namespace=b,of=requests", delta=7.0),
        metric(ENGINE, "hits", "object.kind=full_kv,of=tokens,tier=gpu", delta=80.0),
        metric(OTHER, "hits", "object.kind=full_kv,of=tokens,tier=host", delta=20.0),
        metric(ENGINE, "recoveries", "outcome=ok,tier=disk", delta=9.0),
        metric(OTHER, "recoveries", "outcome=late,tier=disk", delta=3.0),
        metric(OTHER, "recoveries", "outcome=ok,tier=host", delta=4.0),
    )
    assert points(store, "hit_rate_by_kind") == [(NOW, "full_kv", 100 / 400, 400)]
    assert points(store, "recovery_failure_rate") == [
        (NOW, "all", 3 / 16, 16),
        (NOW, "disk", 3 / 12, 12),
        (NOW, "host", 0.0, 4),
    ]


def test_gauges_of_two_engines_are_summed_or_the_highest_and_say_how_many_they_are(store):
    add(
        store,
        metric(ENGINE, "prefixes", "state=FULL", last=5.0),
        metric(OTHER, "prefixes", "state=FULL", last=7.0),
        metric(ENGINE, "fragmentation", "class=all", last=0.25),
        metric(OTHER, "fragmentation", "class=all", last=0.75),
        metric(ENGINE, "mode", "", last=2.0),
        metric(OTHER, "mode", "", last=1.0),
        metric(ENGINE, "evictions", "cause=cap", delta=2.0),
        metric(OTHER, "evictions", "cause=cap", delta=3.0),
    )
    assert points(store, "prefixes") == [(NOW, "FULL", 12.0, 2)]
    assert points(store, "fragmentation") == [(NOW, "all", 0.75, 2)]
    assert points(store, "mode") == [(NOW, "kvcache.mode", 2.0, 2)]
    assert points(store, "evictions") == [(NOW, "cap", 5.0, 5)]


def test_histograms_are_added_before_a_quantile_is_read_of_them(store):
    def io(engine: str, counts: list[int], bounds: list[float], minute: dt.datetime = NOW) -> models.MetricRollup:
        document = {"bounds": bounds, "counts": counts}
        return metric(engine, "tier.io.duration", "direction=read,tier=disk", minute, bucket_deltas=document)

    add(store, io(ENGINE, [10, 0, 0], [1.0, 2.0]), io(OTHER, [0, 30, 0], [1.0, 2.0]), io(ENGINE, [0, 1], [5.0], NEXT))
    add(store, metric(OTHER, "tier.io.duration", "direction=write,tier=disk"))  # a first word: no growth yet
    assert points(store, "tier_io_p50") == [
        (NOW, "disk read", pytest.approx(1 + 10 / 30), 40),
        (NOW, "disk write", None, 0),
        (NEXT, "disk read", 5.0, 1),
    ]
