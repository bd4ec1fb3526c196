"""Verbs for commands that were sent (list, look, cancel), and for names: labels of prefixes, places of engines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from controlplane.cli.context import SHORT_ID, as_time, choose_engine, show_json, show_table
from controlplane.cli.exits import OUT, CliError, Exit
from controlplane.cli.groups import Line, Why, grouped, labels_of
from controlplane.cli.look import full_id
from controlplane.cli.sending import outcome_text, tell_command

FULL_COMMAND_ID = 36
LIVE = ("pending", "delivered", "running")


def register(app: typer.Typer) -> None:
    """Adds the verbs."""
    app.command()(grouped(commands))
    app.command()(grouped(command))
    app.command()(grouped(cancel))
    app.command()(grouped(label))
    app.command("engine-place")(grouped(engine_place))
    app.command("engine-forget")(grouped(engine_forget))


def commands(
    line: Line,
    engine: Annotated[str, typer.Option("--engine", "-e", help="Only this engine's.")] = "",
    status: Annotated[list[str] | None, typer.Option(help="pending, running, refused...; may be repeated.")] = None,
    live: Annotated[bool, typer.Option("--live", help="Only those that are not over.")] = False,
    kind: Annotated[str, typer.Option(help="evict, warm, drain...")] = "",
    batch: Annotated[str, typer.Option(help="Only those of this batch.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most this many.")] = 20,
) -> None:
    """Commands, newest first: who sent what, how far it is, how it ended."""
    filters: dict[str, Any] = {"engine": engine or None, "kind": kind or None, "batch": batch or None, "limit": limit}
    with line.open() as client:
        rows = client.commands(status=list(LIVE) if live else status or None, **filters)
    if line.as_json:
        show_json(rows)
        return
    columns = ("id", "kind", "engine", "status", "by", "at", "outcome")
    show_table("Commands, newest first", columns, (_row(row) for row in rows))


def _row(row: Mapping[str, Any]) -> tuple[Any, ...]:
    told = outcome_text(row["outcome"] or row["progress"])
    if row["cancel_requested_at"] and row["status"] in LIVE:
        told = f"being cancelled; {told}"
    return row["id"], row["kind"], row["engine_id"], row["status"], row["actor"], as_time(row["created_at"]), told


def command(line: Line, command_id: Annotated[str, typer.Argument(help="A command's id, or its beginning.")]) -> None:
    """One command: its arguments, how its prefixes were chosen, its progress, and its outcome."""
    with line.open() as client:
        found = client.command(_full(client, command_id))
    if line.as_json:
        show_json(found)
        return
    tell_command(found)
    OUT.print(f"  sent by {found['actor']} at {as_time(found['created_at'])} UTC: {found['reason']}", markup=False)
    times = {"handed out": "delivered_at", "ended": "finished_at", "cancel asked": "cancel_requested_at"}
    said = [f"{word} {as_time(found[name])}" for word, name in times.items() if found[name]]
    OUT.print(f"  expires {as_time(found['expires_at'])}{''.join(f'; {each}' for each in said)}", markup=False)
    ids = found["arguments"].get("prefix_ids", [])
    others = {key: value for key, value in found["arguments"].items() if key not in ("prefix_ids", "expect_versions")}
    OUT.print(f"  {len(ids)} prefixes, {others}" if ids else f"  {others}", markup=False)
    if chosen := found["selection"]:
        OUT.print(
            f"  chosen by {chosen['selector']}: {chosen['chosen']} of {chosen['matched']} that matched", markup=False
        )
    if found["batch_id"]:
        OUT.print(f"  of batch {found['batch_id']}", markup=False)
    refused = [*(found["outcome"].get("refused") or []), *(found["outcome"].get("failed") or [])]
    show_table("Not done", ("prefix", "reason"), ((r.get("prefix_id", "-")[:SHORT_ID], r["reason"]) for r in refused))


def cancel(
    line: Line,
    why: Why,
    command_id: Annotated[str, typer.Argument(help="A command's id, or its beginning; with --batch a batch's.")],
    batch: Annotated[bool, typer.Option("--batch", help="Every command of this batch.")] = False,
) -> None:
    """Stop a command: at once if no engine has taken it, else at its next step."""
    with line.open() as client:
        if batch:
            found = client.cancel_batch(command_id, reason=why.reason)
            stopped = found["commands"]
        else:
            found = client.cancel(_full(client, command_id), reason=why.reason)
            stopped = [found]
    if line.as_json:
        show_json(found)
        return
    for each in stopped:
        if each["status"] in LIVE:
            OUT.print(
                f"{each['kind']} on {each['engine_id']} stops at its next step: command {each['id']}", markup=False
            )
        else:
            tell_command(each)


def _full(client: Any, start: str) -> str:
    if len(start) == FULL_COMMAND_ID:
        return start
    found = [row["id"] for row in client.commands(limit=1000) if row["id"].startswith(start)] if start else []
    if len(found) == 1:
        return str(found[0])
    if not found:
        raise CliError(f"No command begins with {start!r}.", "`kvdeck commands` lists them.", Exit.NOT_FOUND)
    raise CliError(f"{len(found)} commands begin with {start!r}.", "Give more of it.", Exit.USAGE)


def label(
    line: Line,
    why: Why,
    prefix_id: Annotated[str, typer.Argument(help="A prefix's id, or its first letters.")],
    labels: Annotated[list[str], typer.Argument(help="NAME=VALUE, or NAME=- to take it away.")],
    engine: Annotated[str, typer.Option("--engine", "-e", help="Where to look for the first letters.")] = "",
) -> None:
    """Give a prefix labels. They belong to its id: on every engine, and when it is evicted and comes back."""
    wanted = labels_of(labels)
    with line.open() as client:
        whole = prefix_id if len(prefix_id) == 32 else full_id(client, choose_engine(client, engine), prefix_id)
        found = client.label([whole], wanted, reason=why.reason)
    if line.as_json:
        show_json(found)
        return
    text = ", ".join(f"{name}={value}" for name, value in sorted(found[whole].items())) or "no labels"
    OUT.print(f"{whole}: {text}", markup=False)


def engine_place(
    line: Line,
    why: Why,
    engine: Annotated[str, typer.Argument(help="The engine's id.")],
    group: Annotated[str, typer.Option("--group", "-g", help="Put it into this group; - for none.")] = "",
    labels: Annotated[list[str] | None, typer.Option("--label", "-l", help="NAME=VALUE, or NAME=-.")] = None,
) -> None:
    """Say which group an engine is in, and its labels. Outranks what the engine was started with."""
    if not group and not labels:
        raise CliError("Nothing to set.", "Give --group or --label.", Exit.USAGE)
    where = {"": None, "-": ""}.get(group, group)
    with line.open() as client:
        found = client.place(engine, group=where, labels=labels_of(labels or []), reason=why.reason)
    if line.as_json:
        show_json(found)
        return
    text = ", ".join(f"{name}={value}" for name, value in sorted(found["labels"].items())) or "no labels"
    OUT.print(f"{engine} is in {found['group'] or 'no group'}; {text}", markup=False)


def engine_forget(line: Line, why: Why, engine: Annotated[str, typer.Argument(help="The engine's id.")]) -> None:
    """Take an engine that left out of the lists. Its history is kept; it comes back by registering."""
    with line.open() as client:
        found = client.forget(engine, reason=why.reason)
    show_json(found) if line.as_json else OUT.print(f"{engine} is no longer listed", markup=False)
