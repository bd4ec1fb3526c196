"""A copy of the store is whole, of one moment, and good enough to run on; a full disk loses nothing."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest
from databases import Databases, PostgresServer
from ingest_support import ENGINE, Spans, new_store, send
from sqlalchemy import func, select, text
from typer.testing import CliRunner

from controlplane.cli.main import app
from controlplane.clock import utc_now
from controlplane.errors import BadRequest, Unavailable
from controlplane.store import Store, models, queries
from controlplane.store.backup import backup


def test_a_copy_made_under_writes_is_one_moment_and_can_be_run_on(databases: Databases, tmp_path: Path) -> None:
    database = databases.new("sqlite")
    store, spans, done = new_store(database, ENGINE), Spans(), threading.Event()

    def write() -> None:
        for number in range(60):
            send(store, spans.acquire(usable=number))
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    answer = CliRunner().invoke(
        app, ["backup", str(tmp_path / "copy"), "--data-dir", str(tmp_path)], env={"KVDECK_DATABASE_URL": database.url}
    )
    thread.join()
    assert answer.exit_code == 0, answer.output
    assert done.is_set()
    copied = Store(f"sqlite:///{tmp_path}/copy")
    with copied.write() as session:
        requests = session.scalar(select(func.sum(models.RequestRollup.requests))) or 0
        hours = session.scalar(select(func.sum(models.RequestHour.requests))) or 0
        assert session.scalar(select(func.count()).select_from(models.RequestRecord)) == requests == hours <= 60
    send(copied, spans.acquire())
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []
    for opened in (store, copied):
        opened.dispose()


def test_no_file_is_overwritten_and_a_postgres_is_named(databases: Databases, tmp_path: Path) -> None:
    there = tmp_path / "copy"
    there.write_text("mine")
    with pytest.raises(BadRequest, match="there already"):
        backup(databases.new("sqlite").url, there)
    assert there.read_text() == "mine"
    with pytest.raises(BadRequest, match="Postgres"):
        backup(databases.new("postgresql").url, tmp_path / "other")


def test_a_postgres_is_dumped_and_restored(databases: Databases, tmp_path: Path) -> None:
    first, second = databases.new("postgresql"), databases.new("postgresql", migrated=False)
    server: PostgresServer = databases.server()
    store = new_store(first, ENGINE)
    send(store, Spans().acquire())
    for tool, *arguments in (
        ("pg_dump", "--format=custom", f"--file={tmp_path}/deck.backup", first.url),
        ("pg_restore", "--no-owner", f"--dbname={second.url}", f"{tmp_path}/deck.backup"),
    ):
        subprocess.run([server.tool(tool), *arguments], check=True, env=os.environ)
    restored = second.open()
    with restored.read() as session:
        assert [engine.id for engine in queries.list_engines(session, utc_now())] == [ENGINE]
        assert session.scalar(select(func.count()).select_from(models.RequestRecord)) == 1
    send(restored, Spans().acquire(at=utc_now()))
    for opened in (store, restored):
        opened.dispose()


def test_a_full_disk_is_said_and_loses_nothing(databases: Databases) -> None:
    store, spans = new_store(databases.new("sqlite"), ENGINE), Spans()
    send(store, spans.acquire())
    with store.write() as session:
        pages = session.scalar(text("PRAGMA page_count"))
        session.execute(text(f"PRAGMA max_page_count={pages}"))
    many = [spans.acquire(usable=number % 100) for number in range(3000)]
    with pytest.raises(Unavailable) as full:
        send(store, *many)
    assert (full.value.code, full.value.retry_after_seconds) == ("database_full", 30)
    with store.write() as session:
        requests = session.scalar(select(func.sum(models.RequestRollup.requests)))
        assert session.scalar(select(func.count()).select_from(models.RequestRecord)) == requests
        assert session.scalar(text("PRAGMA quick_check")) == "ok"
        session.execute(text("PRAGMA max_page_count=1000000"))
    assert send(store, spans.acquire()).rejected_total == 0
    store.dispose()
