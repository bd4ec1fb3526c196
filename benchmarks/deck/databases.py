"""The databases the parts run on: a SQLite file, and a Postgres with the durability a server has by default."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from controlplane.store import upgrade

UNPRIVILEGED = "postgres"  # initdb refuses root; Debian's package brings this user


@contextmanager
def sqlite_url(folder: Path | None = None) -> Iterator[str]:
    """The URL of a new SQLite file with our tables."""
    with tempfile.TemporaryDirectory(prefix="kvdeck-bench-", dir=folder) as path:
        url = f"sqlite:///{path}/deck.sqlite3"
        upgrade(url)
        yield url


@contextmanager
def postgres_url(folder: Path | None = None) -> Iterator[str]:
    """The URL of a database with our tables on a throwaway server: fsync on, everything else as installed."""
    tools = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not tools:
        raise SystemExit("no Postgres server is installed here: install postgresql, or leave it out with --on sqlite")
    home = Path(tempfile.mkdtemp(prefix="kvdeck-bench-", dir=folder))
    home.chmod(0o777)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    data = ("-D", f"{home}/data")
    _run(tools[-1] / "initdb", *data, "-A", "trust", "-U", "kvdeck", "-E", "UTF8")
    options = f"-p {port} -k {home} -c listen_addresses=127.0.0.1 -c max_connections=200"
    _run(tools[-1] / "pg_ctl", *data, "-o", options, "-l", f"{home}/log", "-w", "start")
    try:
        url = f"postgresql://kvdeck@127.0.0.1:{port}/postgres"
        upgrade(url)
        yield url
    finally:
        _run(tools[-1] / "pg_ctl", *data, "-m", "fast", "-w", "stop")
        shutil.rmtree(home)


OPENERS = {"sqlite": sqlite_url, "postgres": postgres_url}


def _run(tool: Path, *arguments: str) -> None:
    owner = ["runuser", "-u", UNPRIVILEGED, "--"] if os.getuid() == 0 and getpass.getuser() == "root" else []
    done = subprocess.run([*owner, str(tool), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{tool.name} failed: {done.stdout}{done.stderr}")
