"""`kvdeck check`: prove what a stopped deck left on disk: every stored object, and the database file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from controlplane.cli.context import DEFAULT_DATA_DIR, AsJson, DataDir, settings_for, show_json
from controlplane.cli.exits import OUT, CliError, Exit


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command()(check)


def check(
    data_dir: DataDir = DEFAULT_DATA_DIR,
    fix: Annotated[bool, typer.Option("--fix", help="Move damaged objects to quarantine; else only say so.")] = False,
    as_json: AsJson = False,
) -> None:
    """Read every stored object of a stopped engine whole and compare all its checksums; ask SQLite for its own check.

    Exit code 1 when something is wrong. A running engine proves itself: `kvdeck scrub`.
    """
    folder = data_dir / "engine"
    if not folder.is_dir():
        raise CliError(f"{folder} does not exist.", "Name the folder of a deck with --data-dir.", Exit.NOT_FOUND)
    found = _check_objects(folder, fix=fix) | {"database": list(_check_database(data_dir))}
    if as_json:
        show_json(found)
    else:
        _print(found, fix=fix)
    if found["damaged"] or found["database"]:
        raise typer.Exit(Exit.FAILED)


def _check_objects(folder: Path, *, fix: bool) -> dict[str, Any]:
    from engine.errors import CorruptObject, FolderLocked
    from engine.memory.disk import DiskTier

    try:
        disk = DiskTier(folder, 1 << 62)
    except FolderLocked as error:
        raise CliError(f"{error}.", "Stop the deck first, or prove it while it runs: `kvdeck scrub`.") from None
    n_bytes, objects, damaged = 0, 0, []
    try:
        for name in sorted(path.name for path in (folder / "objects").glob("*.safetensors")):
            objects += 1
            n_bytes += (folder / "objects" / name).stat().st_size
            try:
                disk.reads.whole(_file(name, ""))
            except CorruptObject as error:
                damaged.append({"file": name, "why": str(error)})
                if fix:
                    disk.quarantine(_file(name, str(error)))
    finally:
        disk.let_go()
    return {"objects": objects, "bytes": n_bytes, "damaged": damaged, "fixed": fix and bool(damaged)}


def _file(name: str, damage: str) -> Any:
    from engine.memory.diskfile import DiskFile

    return DiskFile(name=name, file_bytes=0, n_pages=0, live_pages=0, damage=damage)


def _check_database(data_dir: Path) -> Iterator[str]:
    """What SQLite finds wrong with its file. Postgres checks itself."""
    url = settings_for(data_dir).database_url
    path = Path(url.removeprefix("sqlite:///"))
    if not url.startswith("sqlite") or not path.exists():
        return
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        for (line,) in connection.execute("PRAGMA integrity_check(10)"):
            if line != "ok":
                yield str(line)
    except sqlite3.DatabaseError as error:
        yield str(error)
    finally:
        connection.close()


def _print(found: dict[str, Any], *, fix: bool) -> None:
    OUT.print(f"{found['objects']:,} objects, {found['bytes']:,} bytes read and compared.")
    for item in found["damaged"]:
        OUT.print(f"  damaged: {item['why']}", markup=False)
    for line in found["database"]:
        OUT.print(f"  database: {line}", markup=False)
    if found["damaged"] and not fix:
        OUT.print("An engine would find these and quarantine them; `kvdeck check --fix` does it now.")
    elif found["damaged"]:
        OUT.print(f"{len(found['damaged'])} moved to quarantine.")
    elif not found["database"]:
        OUT.print("Nothing is wrong.")
