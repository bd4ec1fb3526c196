"""The pages on Postgres, backup, upgrade and security: every command runs as written, and what they promise holds."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest
from databases import Database, PostgresServer, free_port
from howto_support import blocks, environment, shell
from live_support import Live, live_engine, prompt
from sqlalchemy import select
from steering_support import Deck, wait_for

from controlplane.auth import Role, issue_token
from controlplane.store import Store
from controlplane.store.models import Engine, HistoryGap, Prefix, Token


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server that asks for passwords, and where nobody is called kvdeck yet."""
    made = PostgresServer()
    made.do("CREATE ROLE admin SUPERUSER LOGIN")
    with psycopg.connect(made.url().replace("kvdeck@", "admin@"), autocommit=True) as connection:
        connection.execute("ALTER ROLE kvdeck RENAME TO builder")
        (made.data / "pg_hba.conf").write_text("host all admin all trust\nhost all all all scram-sha-256\n")
        connection.execute("SELECT pg_reload_conf()")
    yield made
    made.remove()


def test_postgres_is_made_as_its_page_says(server: PostgresServer, tmp_path: Path) -> None:
    make, use = blocks("postgres.md")
    tools = str(Path(server.tool("psql")).parent)
    shell(make, tmp_path, TOOLS=tools, ADMIN_URL=server.url().replace("kvdeck@", "admin@"))
    (tmp_path / "database.password").write_text("change-me\n")
    where = {"HOST": "127.0.0.1", "PORT": str(server.port), "FOLDER": str(tmp_path), "KVDECK_DATA_DIR": str(tmp_path)}
    said = shell(use, tmp_path, **where)
    assert "ann" in said
    (tmp_path / "database.password").write_text("another\n")
    with pytest.raises(AssertionError, match=r"database_unavailable|cannot be reached"):
        shell(use, tmp_path, **where)


def held(live: Live) -> dict[str, int]:
    """What the engine holds: prefix -> version."""
    return {entry["prefix.id"]: entry["version"] for entry in live.engine.snapshot()}


def known(store: Store) -> dict[str, int]:
    """What the store says is held."""
    with store.read() as session:
        rows = session.execute(select(Prefix.prefix_id, Prefix.version).where(Prefix.state != "EVICTED"))
        return {row.prefix_id: row.version for row in rows}


def settled(store: Store) -> bool:
    with store.read() as session:
        open_gaps = session.scalars(select(HistoryGap.id).where(HistoryGap.closed_at.is_(None)).limit(1)).first()
        return open_gaps is None and not session.scalar(select(Engine.snapshot_wanted))


def test_a_restored_deck_catches_up_with_the_engine(databases, database: Database, tmp_path: Path) -> None:
    sqlite_backup, sqlite_restore, dump, restore = blocks("backup.md")
    folder = tmp_path / "data"
    folder.mkdir()
    on_sqlite = database.kind == "sqlite"
    deck = Deck(folder, Database(kind="sqlite", url=f"sqlite:///{folder}/kvdeck.sqlite3") if on_sqlite else database)
    new = None if on_sqlite else databases.new("postgresql", migrated=False)
    variables = {"KVDECK_DATA_DIR": str(folder), "DATA": str(folder)}
    if new is not None:
        tools = str(Path(databases.server().tool("pg_dump")).parent)
        variables = {"TOOLS": tools, "KVDECK_DATABASE_URL": database.url, "NEW_DATABASE_URL": new.url}
    deck.start()
    try:
        with live_engine(deck, tmp_path / "engine") as live:
            live.serve(prompt(1))
            wait_for(lambda: known(deck.store) == held(live) and held(live), "what was served before the copy")
            shell(sqlite_backup if on_sqlite else dump, tmp_path, **variables)
            for number in (2, 1, 3):
                live.serve(prompt(number))
            wait_for(lambda: known(deck.store) == held(live), "what was served after it")
            deck.stop()
            deck.store.dispose()
            shell(sqlite_restore if on_sqlite else restore, tmp_path, **variables)
            deck.store = Store(new.url if new is not None else deck.settings.database_url)
            assert known(deck.store) != held(live)
            deck.start()
            wait_for(lambda: known(deck.store) == held(live) and settled(deck.store), "the restored deck to catch up")
            live.serve(prompt(4))
            wait_for(lambda: known(deck.store) == held(live), "what was served after the restore")
            assert live.wrong_bytes == 0
    finally:
        deck.stop()
        deck.store.dispose()


def test_an_upgrade_runs_as_its_page_says(tmp_path: Path) -> None:
    variables = {"KVDECK_DATA_DIR": str(tmp_path)}
    shell("kvdeck migrate", tmp_path, **variables)
    for block in blocks("upgrade.md"):
        shell(block, tmp_path, **variables)
    copy = tmp_path / "before-the-upgrade.sqlite3"
    assert "revision" in shell("kvdeck migrate", tmp_path, KVDECK_DATABASE_URL=f"sqlite:///{copy}")


def test_tokens_and_the_open_door_are_as_the_page_on_security_says(tmp_path: Path) -> None:
    tokens, off_loopback = blocks("security.md")
    port = str(free_port())
    variables = {"KVDECK_DATA_DIR": str(tmp_path), "KVDECK_API_PORT": port}
    refused = "kvdeck migrate >&2; if kvdeck serve --host 0.0.0.0 2>&1; then exit 7; fi"
    assert "nobody has a token yet" in " ".join(shell(refused, tmp_path, **variables).split())
    store = Store(f"sqlite:///{tmp_path}/kvdeck.sqlite3")
    with store.write() as session:
        issue_token(session, "old", Role.VIEWER, ttl=None)
        old = session.scalars(select(Token)).one()
    said = shell(tokens, tmp_path, ID=old.id, **variables)
    assert said.count("kvd_") == 3  # two tokens and a link: each shown once, and none in the list
    with store.read() as session:
        listed = {token.name: token for token in session.scalars(select(Token).where(Token.one_time.is_(False)))}
    store.dispose()
    assert {name: token.role for name, token in listed.items()} == {
        "old": "viewer",
        "ann": "operator",
        "gpu-7": "engine",
    }
    assert listed["gpu-7"].engine_id == "gpu-7"
    assert listed["old"].expires_at is not None
    process = subprocess.Popen(
        ["bash", "-eu", "-c", off_loopback.replace("kvdeck serve", "exec kvdeck serve")],
        cwd=tmp_path, env=environment(**variables), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        wait_for(lambda: process.poll() is not None or answers(port), "the control plane")
        assert answers(port)
        base = f"http://127.0.0.1:{port}"
        assert httpx.get(f"{base}/v1/engines").status_code == 401
        wrong = [httpx.get(f"{base}/v1/engines", headers={"Authorization": f"Bearer kvd_{n}"}) for n in range(30)]
        assert (wrong[0].status_code, wrong[-1].status_code) == (401, 429)
        assert int(wrong[-1].headers["Retry-After"]) > 0
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def answers(port: str) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
    except httpx.TransportError:
        return False
