"""Whether a deck could run here: checks of the machine and the installation, for when none does."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.engine import make_url

from controlplane.errors import ControlPlaneError
from controlplane.insight.doctor_rule import GIB, Finding, Severity
from controlplane.settings import Settings
from controlplane.store.migrate import current_revision, head_revision

LEAST_FREE_BYTES = 1 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One check: what it found; `severity` None when all is well."""

    name: str
    said: str
    severity: Severity | None = None
    advice: str = ""


def check_installation(settings: Settings) -> list[Checked]:
    """Every check, in the order of CHECKS. Changes nothing that lasts."""
    return [check(settings) for check in CHECKS.values()]


def findings_of(checked: list[Checked]) -> list[Finding]:
    """What is not well, as the doctor's findings."""
    return [
        Finding(
            rule=check.name, severity=check.severity.word, engine_id=None, summary=check.said, evidence={}, since=None,
            advice=check.advice,
        )
        for check in sorted(checked, key=lambda check: -(check.severity or 0))
        if check.severity is not None
    ]  # fmt: skip


def _data_dir(settings: Settings) -> Checked:
    """The data folder can be written, or made."""
    place = _nearest(settings.data_dir)
    if not os.access(place, os.W_OK | os.X_OK):
        return Checked(
            name="data_dir", said=f"{place} cannot be written", severity=Severity.SEVERE,
            advice="Name another folder with --data-dir or KVDECK_DATA_DIR, or change its owner.",
        )  # fmt: skip
    there = "" if place == settings.data_dir else ", to be made"
    return Checked(name="data_dir", said=f"{settings.data_dir} can be written{there}")


def _disk_space(settings: Settings) -> Checked:
    """At least 1 GiB is free where the data folder is."""
    free = shutil.disk_usage(_nearest(settings.data_dir)).free
    if free < LEAST_FREE_BYTES:
        return Checked(
            name="disk_space", said=f"{free / GIB:.1f} GiB are free", severity=Severity.WARNING,
            advice="Free some, or name another folder with --data-dir: the disk tier and the database live there.",
        )  # fmt: skip
    return Checked(name="disk_space", said=f"{free / GIB:,.1f} GiB are free")


def _database(settings: Settings) -> Checked:
    """SQLite can keep a write-ahead log in the data folder; Postgres answers."""
    if settings.database_url.startswith("sqlite"):
        try:
            mode = _journal_mode(_nearest(settings.data_dir))
        except (OSError, sqlite3.Error) as error:
            mode = str(error)
        if mode != "wal":
            return Checked(
                name="database", said=f"SQLite cannot keep a write-ahead log here ({mode})", severity=Severity.SEVERE,
                advice="Use a local disk for --data-dir, not a network folder; or Postgres: KVDECK_DATABASE_URL.",
            )  # fmt: skip
        return Checked(name="database", said=f"SQLite {sqlite3.sqlite_version} with a write-ahead log")
    try:
        current_revision(settings.database_url)
    except ControlPlaneError as error:
        return Checked(name="database", said=error.message, severity=Severity.SEVERE, advice=error.hint)
    return Checked(name="database", said=f"{make_url(settings.database_url).host or 'Postgres'} answers")


def _schema(settings: Settings) -> Checked:
    """The database is at this version's revision, or there is none yet."""
    path = make_url(settings.database_url).database
    if settings.database_url.startswith("sqlite") and not (path and Path(path).exists()):
        return Checked(name="schema", said="no database yet; `kvdeck up` makes one")
    try:
        found, wanted = current_revision(settings.database_url), head_revision()
    except ControlPlaneError as error:
        return Checked(name="schema", said=error.message, severity=Severity.SEVERE, advice=error.hint)
    if found != wanted:
        return Checked(
            name="schema", said=f"the database is at {found or 'no revision'}, this version needs {wanted}",
            severity=Severity.SEVERE, advice="`kvdeck migrate`.",
        )  # fmt: skip
    return Checked(name="schema", said=f"revision {found}")


def _ports(settings: Settings) -> Checked:
    """The ports of the API and the dashboard are free."""
    taken = [port for port in (settings.api_port, settings.dashboard_port) if not _is_free(settings.host, port)]
    if taken:
        return Checked(
            name="ports", said=f"taken: {', '.join(map(str, taken))}", severity=Severity.WARNING,
            advice="Stop what listens there, or choose others: `kvdeck up --api-port N --dashboard-port N`.",
        )  # fmt: skip
    return Checked(name="ports", said=f"{settings.api_port} and {settings.dashboard_port} are free")


def _gpu(_settings: Settings) -> Checked:
    """torch can be imported, and sees a GPU or not."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return Checked(
            name="gpu", said=f"torch cannot be imported: {error}", severity=Severity.SEVERE,
            advice="Install kvdeck's requirements again.",
        )  # fmt: skip
    if not torch.cuda.is_available():
        return Checked(
            name="gpu", said=f"torch {torch.__version__} sees no GPU", severity=Severity.NOTICE,
            advice="Engines run with --device cpu; for a GPU look at its driver and at torch's build.",
        )  # fmt: skip
    return Checked(name="gpu", said=f"torch {torch.__version__} sees {torch.cuda.get_device_name(0)}")


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    return next(place for place in (folder, *folder.absolute().parents) if place.exists())


def _journal_mode(folder: Path) -> str:
    with tempfile.TemporaryDirectory(prefix=".kvdeck-doctor-", dir=folder) as place:
        connection = sqlite3.connect(Path(place) / "try.sqlite")
        try:
            mode: str = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
            connection.execute("CREATE TABLE tried (x)")
            return mode
        finally:
            connection.close()


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


CHECKS: dict[str, Callable[[Settings], Checked]] = {
    "data_dir": _data_dir,
    "disk_space": _disk_space,
    "database": _database,
    "schema": _schema,
    "ports": _ports,
    "gpu": _gpu,
}
"""Name -> check; the first line of its docstring is the reference's."""
