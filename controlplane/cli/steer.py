"""Verbs that set desired state: cap, mode."""

from __future__ import annotations

import datetime as dt
from enum import StrEnum
from typing import Annotated, Any

import typer

from controlplane.cli.context import (
    DEFAULT_DATA_DIR,
    DEFAULT_URL,
    AsJson,
    DataDir,
    Reason,
    TokenOption,
    Url,
    as_time,
    connect,
    parse_bytes,
    parse_seconds,
    show_json,
    show_table,
)
from controlplane.cli.exits import OUT, CliError, Exit
from controlplane.clock import utc_now

Scope = Annotated[str, typer.Option("--engine", "-e", help="Only this engine; else the whole fleet.")]


class Mode(StrEnum):
    """The ladder of degradation, and `auto`: nobody holds the mode, the policy decides."""

    NORMAL = "normal"
    NO_DISK = "no_disk"
    RESIDENT_ONLY = "resident_only"
    FULL_ONLY = "full_only"
    BYPASS = "bypass"
    AUTO = "auto"


def register(app: typer.Typer) -> None:
    """Adds the verbs."""
    app.command()(cap)
    app.command()(mode)


def cap(
    engine: Scope = "",
    prefixes: Annotated[
        str, typer.Option(help="At most this many prefixes: 500; 'default' for the engine's own.")
    ] = "",
    gpu: Annotated[str, typer.Option(help="GPU bytes: 40G; 'default' for the engine's own.")] = "",
    host: Annotated[str, typer.Option(help="Host bytes.")] = "",
    disk: Annotated[str, typer.Option(help="Disk bytes.")] = "",
    rollback: Annotated[int | None, typer.Option(help="Go back to what this revision said.")] = None,
    reason: Reason = "set by hand",
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Set admission caps, or show the revisions when nothing is given."""
    changes: dict[str, Any] = {}
    if prefixes:
        changes["cap_prefixes"] = None if prefixes == "default" else _count(prefixes)
    for tier, text in (("gpu", gpu), ("host", host), ("disk", disk)):
        if text:
            changes[f"cap_{tier}_bytes"] = None if text == "default" else parse_bytes(text)
    if changes and rollback is not None:
        raise CliError("--rollback sets the whole document.", "Give it without caps.", Exit.USAGE)
    with connect(url, token, data_dir) as client:
        if rollback is not None:
            _show_revised(client.rollback(rollback, reason=reason), as_json)
        elif changes:
            _show_revised(client.set_desired(changes, reason=reason, engine=engine or None), as_json)
        else:
            _show_revisions(client.desired(engine=engine or None, limit=20), as_json)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise CliError(f"--prefixes is {text!r}.", "Give a whole number, or 'default'.", Exit.USAGE)
    return int(text)


def mode(
    mode: Annotated[Mode, typer.Argument(help="The mode; auto gives it back to the policy.")],
    engine: Scope = "",
    lasts: Annotated[str, typer.Option("--for", help="How long you hold it: 30m, 2h. At most 7d.")] = "1h",
    reason: Reason = "set by hand",
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Hold an engine, or the fleet, in a mode for a while. A person's hold outranks the policy."""
    if mode is Mode.AUTO:
        changes: dict[str, Any] = {"mode": None, "mode_expires_at": None}
    else:
        expires = utc_now() + dt.timedelta(seconds=parse_seconds(lasts))
        changes = {"mode": mode.value, "mode_expires_at": expires.isoformat()}
    with connect(url, token, data_dir) as client:
        _show_revised(client.set_desired(changes, reason=reason, engine=engine or None), as_json)


def _show_revised(revised: dict[str, Any], as_json: bool) -> None:
    if as_json:
        show_json(revised)
        return
    if not revised["diff"]:
        OUT.print(f"Nothing to change: revision {revised['revision']} says so already.")
        return
    OUT.print(f"Revision {revised['revision']}:")
    for key, (before, after) in revised["diff"].items():
        OUT.print(f"  {key}: {_value(before)} -> {_value(after)}", markup=False)


def _value(value: Any) -> str:
    return "not set" if value is None else str(value)


def _show_revisions(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        show_json(rows)
        return
    cells = (
        (row["revision"], row["engine_id"] or "fleet", as_time(row["at"]), row["actor"], row["reason"], row["document"])
        for row in rows
    )
    show_table("Desired state, newest first", ("revision", "scope", "at", "by", "why", "document"), cells)
