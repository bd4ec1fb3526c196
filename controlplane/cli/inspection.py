"""`kvdeck inspect`: one prefix as its engine has it now: leases with their deadlines, copies with their generations."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from controlplane.cli.completion import complete_prefixes
from controlplane.cli.context import EngineOption, as_bytes, choose_engine, show_json, show_table
from controlplane.cli.exits import OUT
from controlplane.cli.groups import Line, Why, grouped
from controlplane.cli.look import full_id
from controlplane.cli.sending import counted, raise_unless_done, tell_command, until_ended

EXPIRES_SECONDS = 30  # a later answer would be about another moment
CURRENT = {True: "yes", False: "stale", None: "-"}


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command("inspect")(grouped(inspect_prefix))


def inspect_prefix(
    line: Line,
    why: Why,
    prefix_id: Annotated[
        str, typer.Argument(help="A prefix's id, or its first letters.", autocompletion=complete_prefixes)
    ],
    engine: EngineOption = "",
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the answer.")] = True,
) -> None:
    """Ask the engine for a prefix's leases and slot generations now. Changes nothing."""
    with line.open() as client:
        where = choose_engine(client, engine)
        arguments = {"prefix_id": full_id(client, where, prefix_id)}
        command = client.submit(where, "inspect", arguments, reason=why.reason, expires_seconds=EXPIRES_SECONDS)
        if wait:
            command = until_ended(client, command)
    if line.as_json:
        show_json(command)
    elif command["status"] == "succeeded":
        _show(where, command["outcome"])
    else:
        tell_command(command)
    raise_unless_done([command])


def _show(engine: str, said: Mapping[str, Any]) -> None:
    OUT.print(
        f"[bold]{said['prefix_id']}[/] is {said['state']}, version {said['version']}, on {engine}, as of "
        f"{_time(said['at_unix_s'])} UTC"
    )
    pinned = said["pinned_until_unix_s"]
    held = "pinned until " + _time(pinned) if pinned else "not pinned"
    OUT.print(f"  {held}{', busy: its bytes are being copied' if said['busy'] else ''}, life {said['life']}")
    leases = said["oldest_leases"]
    title = counted(said["leases"], "lease", "leases") if leases else "Leases"
    title += f", the oldest {len(leases)}" if len(leases) < said["leases"] else ""
    show_table(title, ("lease", "age", "ends in", "usable", "pointers current"), map(_lease_row, leases))
    told = said["checkpoints_told"]
    less = f", of {told} of {said['checkpoints']:,} checkpoints" if told < said["checkpoints"] else ""
    columns = ("object", "at", "tier", "codec", "pages", "bytes", "generation", "pointer current")
    show_table(f"Objects{less}", columns, map(_object_row, said["objects"]))


def _lease_row(lease: Mapping[str, Any]) -> tuple[Any, ...]:
    left = lease["left_s"]
    ends = f"{left:.1f} s" if left > 0 else f"{-left:.1f} s ago"
    return lease["lease_id"], f"{lease['age_s']:.1f} s", ends, lease["usable_tokens"], CURRENT[lease["current"]]


def _object_row(row: Mapping[str, Any]) -> tuple[Any, ...]:
    first, last = row["generation_min"], row["generation_max"]
    generation = "-" if first is None else str(first) if first == last else f"{first} to {last}"
    at = "pages" if row["boundary"] is None else f"checkpoint {row['boundary']}"
    what = (row["kind"], at, row["tier"] or "missing", row["codec"] or "-")
    return (*what, row["pages"], as_bytes(row["bytes"]), generation, CURRENT[row["current"]])


def _time(unix_s: float) -> str:
    return dt.datetime.fromtimestamp(unix_s, dt.UTC).strftime("%m-%d %H:%M:%S")
