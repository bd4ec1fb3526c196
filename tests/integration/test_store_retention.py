"""What is old is forgotten in small steps; what a prefix is now is not."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from ingest_support import ENGINE, NOW, Spans, counter, new_store, send, send_points
from sqlalchemy import func, select

from controlplane.settings import Settings
from controlplane.store import models, queries
from controlplane.store.retention import forget_old, forget_step, rules

SETTINGS = Settings(database_url="sqlite:///x", data_dir=Path("x"), keep_history_days=14, keep_rollups_days=30)
DAY = dt.timedelta(days=1)


@pytest.fixture
def store(database):
    store = new_store(database, ENGINE)
    yield store
    store.dispose()


def count(store, model) -> int:
    with store.read() as session:
        return session.scalar(select(func.count()).select_from(model))


def test_history_goes_but_what_a_held_prefix_is_now_stays(store):
    spans = Spans()
    send(store, *(spans.transition(version) for version in range(1, 6)))
    deleted = forget_old(store, SETTINGS, NOW + 15 * DAY)
    assert deleted["prefix_versions"] == 4
    with store.read() as session:
        found = queries.get_prefix(session, ENGINE, "a" * 32)
    assert [row.version for row in found.versions] == [5]


def test_forgotten_history_is_no_gap_when_the_prefix_moves_on(store):
    spans = Spans()
    send(store, *(spans.transition(version) for version in range(1, 6)))
    forget_old(store, SETTINGS, NOW + 15 * DAY)
    send(store, spans.transition(6))
    with store.read() as session:
        assert queries.list_gaps(session) == []


def test_an_evicted_prefix_goes_with_its_history(store):
    spans = Spans()
    send(store, spans.transition(1), spans.transition(2, "EVICTED"))
    forget_old(store, SETTINGS, NOW + 13 * DAY)
    assert count(store, models.Prefix) == 1
    forget_old(store, SETTINGS, NOW + 15 * DAY)
    assert (count(store, models.Prefix), count(store, models.PrefixVersion)) == (0, 0)


def test_each_table_has_its_own_age(store):
    spans = Spans()
    send(store, spans.acquire(), spans.validate("fail", "tail_absent"))
    send_points(store, counter("kvcache.queries", 1, NOW, NOW))
    forget_old(store, SETTINGS, NOW + dt.timedelta(hours=3))
    assert (count(store, models.MetricPoint), count(store, models.MetricRollup)) == (0, 1)
    forget_old(store, SETTINGS, NOW + 15 * DAY)
    assert (count(store, models.ValidationFailure), count(store, models.ValidationRollup)) == (0, 1)
    forget_old(store, SETTINGS, NOW + 31 * DAY)
    for model in (models.ValidationRollup, models.RequestRollup, models.MetricRollup, models.Prefix):
        assert count(store, model) == 0, model


def test_a_step_deletes_no_more_than_it_may(store):
    spans = Spans()
    send(store, *(spans.validate("fail", "tail_absent") for _ in range(10)))
    rule = next(rule for rule in rules(SETTINGS, NOW + 15 * DAY) if rule.table == "validation_failures")
    with store.write() as session:
        assert forget_step(session, rule, 4) == 4
    assert count(store, models.ValidationFailure) == 6


def test_the_work_of_one_run_is_bounded_and_the_next_run_goes_on(store):
    spans = Spans()
    send(store, *(spans.validate("fail", "tail_absent") for _ in range(10)))
    for _ in range(3):
        forget_old(store, SETTINGS, NOW + 15 * DAY, step_rows=2, most_steps=8)
    assert count(store, models.ValidationFailure) == 0


def test_tables_with_keys_of_several_columns_are_cut_by_step_too(store):
    spans = Spans()
    send(store, *(spans.acquire(at=NOW + dt.timedelta(minutes=minute)) for minute in range(5)))
    rule = next(rule for rule in rules(SETTINGS, NOW + 40 * DAY) if rule.table == "request_rollups")
    with store.write() as session:
        assert forget_step(session, rule, 3) == 3
    assert count(store, models.RequestRollup) == 2
