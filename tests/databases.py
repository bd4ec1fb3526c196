"""Real databases for the tests: a SQLite file, and a Postgres server that lives as long as the test session.

The schema is built once a server by the migrations; every test gets a copy of it (`CREATE DATABASE ... TEMPLATE`).
"""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from controlplane.store import Store, upgrade

UNPRIVILEGED = "postgres"  # initdb refuses root; Debian's package brings this user
KINDS = ("sqlite", "postgresql")
TEMPLATE = "kvdeck_template"


@dataclass(frozen=True, kw_only=True)
class Database:
    """An empty database with this code's schema, of one test."""

    kind: str
    url: str

    def open(self) -> Store:
        """A store of one's own on it: another control plane process has another."""
        return Store(self.url)


class PostgresServer:
    """A throwaway server on a free port of 127.0.0.1. It can be killed and started again, as servers are."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="kvdeck-postgres-", dir=folder))
        self._folder.chmod(0o777)
        self.data = self._folder / "data"
        self.port = free_port()
        self._names = itertools.count(1)
        self._tool("initdb", "-D", str(self.data), "-A", "trust", "-U", "kvdeck", "-E", "UTF8", "--no-sync")
        self.start()

    def start(self) -> None:
        """Starts it, and returns when it answers."""
        options = f"-p {self.port} -k {self._folder} -c listen_addresses=127.0.0.1 -c fsync=off -c max_connections=200"
        log = str(self._folder / "log")
        self._tool("pg_ctl", "-D", str(self.data), "-o", options, "-l", log, "-w", "start")

    def kill(self) -> None:
        """Ends it as a crash does: without goodbye, and with recovery at the next start."""
        self._tool("pg_ctl", "-D", str(self.data), "-m", "immediate", "-w", "stop")

    def remove(self) -> None:
        """Ends it for good."""
        self.kill()
        shutil.rmtree(self._folder)

    def url(self, name: str = "postgres") -> str:
        """Where one of its databases is."""
        return f"postgresql://kvdeck@127.0.0.1:{self.port}/{name}"

    def do(self, statement: str) -> list[Any]:
        """Runs one statement as its owner, outside a transaction; its rows, if it has any."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            cursor = connection.execute(statement)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []

    def empty(self) -> str:
        """The name of a new database without tables."""
        name = f"test_{next(self._names)}"
        self.do(f"CREATE DATABASE {name} TEMPLATE template0")
        return name

    def copy(self) -> str:
        """The name of a new database with our tables."""
        self._template()
        name = f"test_{next(self._names)}"
        self.do(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
        return name

    def drop(self, name: str) -> None:
        """Forgets a database, whoever is connected to it."""
        self.do(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def tool(self, name: str) -> str:
        """The path of one of Postgres' programs, of this server's version."""
        return str(_tools() / name)

    def _tool(self, name: str, *arguments: str) -> None:
        as_owner = ["runuser", "-u", UNPRIVILEGED, "--"] if os.getuid() == 0 else []
        done = subprocess.run([*as_owner, self.tool(name), *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"

    @functools.cache  # noqa: B019  a server lives as long as the session
    def _template(self) -> None:
        self.do(f"CREATE DATABASE {TEMPLATE} TEMPLATE template0")
        upgrade(self.url(TEMPLATE))


@dataclass
class Databases:
    """Makes the databases of one test, and forgets them."""

    server: Callable[[], PostgresServer]  # started at the first call
    folder: Path
    _made: list[str] = field(default_factory=list)

    def new(self, kind: str, *, migrated: bool = True) -> Database:
        """A new database of a kind; `migrated` False: without tables."""
        if kind == "postgresql":
            server = self.server()
            self._made.append(server.copy() if migrated else server.empty())
            return Database(kind=kind, url=server.url(self._made[-1]))
        path = Path(tempfile.mkdtemp(dir=self.folder)) / "store.sqlite3"
        if migrated:
            shutil.copy(_migrated_file(), path)
        return Database(kind=kind, url=f"sqlite:///{path}")

    def forget(self) -> None:
        """Drops what was made on the server; files go with the test's folder."""
        for name in self._made:
            self.server().drop(name)


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@functools.cache
def _migrated_file() -> Path:
    path = Path(tempfile.mkdtemp()) / "migrated.sqlite3"
    upgrade(f"sqlite:///{path}")
    return path


def _tools() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    assert found, "no Postgres server is installed here; `make test` installs one"
    return found[-1].parent
