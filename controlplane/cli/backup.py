"""The verb that copies the store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from controlplane.cli.context import DEFAULT_DATA_DIR, AsJson, DataDir, as_bytes, settings_for, show_json
from controlplane.cli.exits import OUT
from controlplane.store.backup import backup as copy_store


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command()(backup)


def backup(
    file: Annotated[Path, typer.Argument(help="A new file; none is overwritten.")],
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Copy the SQLite store to a file while the deck runs. (Postgres: pg_dump.)"""
    size_bytes = copy_store(settings_for(data_dir).database_url, file)
    if as_json:
        show_json({"file": str(file), "bytes": size_bytes})
        return
    OUT.print(f"Copied {as_bytes(size_bytes)} to {file}.", markup=False)
