"""A snapshot repairs what lost spans left wrong, and a later span still knows better."""

from __future__ import annotations

import datetime as dt

import pytest
from ingest_support import ENGINE, LIFE, NOW, PREFIX, Spans, new_store, points, register, send

from controlplane.errors import BadRequest, Conflict, NotFound
from controlplane.ingest.metrics import ingest_metrics
from controlplane.ingest.snapshot import apply_snapshot
from controlplane.store import models, queries

LATER = NOW + dt.timedelta(minutes=5)


@pytest.fixture
def store(database):
    store = new_store(database, ENGINE)
    yield store
    store.dispose()


def entry(version: int, state: str = "FULL", prefix: str = PREFIX, life: int = LIFE) -> dict:
    return {
        "prefix.id": prefix,
        "namespace": "tenant-a",
        "life": life,
        "version": version,
        "state.from": "FULL",
        "state.to": state,
        "cause": "policy",
        "tokens": 128,
        "objects": {"compressed_kv": {"gpu": 1}},
        "checkpoints": [{"id": "c9", "boundary": 128, "kinds": ["swa_window"], "tiers": ["gpu"]}],
    }


def snapshot(store, *entries: dict, now: dt.datetime = LATER, **more):
    with store.write() as session:
        return apply_snapshot(session, ENGINE, list(entries), clock=lambda: now, **more)


def detail(store, prefix: str = PREFIX) -> queries.PrefixDetail:
    with store.read() as session:
        return queries.get_prefix(session, ENGINE, prefix)


def test_a_snapshot_moves_a_prefix_on_and_closes_its_gaps(store):
    spans = Spans()
    send(store, spans.transition(1), spans.transition(3))
    outcome = snapshot(store, entry(6, "COMPRESSED"))
    assert (outcome.moved, outcome.gone) == (1, 0)
    found = detail(store)
    assert (found.now.version, found.now.state) == (6, "COMPRESSED")
    assert (found.versions[0].version, found.versions[0].repaired) == (6, True)
    assert [row.checkpoint_id for row in found.checkpoints] == ["c9"]
    gaps = sorted((g.first_version, g.last_version, g.closed_by) for g in found.gaps)
    assert gaps == [(2, 2, "snapshot"), (4, 5, "snapshot")]


def test_a_snapshot_that_agrees_closes_gaps_and_writes_no_history(store):
    spans = Spans()
    send(store, spans.transition(1), spans.transition(3))
    outcome = snapshot(store, entry(3))
    assert (outcome.moved, outcome.gone, outcome.gaps_closed) == (0, 0, 1)
    assert [row.version for row in detail(store).versions] == [3, 1]


def test_a_prefix_the_engine_no_longer_has_becomes_evicted(store):
    send(store, Spans().transition(1), Spans().transition(1, prefix="b" * 32))
    assert snapshot(store, entry(1)).gone == 1
    gone = detail(store, "b" * 32)
    assert (gone.now.state, gone.now.version, gone.now.gpu_bytes) == ("EVICTED", 2, 0)
    assert (gone.versions[0].reason, gone.versions[0].repaired) == ("gone_from_engine", True)
    assert detail(store).now.state == "FULL"


def test_what_changed_while_the_snapshot_travelled_is_left_alone(store):
    send(store, Spans().transition(1))
    assert snapshot(store, now=NOW + dt.timedelta(seconds=3)).gone == 0
    assert detail(store).now.state == "FULL"


def test_a_span_overrules_an_eviction_that_was_only_concluded(store):
    spans = Spans()
    send(store, spans.transition(1))
    snapshot(store)
    send(store, spans.transition(2, "COMPRESSED"))
    found = detail(store)
    assert (found.now.state, found.versions[0].repaired, found.versions[0].cause) == ("COMPRESSED", False, "commit")


def test_an_older_snapshot_does_not_take_a_prefix_back(store):
    spans = Spans()
    send(store, spans.transition(1), spans.transition(2, "COMPRESSED"))
    snapshot(store, entry(1))
    assert detail(store).now.state == "COMPRESSED"


def test_the_same_snapshot_twice_changes_nothing(store):
    snapshot(store, entry(4))
    before = detail(store)
    snapshot(store, entry(4))
    assert detail(store) == before


def test_a_bad_entry_applies_nothing(store):
    send(store, Spans().transition(1))
    with pytest.raises(BadRequest, match=r"Entry 1 .*state\.to 'X'"):
        snapshot(store, entry(2), entry(2, "X", "b" * 32))
    assert detail(store).now.version == 1


def test_only_the_registered_boot_may_tell(store):
    with pytest.raises(Conflict):
        snapshot(store, entry(1), boot_id="boot-0")
    with pytest.raises(NotFound), store.write() as session:
        apply_snapshot(session, "stranger", [])


def wanted(store) -> bool:
    with store.read() as session:
        return session.get(models.Engine, ENGINE).snapshot_wanted


def test_a_gap_that_stays_open_asks_for_a_snapshot(store):
    spans = Spans()
    snapshot(store, now=NOW)
    send(store, spans.transition(1), spans.transition(3))
    assert not wanted(store)  # the missing one may be on its way
    with store.write() as session:
        ingest_metrics(session, points(), clock=lambda: LATER)
    assert wanted(store)
    snapshot(store, entry(3))
    send(store, spans.acquire(), now=LATER)
    assert not wanted(store)


def test_a_new_boot_wants_a_snapshot_and_gets_rid_of_the_wish(store):
    register(store, boot="boot-2")
    assert wanted(store)
    snapshot(store, boot_id="boot-2")
    assert not wanted(store)
