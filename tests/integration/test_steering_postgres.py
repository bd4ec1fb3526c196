"""Leadership, and one pass through the write door, on a real Postgres."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from databases import Databases
from sqlalchemy import select, text
from steering_support import ENGINE, NOW, deed, draft

from controlplane.errors import Conflict, Unavailable
from controlplane.ingest.engines import register_engine
from controlplane.settings import Settings
from controlplane.steering import commands, desired
from controlplane.steering.leader import FencedStore
from controlplane.steering.leader_postgres import LOCK_KEY, AdvisoryLockLeadership
from controlplane.steering.scheduler import Scheduler
from controlplane.store import Store
from controlplane.store.models import Audit


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
    cut_leader(stores[1])
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


def test_what_a_deposed_leader_was_about_to_write_is_refused(stores: tuple[Store, Store]) -> None:
    first, second = (AdvisoryLockLeadership(store) for store in stores)
    assert first.try_lead()
    fenced = FencedStore(stores[0], first)
    with fenced.write() as session:
        session.add(audit_row("while it leads"))
    cut_leader(stores[1])
    assert second.try_lead()
    for write in (fenced.write, fenced.write_beside):
        with pytest.raises(Conflict, match="leads no more"), write() as session:
            session.add(audit_row("after it led"))
    with stores[1].read() as session:
        assert "after it led" not in session.scalars(select(Audit.reason)).all()
    second.release()


def test_an_epoch_begins_only_when_what_the_old_leader_is_writing_has_ended(stores: tuple[Store, Store]) -> None:
    first, second = (AdvisoryLockLeadership(store) for store in stores)
    assert first.try_lead()
    with FencedStore(stores[0], first).write() as session:
        session.add(audit_row("half done"))
        session.flush()
        cut_leader(stores[1])
        taking_over = threading.Thread(target=second.try_lead)
        taking_over.start()
        taking_over.join(0.3)
        assert taking_over.is_alive()
    taking_over.join(30)
    assert second.epoch == first.epoch + 1
    with stores[1].read() as session:
        actions = session.scalars(select(Audit.reason).order_by(Audit.id)).all()
    assert actions.index("half done") < max(i for i, reason in enumerate(actions) if "leadership" in reason)
    second.release()
    first.release()


def test_an_epoch_that_cannot_begin_gives_the_leadership_up_again(
    stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (AdvisoryLockLeadership(store) for store in stores)
    with monkeypatch.context() as patched:
        patched.setattr("controlplane.store.session.WRITING", LOCK_KEY)  # which the claim itself holds
        patched.setattr("controlplane.store.session.BUSY_TIMEOUT_MS", 10)
        impatient = Store(stores[0].url)
        blocked = AdvisoryLockLeadership(impatient)
        with pytest.raises(Unavailable):
            blocked.try_lead()
        assert blocked.epoch == 0
        impatient.dispose()
    assert second.try_lead()
    assert not first.try_lead()
    second.release()


def audit_row(reason: str) -> Audit:
    return Audit(at=NOW, actor="policy:test", role="operator", action="test", target="t", reason=reason)


def cut_leader(store: Store) -> None:
    """Ends the session that holds the leadership, as an administrator or a broken cable would."""
    with store.engine.connect() as connection:
        high, low = LOCK_KEY >> 32, LOCK_KEY & 0xFFFF_FFFF
        query = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE classid = :high AND objid = :low AND granted"
        connection.execute(text(query), {"high": high, "low": low})
