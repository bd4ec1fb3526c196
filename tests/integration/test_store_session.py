"""Sessions: what they commit, what they hold, and how they fail."""

from __future__ import annotations

import datetime as dt
import threading
from contextlib import suppress

import pytest
from ingest_support import ENGINE, NOW, new_store
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError, InternalError, StatementError

from controlplane.errors import Unavailable
from controlplane.store import Store, models
from controlplane.store.columns import EPOCH
from controlplane.store.session import normalise_url


@pytest.fixture
def store(database):
    store = new_store(database, ENGINE)
    yield store
    store.dispose()


def audit_row(actor: str = "someone") -> models.Audit:
    return models.Audit(at=NOW, actor=actor, role="admin", action="test", target="t", reason="r")


def actors(store: Store) -> list[str]:
    with store.read() as session:
        return list(session.scalars(select(models.Audit.actor)))


def setting(store: Store, statement: str) -> object:
    with store.read() as session:
        return session.execute(text(statement)).scalar()


SETTINGS = {
    "sqlite": {
        "PRAGMA journal_mode": "wal",
        "PRAGMA synchronous": 1,
        "PRAGMA busy_timeout": 5000,
        "PRAGMA foreign_keys": 1,
        "PRAGMA temp_store": 2,
    },
    "postgresql": {"SHOW lock_timeout": "5s", "SHOW timezone": "UTC", "SHOW transaction_read_only": "on"},
}


def test_a_write_is_committed_when_its_block_ends(store):
    with store.write() as session:
        session.add(audit_row())
    assert actors(store) == ["someone"]


def test_a_write_whose_block_raises_leaves_nothing(store):
    def fail():
        with store.write() as session:
            session.add(audit_row())
            session.flush()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert actors(store) == []


def test_what_a_read_session_changes_is_dropped(store):
    # Postgres refuses it at once.
    with suppress(InternalError), store.read() as session:
        session.add(audit_row())
        session.flush()
    assert actors(store) == []


def test_connections_have_the_settings_that_were_measured(store):
    for statement, value in SETTINGS[store.dialect].items():
        assert setting(store, statement) == value, statement


def impatient(url: str) -> Store:
    """A store that waits for a lock for a moment only."""
    store = Store(url)
    with store.engine.connect() as connection:  # goes back to the pool, from which the next session takes it
        if store.dialect == "sqlite":
            connection.exec_driver_sql("PRAGMA busy_timeout=1")
        else:
            connection.exec_driver_sql("SET lock_timeout = '10ms'")
            connection.commit()
    return store


def test_a_write_takes_its_lock_before_its_first_read(store):
    other = impatient(store.url)
    with store.write() as session:
        session.execute(select(models.Engine.id)).all()
        with pytest.raises(Unavailable) as caught, other.write() as late:
            late.execute(select(models.Engine.id))
    other.dispose()
    assert caught.value.code == "database_locked"
    assert caught.value.retry_after_seconds > 0


def test_what_waits_for_a_lock_in_vain_writes_nothing(store):
    other = impatient(store.url)
    with store.write() as session:
        session.add(audit_row())
        session.flush()
        with pytest.raises(Unavailable), other.write() as late:
            late.add(audit_row("late"))
    other.dispose()
    assert actors(store) == ["someone"]


def test_writers_in_many_threads_wait_for_each_other(store):
    def read_then_write():
        for _ in range(10):
            with store.write() as session:
                count = len(session.scalars(select(models.Audit.id)).all())
                session.add(audit_row(str(count)))

    threads = [threading.Thread(target=read_then_write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(int, actors(store))) == list(range(40))


def test_a_writer_waits_no_longer_for_a_thread_of_its_own_process(store, monkeypatch):
    monkeypatch.setattr("controlplane.store.session.BUSY_TIMEOUT_MS", 10)
    own = impatient(store.url)
    with own.write(), pytest.raises(Unavailable) as caught, own.write() as late:
        late.execute(select(models.Engine.id))
    with own.write() as session:  # and nobody's turn was lost by it
        session.add(audit_row())
    own.dispose()
    assert caught.value.code == "database_locked"
    assert actors(store) == ["someone"]


def test_a_broken_rule_of_a_table_is_not_disguised(store):
    twins = [models.Token(id=i, name="n", role="r", secret_sha256="s", created_at=NOW) for i in ("1", "2")]
    with pytest.raises(IntegrityError), store.write() as session:
        session.add_all(twins)


def test_times_come_back_exact_and_aware(store):
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    with store.write() as session:
        row = audit_row()
        row.at = at
        session.add(row)
    with store.read() as session:
        (found,) = session.scalars(select(models.Audit.at))
    assert found == at
    assert found.tzinfo is dt.UTC
    assert EPOCH.tzinfo is dt.UTC


def test_a_naive_time_is_refused(store):
    row = audit_row()
    row.at = NOW.replace(tzinfo=None)
    with pytest.raises(StatementError, match="naive"), store.write() as session:
        session.add(row)


def test_postgres_urls_get_the_driver_we_ship():
    assert normalise_url("postgresql://h/d").drivername == "postgresql+psycopg"
    assert normalise_url("sqlite:///x").drivername == "sqlite"
