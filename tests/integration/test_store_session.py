"""Sessions: what they commit, what they hold, and how they fail."""

from __future__ import annotations

import datetime as dt
import sqlite3
import threading
from contextlib import closing

import pytest
from ingest_support import ENGINE, NOW, new_store
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError, StatementError

from controlplane.errors import Unavailable
from controlplane.store import Store, models
from controlplane.store.columns import EPOCH
from controlplane.store.session import normalise_url


@pytest.fixture
def store(tmp_path):
    store = new_store(tmp_path, ENGINE)
    yield store
    store.dispose()


def audit_row(actor: str = "someone") -> models.Audit:
    return models.Audit(at=NOW, actor=actor, role="admin", action="test", target="t", reason="r")


def actors(store: Store) -> list[str]:
    with store.read() as session:
        return list(session.scalars(select(models.Audit.actor)))


def pragma(store: Store, name: str) -> object:
    with store.read() as session:
        return session.execute(text(f"PRAGMA {name}")).scalar()


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
    with store.read() as session:
        session.add(audit_row())
        session.flush()
    assert actors(store) == []


def test_connections_have_the_settings_that_were_measured(store):
    assert pragma(store, "journal_mode") == "wal"
    assert pragma(store, "synchronous") == 1
    assert pragma(store, "busy_timeout") == 5000
    assert pragma(store, "foreign_keys") == 1
    assert pragma(store, "temp_store") == 2


def test_a_write_takes_the_lock_before_its_first_read(store):
    with closing(sqlite3.connect(normalise_url(store.url).database, timeout=0)) as other, store.write() as session:
        session.execute(select(models.Engine.id)).all()
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")


def test_a_database_that_stays_locked_is_unavailable(store):
    other = Store(store.url)
    with store.write() as session, other.engine.connect() as connection:
        session.add(audit_row())
        session.flush()
        connection.exec_driver_sql("PRAGMA busy_timeout=1")
        connection.close()  # back to the pool, from which the next session takes it
        with pytest.raises(Unavailable) as caught, other.write() as late:
            late.add(audit_row("late"))
        assert caught.value.code == "database_locked"
        assert caught.value.retry_after_seconds > 0
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
