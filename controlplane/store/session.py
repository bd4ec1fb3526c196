"""The door to the database: short read sessions, and write sessions that are one transaction each."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Dialect, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError, TimeoutError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from controlplane.errors import ControlPlaneError, SchemaMismatch, Unavailable
from controlplane.store.turns import Turns

BUSY_TIMEOUT_MS = 5000
WRITING = 0x6B76_6463_0002  # advisory lock of a Postgres database; the other keys are in leader_postgres and env.py
CONNECTIONS = 16  # kept open; under load more are opened than this, and closed again
WRITES = "kvdeck_writes"  # execution option: this connection's transactions take the write lock at their start


# A cable that is cut says nothing. Without these, the server would hold a dead leader's lock for two hours, and a
# leader would wait as long for an answer before it notices that it leads no more.
_NOTICE_LOST_CLIENTS = " ".join(
    f"-c tcp_{name}"
    for name in ("keepalives_idle=5", "keepalives_interval=2", "keepalives_count=3", "user_timeout=10000")
)
_NOTICE_LOST_SERVERS = {
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}


class Store:
    """A pool of connections. Safe to share between threads; dispose it when the process ends."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = open_engine(url)
        self.dialect: str = self.engine.dialect.name  # "sqlite" or "postgresql"
        reading = {"postgresql_readonly": True} if self.dialect == "postgresql" else {}
        self._reader = self.engine.execution_options(**reading)
        self._writer = self.engine.execution_options(**{WRITES: True})
        self._turn = Turns() if self.dialect == "sqlite" else None

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session on one consistent snapshot. Whatever is changed in it is rolled back.

        Raises Unavailable when the database is locked or down, SchemaMismatch when its tables are missing.
        """
        with translated_errors(), Session(self._reader, autoflush=False, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A session that is one transaction, and that no other `write` overlaps: for whoever decides on what they read.

        Committed when the block ends, rolled back when it raises. On SQLite it starts with BEGIN IMMEDIATE: a deferred
        transaction that reads, then writes, fails with SQLITE_BUSY at once when another wrote in between, and no
        timeout helps. On Postgres it holds an advisory lock, so that of two control planes neither submits one
        idempotency key twice nor revises the same revision. Raises as `read` does.
        """
        with self.write_beside() as session:
            if self.dialect == "postgresql":
                session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": WRITING})
            yield session

    @contextmanager
    def write_beside(self) -> Iterator[Session]:
        """As `write`, but Postgres lets others write at the same time: for much traffic on rows the caller has locked.

        Telemetry and heartbeats are each engine's own, and its row is their lock (`require_engine_row`).
        """
        with (
            translated_errors(),
            self._turn_to_write(),
            Session(self._writer, expire_on_commit=False) as session,
            session.begin(),
        ):
            yield session

    @contextmanager
    def _turn_to_write(self) -> Iterator[None]:
        """Lets this process's threads write to a SQLite file one by one.

        It has one writer at a time anyway. Whoever finds it taken sleeps, up to 100 ms, and looks again, holding a
        connection all the while: of a hundred engines, some heartbeats waited for seconds. Here, the next is woken.
        """
        if self._turn is None:
            yield
            return
        if not self._turn.take(BUSY_TIMEOUT_MS / 1000):
            raise _locked()
        try:
            yield
        finally:
            self._turn.leave()

    def dispose(self) -> None:
        """Close every pooled connection."""
        self.engine.dispose()


def open_engine(url: str, *, foreign_keys: bool = True, pooled: bool = True) -> Engine:
    """An engine with the settings every connection must have. Migrations turn `foreign_keys` off to rebuild tables.

    Not `pooled`, a Postgres connection that is closed ends its session, and with it every lock it holds.
    """
    parsed = normalise_url(url)
    if parsed.get_backend_name() != "sqlite":
        engine = create_engine(
            parsed,
            **({"pool_pre_ping": True, "pool_size": CONNECTIONS} if pooled else {"poolclass": NullPool}),
            connect_args={
                "options": f"-c lock_timeout={BUSY_TIMEOUT_MS} -c timezone=UTC {_NOTICE_LOST_CLIENTS}",
                "connect_timeout": 5,
                **_NOTICE_LOST_SERVERS,
            },
        )
        event.listen(engine, "do_connect", _connect_to_postgres)
        return engine
    engine = create_engine(parsed, pool_size=CONNECTIONS, connect_args={"check_same_thread": False})
    _tune_sqlite(engine, foreign_keys)
    return engine


def _connect_to_postgres(dialect: Dialect, _record: object, arguments: Any, named: Any) -> Any:
    """Before SQLAlchemy asks anything: a database that keeps bytes and no text would answer it with those."""
    connection: Any = dialect.connect(*arguments, **named)
    encoding, name = connection.info.parameter_status("server_encoding"), connection.info.dbname
    if encoding == "UTF8":
        return connection
    connection.close()
    raise SchemaMismatch(
        "database_encoding",
        f"The database {name} is encoded in {encoding}, which cannot hold every text.",
        "Make another: CREATE DATABASE kvdeck TEMPLATE template0 ENCODING 'UTF8'; point KVDECK_DATABASE_URL to it.",
    )


def normalise_url(url: str) -> URL:
    """The URL with the driver kvdeck ships support for (psycopg 3)."""
    parsed = make_url(url)
    return parsed.set(drivername="postgresql+psycopg") if parsed.drivername == "postgresql" else parsed


def _use_wal(connection: Any) -> None:
    """Switch the file to WAL, once for its life.

    The switch needs the file to itself and, unlike everything else, does not wait for it: where several processes open
    a new file at once, all but one would fail.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _tune_sqlite(engine: Engine, foreign_keys: bool) -> None:
    pragmas = (
        f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}",
        "PRAGMA synchronous=NORMAL",
        f"PRAGMA foreign_keys={'ON' if foreign_keys else 'OFF'}",
        "PRAGMA temp_store=MEMORY",
    )

    def on_connect(connection: Any, _record: object) -> None:
        # The sqlite3 module's own transaction handling is off: it would begin late, and deferred.
        connection.isolation_level = None
        for pragma in pragmas:
            connection.execute(pragma)
        _use_wal(connection)

    def on_begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get(WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    event.listen(engine, "connect", on_connect)
    event.listen(engine, "begin", on_begin)


@contextmanager
def translated_errors() -> Iterator[None]:
    """Database failures as errors of our own tree; anything that is a bug passes through as it is."""
    try:
        yield
    except (OperationalError, ProgrammingError, DBAPIError, TimeoutError) as error:
        ours = _translate(error)
        if ours is None:
            raise
        raise ours from error


def _translate(error: OperationalError | ProgrammingError | DBAPIError | TimeoutError) -> ControlPlaneError | None:
    text = str(getattr(error, "orig", error)).strip().partition("\n")[0]
    if "no such table" in text or "no such column" in text or "UndefinedTable" in type(error.__cause__).__name__:
        return SchemaMismatch(
            "schema_missing", f"The database has no kvdeck tables of this version ({text}).", "Run `kvdeck migrate`."
        )
    if "file is not a database" in text:
        return Unavailable(
            "database_foreign",
            "The file that should be the database is none, or is damaged.",
            "Check KVDECK_DATABASE_URL and --data-dir; `kvdeck backup` copies can be put back while nothing runs.",
        )
    lost = isinstance(error, DBAPIError) and error.connection_invalidated
    if not lost and not isinstance(error, OperationalError | TimeoutError):
        return None
    if "locked" in text or "lock timeout" in text:
        return _locked()
    if "is full" in text or "No space left" in text:
        return Unavailable(
            "database_full",
            f"The database has no room left ({text}); nothing was written, and what was there is whole.",
            "Free some space where it lies, or keep less: the settings KVDECK_KEEP_...",
            retry_after_seconds=30,
        )
    return Unavailable(
        "database_unavailable",
        f"The database cannot be reached ({text or type(error).__name__}).",
        "Check that it runs and that KVDECK_DATABASE_URL points to it.",
    )


def _locked() -> Unavailable:
    return Unavailable(
        "database_locked",
        f"Another writer held the database for over {BUSY_TIMEOUT_MS // 1000} seconds; nothing was written.",
        "Try again. If it stays so, look for a process that keeps the database file open.",
    )
