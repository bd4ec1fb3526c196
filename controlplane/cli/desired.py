"""`kvdeck desired`: what is asked for beside what runs; history, differences, and the way back."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from controlplane.api.client import ControlPlaneClient
from controlplane.cli.context import as_bytes, as_time, show_json, show_table
from controlplane.cli.exits import OUT, CliError, Exit
from controlplane.cli.groups import Line, ScopeOf, Why, grouped

ASK_FOR_SECONDS = 10.0
LOOK_EVERY_SECONDS = 0.2
LIVE = ("pending", "delivered", "running")


def register(app: typer.Typer) -> None:
    """Adds `kvdeck desired`."""
    desired = typer.Typer(no_args_is_help=True, help="Desired state: show, history, diff, rollback. Set it with `cap`.")
    for verb in (show, history, diff, rollback):
        desired.command()(grouped(verb))
    app.add_typer(desired, name="desired")


def show(scope: ScopeOf, line: Line) -> None:
    """What each engine should run with, which documents say so, and what it runs with or refused."""
    with line.open() as client:
        engines = client.engines()
        chosen = [
            engine["id"]
            for engine in engines
            if scope.engine in ("", engine["id"]) and scope.group in ("", engine["group"])
        ]
        if not chosen and (scope.engine or scope.group):
            client.desired(**scope.names, limit=1)  # says that there is no such engine or group
        found = [client.in_force(engine_id) for engine_id in chosen]
    if line.as_json:
        show_json(found)
        return
    for each in found:
        group = f" (group {each['group']})" if each["group"] else ""
        OUT.print(
            f"{each['engine_id']}{group}: desired revision {each['revision']}, observed {each['observed_revision']}",
            markup=False,
        )
        for layer in each["layers"]:
            OUT.print(f"  {layer['scope']}, revision {layer['revision']}: {layer['document']}", markup=False)
        for key, (wanted, runs) in each["differs"].items():
            OUT.print(f"  {key}: {_value(wanted)} is desired, {_value(runs)} runs", markup=False)
        if each["refused"]:
            OUT.print(f"  refused: {each['refused']}", markup=False)
    if not found:
        OUT.print("No engine has registered.")


def history(
    scope: ScopeOf, line: Line, limit: Annotated[int, typer.Option(min=1, max=1000, help="At most this many.")] = 20
) -> None:
    """Revisions, newest first: of one engine or group, those that reach it."""
    with line.open() as client:
        show_revisions(client.desired(**scope.names, limit=limit), line.as_json)


def diff(
    scope: ScopeOf,
    line: Line,
    revision: Annotated[int, typer.Argument(min=0, help="A revision; 0 is before the first.")],
    other: Annotated[int | None, typer.Argument(min=0, help="Another of the same scope; left out: the newest.")] = None,
) -> None:
    """How one revision differs from another, or from the newest of its scope."""
    with line.open() as client:
        rows = {row["revision"]: row for row in client.desired(limit=1000)}
    earlier = _document(rows, revision)
    whose = _scope_of(rows[revision]) if revision else (scope.engine or None, scope.group or None)
    newest = next((row["revision"] for row in rows.values() if _scope_of(row) == whose), 0)
    later_revision = newest if other is None else other
    if later_revision and _scope_of(rows.get(later_revision, rows[newest])) != whose:
        raise CliError(f"Revisions {revision} and {later_revision} are of different scopes.", "", Exit.USAGE)
    later = _document(rows, later_revision)
    keys = sorted({*earlier, *later})
    found = {key: [earlier.get(key), later.get(key)] for key in keys if earlier.get(key) != later.get(key)}
    if line.as_json:
        show_json({"from": revision, "to": later_revision, "diff": found})
        return
    OUT.print(f"From revision {revision} to {later_revision}:" if found else "No difference.")
    _show_diff(found)


def rollback(
    scope: ScopeOf,
    why: Why,
    line: Line,
    revision: Annotated[int, typer.Argument(min=0, help="Back to what it said; 0 is before the first of the scope.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would change and leave; the engines are asked.")
    ] = False,
) -> None:
    """Make an earlier revision's document the newest again."""
    with line.open() as client:
        if dry_run:
            show_trial(client, client.try_desired(revision=revision, ask=True, **scope.names), line.as_json)
        else:
            show_revised(client.rollback(revision, reason=why.reason, **scope.names), line.as_json)


def show_revised(revised: Mapping[str, Any], as_json: bool) -> None:
    """What a write changed."""
    if as_json:
        show_json(revised)
    elif not revised["diff"]:
        OUT.print(f"Nothing to change: revision {revised['revision']} says so already.")
    else:
        OUT.print(f"Revision {revised['revision']}:")
        _show_diff(revised["diff"])


def show_trial(client: ControlPlaneClient, trial: dict[str, Any], as_json: bool) -> None:
    """What a change would do: the engines' own answers where they come in time, else the store's estimate."""
    answers = _answers(client, [each["command_id"] for each in trial["engines"] if each["command_id"]])
    for each in trial["engines"]:
        each["answer"] = answers.get(each["command_id"] or "")
    if as_json:
        show_json(trial)
        return
    OUT.print(f"Nothing was changed. On {trial['scope']}, at revision {trial['revision']}, this would change:")
    _show_diff(trial["diff"])
    if not trial["diff"]:
        OUT.print("  nothing")
    for each in trial["engines"]:
        _show_tried(each)


def _show_tried(each: Mapping[str, Any]) -> None:
    answer, estimate = each["answer"], each["estimate"]
    engine = each["engine_id"]
    if answer is not None and answer["status"] == "succeeded":
        said = answer["outcome"]
        OUT.print(f"{engine} says ({said['certainty']}: {said['why']}):", markup=False)
        for limit in said["cannot_keep"]:
            OUT.print(f"  cannot be kept at once: {limit}", markup=False)
    elif answer is not None and answer["outcome"].get("reason"):
        OUT.print(f"{engine} would refuse it: {answer['outcome']['reason']}", markup=False)
        return
    else:
        said = estimate
        why_not = each["not_asked"] or "it did not answer in time"
        OUT.print(f"{engine}, by the store ({said['certainty']}: {said['why']}; {why_not}):", markup=False)
    held = ", ".join(f"{as_bytes(count)} on {tier}" for tier, count in said["evicted_bytes_by_tier"].items())
    OUT.print(f"  evicted: {said['evicted']} prefixes, {said['evicted_tokens']} tokens, {held}")
    OUT.print(f"  leave the GPU for a tier below: {said['leave_gpu']} prefixes, {as_bytes(said['leave_gpu_bytes'])}")
    OUT.print(f"  together they served {said['tokens_served']} tokens")


def _answers(client: ControlPlaneClient, command_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    deadline = time.monotonic() + ASK_FOR_SECONDS
    while len(found) < len(command_ids) and time.monotonic() < deadline:
        for command_id in command_ids:
            if command_id not in found and (command := client.command(command_id))["status"] not in LIVE:
                found[command_id] = command
        time.sleep(LOOK_EVERY_SECONDS if len(found) < len(command_ids) else 0)
    return found


def show_revisions(rows: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Revisions as a table."""
    if as_json:
        show_json(rows)
        return
    cells = (
        (row["revision"], _scope_name(row), as_time(row["at"]), row["actor"], row["reason"], row["document"])
        for row in rows
    )
    show_table("Desired state, newest first", ("revision", "scope", "at", "by", "why", "document"), cells)


def _scope_of(row: Mapping[str, Any]) -> tuple[str | None, str | None]:
    return row["engine_id"], row["group_name"]


def _scope_name(row: Mapping[str, Any]) -> str:
    return row["engine_id"] or (f"group {row['group_name']}" if row["group_name"] else "fleet")


def _document(rows: Mapping[int, Mapping[str, Any]], revision: int) -> dict[str, Any]:
    if revision and revision not in rows:
        raise CliError(f"There is no revision {revision}.", "`kvdeck desired history` lists them.", Exit.NOT_FOUND)
    return dict(rows[revision]["document"]) if revision else {}


def _show_diff(found: Mapping[str, Sequence[Any]]) -> None:
    for key, (before, after) in found.items():
        OUT.print(f"  {key}: {_value(before)} -> {_value(after)}", markup=False)


def _value(value: Any) -> str:
    return "not set" if value is None else str(value)
