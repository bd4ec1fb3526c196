"""`kvdeck policy`: the standing rules."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from controlplane.cli.context import (
from controlplane.cli.completion import complete_policies
    DEFAULT_DATA_DIR,
    DEFAULT_URL,
    AsJson,
    DataDir,
    Reason,
    TokenOption,
    Url,
    as_time,
    connect,
    show_json,
    show_table,
)
from controlplane.cli.exits import OUT

Name = Annotated[str, typer.Argument(help="The policy's name.", autocompletion=complete_policies)]
Set = Annotated[
    list[str] | None, typer.Option("--set", "-s", help="A parameter as NAME=VALUE; null goes back to the default.")
]
Every = Annotated[int | None, typer.Option("--every", help="Run every so many seconds.")]
Cron = Annotated[str, typer.Option("--cron", help="Run at these times: five fields, as '30 6 * * mon-fri'.")]
Zone = Annotated[str, typer.Option("--time-zone", help="Of --cron: UTC, or a name such as Europe/Berlin.")]
OnEvents = Annotated[bool, typer.Option("--on-events", help="Run on events and by hand only.")]
Engine = Annotated[str, typer.Option("--engine", "-e", help="Only on this engine.")]
Group = Annotated[str, typer.Option("--group", help="Only on the engines of this group.")]
Namespace = Annotated[str, typer.Option("--namespace", help="Only prefixes of this namespace.")]


def register(app: typer.Typer) -> None:
    """Adds `kvdeck policy`."""
    policy = typer.Typer(no_args_is_help=True, help="Standing rules: list, run, pause, resume.")
    policy.command("list")(list_policies)
    policy.command("run")(run)
    policy.command("pause")(pause)
    policy.command("resume")(resume)
    app.add_typer(policy, name="policy")


def list_policies(
    url: Url = DEFAULT_URL, token: TokenOption = "", data_dir: DataDir = DEFAULT_DATA_DIR, as_json: AsJson = False
) -> None:
    """The policies, and what they decided last."""
    with connect(url, token, data_dir) as client:
        policies, runs = client.policies(), client.policy_runs(limit=10)
    if as_json:
        show_json({"policies": policies, "runs": runs})
        return
    rows = ((p["name"], p["kind"], f"{p['every_seconds']} s", "paused" if p["paused"] else "on") for p in policies)
    show_table("Policies", ("name", "kind", "every", ""), rows)
    show_table("Newest decisions", RUN_COLUMNS, (_run_row(row, row["engine_id"]) for row in runs))


def run(
    name: Name,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Decide, and apply nothing.")] = False,
    reason: Reason = "run by hand",
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Run a policy now, paused or not."""
    with connect(url, token, data_dir) as client:
        runs = client.run_policy(name, reason=reason, dry_run=dry_run)["runs"]
    if as_json:
        show_json(runs)
        return
    show_table("Decisions", RUN_COLUMNS, (_run_row(row, row["engine"]) for row in runs))


def pause(
    name: Name,
    reason: Reason = "paused by hand",
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Stop a policy from running by itself."""
    _set_paused(name, True, reason, url, token, data_dir, as_json)


def resume(
    name: Name,
    reason: Reason = "resumed by hand",
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Let a policy run by itself again."""
    _set_paused(name, False, reason, url, token, data_dir, as_json)


def _set_paused(name: str, paused: bool, reason: str, url: str, token: str, data_dir: DataDir, as_json: bool) -> None:
    with connect(url, token, data_dir) as client:
        policy = client.change_policy(name, reason=reason, paused=paused)
    if as_json:
        show_json(policy)
    else:
        OUT.print(f"{name} is {'paused' if policy['paused'] else 'on'}")


RUN_COLUMNS = ("policy", "engine", "at", "trigger", "decision", "why", "outcome")


def _run_row(row: dict[str, Any], engine: str | None) -> tuple[Any, ...]:
    trigger = f"{row['trigger']}{' (dry)' if row['dry_run'] else ''}"
    said = row["error"] or row["inputs"].get("why")
    return row["policy"], engine, as_time(row["at"]), trigger, row["decision"], said, row["outcome"] or ""
