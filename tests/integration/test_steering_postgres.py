"""Leadership, and one pass through the write door, on a real Postgres."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from databases import Databases
from sqlalchemy import text
from steering_support import ENGINE, NOW, deed, draft

from controlplane.ingest.engines import register_engine
from controlplane.settings import Settings
from controlplane.steering import commands, desired
from controlplane.steering.leader_postgres import AdvisoryLockLeadership
from controlplane.steering.scheduler import Scheduler
from controlplane.store import Store


@pytest.fixture
def stores(databases: Databases) -> Iterator[tuple[Store, Store]]:
    """Two control planes' stores on one database."""
    database = databases.new("postgresql")
    pair = database.open(), database.open()
    yield pair
    for store in pair:
        store.dispose()


def test_one_of_two_leads_and_the_other_follows_with_a_newer_epoch(stores: tuple[Store, Store]) -> None:
    first, second = (AdvisoryLockLeadership(store) for store in stores)
    assert (first.try_lead(), second.try_lead()) == (True, False)
    epoch = first.epoch
    assert first.try_lead()
    assert first.epoch == epoch
    first.release()
    assert second.try_lead()
    assert second.epoch == epoch + 1
    second.release()


def test_a_leader_that_lost_its_connection_notices_and_follows(stores: tuple[Store, Store]) -> None:
    first, second = (AdvisoryLockLeadership(store) for store in stores)
    assert first.try_lead()
    epoch = first.epoch
    with stores[1].write() as session:
        session.execute(text("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted"))
    assert second.try_lead()
    assert second.epoch == epoch + 1
    assert not first.try_lead()
    assert first.epoch == 0
    second.release()


def test_the_write_door_and_the_sweeps_work_on_postgres(stores: tuple[Store, Store]) -> None:
    store = stores[0]
    with store.write() as session:
        register_engine(
            session, ENGINE, boot_id="b", model="toy", fingerprint="f", page_tokens=64, labels={}, observed={}
        )
    with store.write() as session:
        command = commands.submit(session, deed(), draft(idempotency_key="once-only"))
        assert commands.submit(session, deed(), draft(idempotency_key="once-only")).id == command.id
        desired.revise(session, deed(), engine_id=ENGINE, changes={"mode": "bypass"})
        assert len(commands.take_waiting(session, ENGINE, NOW)) == 1
    scheduler = Scheduler(store, Settings(database_url=store.url, data_dir=Path("unused")))
    scheduler.start()
    scheduler.sweep()
    scheduler.stop()
    with store.read() as session:
        assert desired.newest(session, desired.Scope(engine_id=ENGINE)).document == {}
