"""`kvdeck quarantine`: the damaged objects that an engine set aside, and why."""

from __future__ import annotations

import datetime as dt
from dataclasses import asdict
from typing import Any

import typer

from controlplane.cli.context import (
    DEFAULT_DATA_DIR,
    AsJson,
    DataDir,
    as_bytes,
    as_time,
    show_json,
    show_table,
)
from controlplane.cli.exits import CliError, Exit


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command()(quarantine)


def quarantine(data_dir: DataDir = DEFAULT_DATA_DIR, as_json: AsJson = False) -> None:
    """List the stored objects found damaged: file, object, prefix, when, why. Newest first; the deck may run or not.

    They are kept to be looked at, never read again, and bounded: the oldest go. Deleting them by hand is safe.
    """
    from engine.memory.quarantine import quarantined

    folder = data_dir / "engine"
    if not folder.is_dir():
        raise CliError(f"{folder} does not exist.", "Name the folder of a deck with --data-dir.", Exit.NOT_FOUND)
    found = [_row(asdict(item)) for item in quarantined(folder / "quarantine")]
    if as_json:
        show_json(found)
        return
    show_table(
        "Quarantine",
        ("when", "object", "prefix", "size", "why"),
        [(as_time(q["at"]), q["kind"] or "-", q["prefix_id"] or "-", as_bytes(q["bytes"]), q["why"]) for q in found],
    )


def _row(item: dict[str, Any]) -> dict[str, Any]:
    at = dt.datetime.fromtimestamp(item.pop("at_ns") / 1e9, dt.UTC).isoformat()
    return {**item, "bytes": item.pop("size_bytes"), "at": at}
