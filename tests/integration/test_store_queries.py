"""Read models: lists, details, marks and series give what was written, with the counts behind every rate."""

from __future__ import annotations

import datetime as dt

import pytest
from ingest_support import ENGINE, NOW, Spans, new_store, send
from sqlalchemy import func, select, text

from controlplane.errors import BadRequest
from controlplane.store import models, queries
from controlplane.store.queries import Rate, TimeRange
from controlplane.store.query_types import minutes_in

HOUR = TimeRange(NOW - dt.timedelta(hours=1), NOW + dt.timedelta(hours=1))


@pytest.fixture
def store(database):
    store = new_store(database, ENGINE, "engine-2")
    yield store
    store.dispose()


def add(store, *rows) -> None:
    with store.write() as session:
        session.add_all(rows)


def desired(engine: str | None, **document) -> models.DesiredState:
    return models.DesiredState(engine_id=engine, document=document, actor="someone", reason="tuning", at=NOW)


def command(kind: str, key: str) -> models.Command:
    return models.Command(
        id=key,
        engine_id=ENGINE,
        kind=kind,
        arguments={"prefix_ids": ["a", "b"]},
        idempotency_key=key,
        epoch=1,
        status="pending",
        progress={},
        outcome={},
        actor="someone",
        reason="hot",
        created_at=NOW,
        expires_at=NOW,
        traceparent=f"00-{'c' * 32}-{'d' * 16}-01",
    )


def run(proposed: list, *, dry_run: bool = False) -> models.PolicyRun:
    return models.PolicyRun(
        policy="degrade",
        engine_id=ENGINE,
        at=NOW,
        trigger="schedule",
        dry_run=dry_run,
        inputs={},
        decision="step_down",
        proposed=proposed,
        did={},
    )


def alert(state: str, fired_at: dt.datetime | None = None) -> models.Alert:
    return models.Alert(
        rule="recovery",
        engine_id=ENGINE,
        state=state,
        summary="5%",
        value=1,
        threshold=1,
        since=NOW,
        fired_at=fired_at,
    )


def test_a_rate_without_samples_is_not_zero():
    assert Rate.of(0, 0).ratio is None
    assert Rate.of(1, 4) == Rate(1, 4, 0.25)


def test_an_empty_store_has_an_overview_of_nothing(store):
    with store.read() as session:
        found = queries.overview(session, HOUR)
    assert (found.requests, found.usable.ratio, found.recovery_failures.ratio, found.hit_by_kind) == (0, None, None, {})
    assert found.holdings.bytes_by_tier == {"gpu": 0, "host": 0, "disk": 0}


def test_prefixes_are_filtered_searched_ordered_and_paged(store):
    spans = Spans()
    send(
        store,
        spans.transition(1, prefix="aa" * 16, tokens=10, namespace="team_a"),
        spans.transition(1, prefix="ab" * 16, tokens=30, namespace="teamXa", pinned=True),
        spans.transition(1, prefix="cc" * 16, tokens=20, state__to="COMPRESSED", namespace="other"),
    )

    def ids(**filters):
        with store.read() as session:
            return [row.prefix_id[:2] for row in queries.list_prefixes(session, **filters).rows]

    assert ids(order="tokens") == ["ab", "cc", "aa"]
    assert ids(order="tokens", limit=1, offset=1) == ["cc"]
    assert ids(search="a", order="id") == ["aa", "ab"]
    assert ids(search="m_a") == ["aa"]  # the sign LIKE would take for any letter is itself
    assert ids(states=["COMPRESSED"]) == ["cc"]
    assert ids(namespace="other") == ["cc"]
    assert ids(pinned=True) == ["ab"]
    assert ids(engine_id="engine-2") == []
    with store.read() as session:
        assert queries.list_prefixes(session, limit=1).total == 3
        with pytest.raises(BadRequest, match="served"):
            queries.list_prefixes(session, order="mood")


def test_children_and_roots_make_the_tree(store):
    spans = Spans()
    root, child = "aa" * 16, "bb" * 16
    send(store, spans.transition(1, prefix=root), spans.transition(1, prefix=child, parent__id=root))
    with store.read() as session:
        assert [row.prefix_id for row in queries.list_children(session, ENGINE, None)] == [root]
        assert [row.prefix_id for row in queries.get_prefix(session, ENGINE, root).children] == [child]


def test_damaged_prefixes_come_with_their_reason(store):
    send(store, Spans().transition(1), Spans().transition(2, "QUARANTINED", cause="corruption", reason="checksum"))
    with store.read() as session:
        (found,) = queries.list_damaged(session)
    assert (found.prefix.state, found.reason, found.cause) == ("QUARANTINED", "checksum", "corruption")
    assert len(found.trace_id) == 32


def test_sync_compares_with_the_newest_revision_that_bears_on_the_engine(store):
    add(store, desired(None, mode="normal"), desired("engine-2", mode="no_disk"))
    with store.write() as session:
        session.get(models.Engine, ENGINE).observed_revision = 1
        refusing = session.get(models.Engine, "engine-2")
        refusing.observed_revision = 2
        refusing.observed = {"error": "cap below pinned bytes"}
    with store.read() as session:
        first, second = queries.list_engines(session, NOW + dt.timedelta(seconds=20))
    assert (first.desired_revision, first.sync, first.health) == (1, "in_sync", "stale")
    assert (second.desired_revision, second.sync) == (2, "refused")
    add(store, desired(None, mode="bypass"))
    with store.read() as session:
        assert [engine.sync for engine in queries.list_engines(session, NOW)] == ["behind", "behind"]


def test_marks_are_the_changes_and_nothing_else(store):
    add(
        store,
        desired(None, mode="no_disk"),
        desired("engine-2", mode="bypass"),
        command("evict", "k1"),
        command("compact", "k2"),
        run([{"kind": "mode"}]),
        run([]),
        run([{"kind": "mode"}], dry_run=True),
        models.Alert(
            rule="recovery",
            engine_id=ENGINE,
            state="firing",
            summary="5%",
            value=1,
            threshold=1,
            since=NOW,
            fired_at=NOW,
        ),
        models.Alert(rule="gap", engine_id=ENGINE, state="pending", summary="", value=1, threshold=1, since=NOW),
    )
    send(store, Spans().transition(1, "QUARANTINED", reason="checksum"))
    with store.read() as session:
        found = queries.list_marks(session, HOUR, ENGINE)
        elsewhere = queries.list_marks(session, TimeRange(NOW + dt.timedelta(1), NOW + dt.timedelta(2)))
    assert sorted(mark.kind for mark in found) == ["alert", "desired", "evict", "policy", "quarantine"]
    evict = next(mark for mark in found if mark.kind == "evict")
    assert (evict.text, evict.actor, evict.trace_id) == ("evict 2 prefixes: pending", "someone", "c" * 32)
    assert elsewhere == []


def test_policy_runs_that_acted_are_found_among_many_that_did_not(store):
    add(store, run([{"kind": "mode"}]), *(run([]) for _ in range(300)))
    with store.read() as session:
        assert len(queries.list_policy_runs(session, acted_only=True, limit=5)) == 1
        assert len(queries.list_policy_runs(session, limit=5)) == 5


def test_hit_rate_by_state_fills_minutes_in_which_a_state_served_nothing(store):
    spans = Spans()
    send(store, spans.acquire(usable=50, prompt=100), spans.acquire(usable=0, at=NOW + dt.timedelta(minutes=1)))
    with store.read() as session:
        points = queries.series(session, "hit_rate_by_state", HOUR).points
    assert [(point.label, point.value, point.samples) for point in points] == [("FULL", 0.5, 100), ("FULL", 0.0, 200)]


@pytest.mark.parametrize("name", sorted(queries.SERIES))
def test_every_series_is_empty_without_data(store, name):
    with store.read() as session:
        assert queries.series(session, name, HOUR, ENGINE).points == []


@pytest.mark.parametrize(
    ("counts", "q", "value"),
    [
        ([0, 0, 0], 0.5, None),
        ([4, 0, 0], 0.5, 0.5),
        ([0, 10, 0], 1.0, 2.0),
        ([1, 1, 8], 0.99, 2.0),
        ([5, 5, 0], 0.5, 1.0),
    ],
)
def test_quantiles_of_buckets(counts, q, value):
    assert queries.bucket_quantile([1.0, 2.0], counts, q) == value


PLANS = {
    "ix_prefixes_served": "SELECT * FROM prefixes WHERE engine_id='e' ORDER BY tokens_served DESC LIMIT 10",
    "ix_validation_failures_at": "SELECT * FROM validation_failures WHERE engine_id='e' ORDER BY at DESC LIMIT 10",
    "ix_prefix_versions_at": "SELECT * FROM prefix_versions WHERE engine_id='e' AND at > 5",
}


@pytest.mark.parametrize(("index", "query"), PLANS.items())
def test_what_is_read_in_an_order_has_an_index_for_it(store, index, query):
    explain = "EXPLAIN QUERY PLAN" if store.dialect == "sqlite" else "EXPLAIN"
    with store.read() as session:
        if store.dialect == "postgresql":
            session.execute(text("SET LOCAL enable_seqscan = off"))  # a table of no rows is not worth an index
            session.execute(text("SET LOCAL enable_bitmapscan = off"))
        assert index in " ".join(str(row) for row in session.execute(text(f"{explain} {query}")))


@pytest.mark.parametrize("minutes_back", [30, 90, 150, 24 * 60])
def test_a_long_range_is_the_sum_of_its_minutes(store, minutes_back) -> None:
    spans = Spans()
    ages = (1, 29, 31, 59, 61, 89, 91, 119, 121, 149, 151, 600, 1439, 1441)
    times = [NOW - dt.timedelta(minutes=age) for age in ages]
    send(store, *(spans.acquire(at=at) for at in times))
    window = TimeRange.last(minutes_back, NOW)
    with store.read() as session:
        minutes = select(func.sum(models.RequestRollup.requests)).where(minutes_in(models.RequestRollup.minute, window))
        by_minute = session.scalar(minutes)
        assert queries.overview(session, window).requests == by_minute > 0
