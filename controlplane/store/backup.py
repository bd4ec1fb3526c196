"""A copy of a SQLite store, made while it is written to. A Postgres has tools of its own for this."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from controlplane.errors import BadRequest, Unavailable
from controlplane.store.session import normalise_url

PAGES_A_STEP = 4096  # between steps writers go on; what they change is copied again


def backup(url: str, target: Path) -> int:
    """Copy the store at `url` to a new file, whole and checked, or not at all; its size in bytes.

    The copy is of one moment: the last one before it was complete. In it, every engine's snapshot is wanted: whoever
    restores it does not know what engines hold by then, and those of the same boot would not say by themselves.

    Raises BadRequest for a Postgres and for a file that is there already, Unavailable for a store that is not there or
    a copy that cannot be written.
    """
    parsed = normalise_url(url)
    if parsed.get_backend_name() != "sqlite":
        raise BadRequest(
            "backup_postgres",
            "The store is a Postgres database, which this cannot copy.",
            "Run `pg_dump --format=custom`; docs/howto/backup.md shows how.",
        )
    source = Path(parsed.database or "")
    if target.exists():
        raise BadRequest("backup_exists", f"{target} is there already.", "Name another; none is overwritten.")
    if not source.is_file():
        raise Unavailable("database_unavailable", f"There is no store at {source}.", "Check --data-dir.")
    half = target.with_name(f"{target.name}.part")
    try:
        _copy(source, half)
        with half.open("rb") as written:
            os.fsync(written.fileno())
        os.link(half, target)  # unlike a rename, this replaces nothing that somebody else made meanwhile
        return target.stat().st_size
    except (sqlite3.Error, OSError) as error:
        raise Unavailable(
            "backup_failed", f"{target} was not written ({error}).", "Check the space and the rights there; try again."
        ) from error
    finally:
        half.unlink(missing_ok=True)


def _copy(source: Path, half: Path) -> None:
    half.unlink(missing_ok=True)
    from_ = f"{source.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(from_, uri=True)) as read, closing(sqlite3.connect(half)) as write:
        read.backup(write, pages=PAGES_A_STEP, sleep=0.01)
        found = write.execute("PRAGMA quick_check").fetchone()[0]
        write.execute("UPDATE engines SET snapshot_wanted = 1")
        write.commit()
        write.execute("PRAGMA journal_mode=DELETE")  # one file, with nothing beside it
    if found != "ok":
        raise sqlite3.DatabaseError(f"the copy is damaged: {found}")
