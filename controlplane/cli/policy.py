"""`kvdeck policy`: the standing rules, what they decided and why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from controlplane.cli.completion import complete_policies
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
    show_json,
    show_table,
)
from controlplane.cli.exits import OUT, CliError, Exit
from controlplane.cli.moments import moment_of
from controlplane.steering.parameters import Knob, knobs_of
from controlplane.steering.policies.kinds import KINDS
from controlplane.steering.words import changes_text, deeds_text, parameter_text, when_text

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
    policy = typer.Typer(no_args_is_help=True, help="Standing rules: look, tune, run, pause, ask why.")
    policy.command("list")(list_policies)
    policy.command("show")(show)
    policy.command("kinds")(kinds)
    policy.command("add")(add)
    policy.command("set")(set_)
    policy.command("pause")(pause)
    policy.command("resume")(resume)
    policy.command("run")(run)
    policy.command("history")(history)
    policy.command("why")(why)
    policy.command("remove")(remove)
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
    rows = ((p["name"], p["kind"], _when(p), _scope(p), _pause(p)) for p in policies)
    show_table("Policies", ("name", "kind", "when", "where", ""), rows)
    show_table("Newest decisions", RUN_COLUMNS, (_run_row(row, row["engine_id"]) for row in runs))


def show(
    name: Name,
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """One policy: its parameters with what they mean, when it runs next, its newest decisions."""
    with connect(url, token, data_dir) as client:
        policy = client.policy(name)
        about = next((kind for kind in client.policy_kinds() if kind["kind"] == policy["kind"]), None)
    if as_json:
        show_json(policy)
        return
    OUT.print(f"[bold]{name}[/] ({policy['kind']}), {_when(policy)}, {_scope(policy)} {_pause(policy)}")
    if policy["next_at"]:
        OUT.print(f"  next: {', '.join(as_time(at) for at in policy['next_at'])} UTC")
    known = (about or {}).get("parameters", ())
    now, knobs = policy["parameters"], knobs_of(KINDS[policy["kind"]]) if policy["kind"] in KINDS else {}
    rows = (
        (
            one["name"],
            value_told(one["name"], knobs.get(one["name"]), now.get(one["name"])),
            one["allowed"],
            one["meaning"],
        )
        for one in known
    )
    show_table("Parameters", ("parameter", "value", "allowed", "meaning"), rows)
    show_table("Newest decisions", RUN_COLUMNS, (_run_row(row, row["engine_id"]) for row in policy["runs"]))


def kinds(
    url: Url = DEFAULT_URL, token: TokenOption = "", data_dir: DataDir = DEFAULT_DATA_DIR, as_json: AsJson = False
) -> None:
    """The kinds of policies there are, and their parameters."""
    with connect(url, token, data_dir) as client:
        found = client.policy_kinds()
    if as_json:
        show_json(found)
        return
    for kind in found:
        show_kind(f"{kind['kind']}: {kind['does']}", kind["parameters"])


def show_kind(title: str, parameters: Sequence[dict[str, Any]]) -> None:
    """The parameters that a kind of policy, or of rule, takes."""
    rows = ((one["name"], _value(one["default"]), one["allowed"], one["meaning"]) for one in parameters)
    show_table(title, ("parameter", "default", "allowed", "meaning"), rows)


def add(
    name: Name,
    kind: Annotated[str, typer.Argument(help="warmup, degrade, compact... (`kvdeck policy kinds`).")],
    set_: Set = None,
    every: Every = None,
    cron: Cron = "",
    time_zone: Zone = "UTC",
    engine: Engine = "",
    group: Group = "",
    namespace: Namespace = "",
    paused: Annotated[bool, typer.Option("--paused", help="Add it, and let nothing run yet.")] = False,
    reason: Reason = "added by hand",
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Add a policy: by time (--every or --cron), or with neither, on events and by hand."""
    wanted: dict[str, Any] = {"parameters": parameters_of(set_), "scope": scope_of(engine, group, namespace)}
    wanted |= {"every_seconds": every} if every is not None else {}
    wanted |= {"cron": cron, "time_zone": time_zone} if cron else {}
    with connect(url, token, data_dir) as client:
        policy = client.add_policy(name, kind, reason=reason, paused=paused, **wanted)
    _said(policy, as_json, f"{name} is there: {_when(policy)}, {_scope(policy)} {_pause(policy)}")


def set_(
    name: Name,
    set_: Set = None,
    every: Every = None,
    cron: Cron = "",
    time_zone: Annotated[str, typer.Option("--time-zone", help="Of the cron expression.")] = "",
    on_events: OnEvents = False,
    engine: Engine = "",
    group: Group = "",
    namespace: Namespace = "",
    everywhere: Annotated[bool, typer.Option("--everywhere", help="On all engines and namespaces again.")] = False,
    reason: Reason = "changed by hand",
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Change a policy's parameters, its time or its scope. What is not named stays."""
    changes: dict[str, Any] = {"parameters": parameters_of(set_)} if set_ else {}
    changes |= {"every_seconds": every} if every is not None else {}
    changes |= {"cron": cron} if cron else {}
    changes |= {"time_zone": time_zone} if time_zone else {}
    changes |= {"every_seconds": None, "cron": None} if on_events else {}
    scope = scope_of(engine, group, namespace)
    changes |= {"scope": scope} if scope or everywhere else {}
    if not changes:
        raise CliError("There is nothing to change.", "Give --set NAME=VALUE, --every, --cron or a scope.", Exit.USAGE)
    with connect(url, token, data_dir) as client:
        policy = client.change_policy(name, reason=reason, **changes)
    _said(policy, as_json, f"{name}: {_when(policy)}, {_scope(policy)}, {_value(policy['parameters'])}")


def pause(
    name: Name,
    until: Annotated[str, typer.Option("--until", help="End by itself: 2h, 06:00 or an RFC 3339 time (UTC).")] = "",
    reason: Reason = "paused by hand",
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Stop a policy from running by itself, for a while or until somebody resumes it."""
    changes: dict[str, Any] = {"paused": True}
    changes |= {"paused_until": moment_of(until, ahead=True).isoformat()} if until else {}
    with connect(url, token, data_dir) as client:
        policy = client.change_policy(name, reason=reason, **changes)
    _said(policy, as_json, f"{name} is {_pause(policy)}")


def resume(
    name: Name,
    reason: Reason = "resumed by hand",
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Let a policy run by itself again."""
    with connect(url, token, data_dir) as client:
        policy = client.change_policy(name, reason=reason, paused=False)
    _said(policy, as_json, f"{name} is on: {_when(policy)}")


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


def history(
    name: Annotated[str, typer.Argument(help="The policy's name; nothing: all of them.")] = "",
    engine: Annotated[str, typer.Option("--engine", "-e", help="Only on this engine.")] = "",
    acted: Annotated[bool, typer.Option("--acted", help="Only runs that did something.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most this many.")] = 20,
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """What policies decided, newest first: proposed, did, and what changed by it."""
    with connect(url, token, data_dir) as client:
        runs = client.policy_runs(policy=name or None, engine=engine or None, acted=acted or None, limit=limit)
    if as_json:
        show_json(runs)
        return
    show_table("Decisions", RUN_COLUMNS, (_run_row(row, row["engine_id"]) for row in runs))


def why(
    name: Name,
    at: Annotated[str, typer.Option("--at", help="03:12, a span ago (2h) or an RFC 3339 time, in UTC.")] = "",
    engine: Annotated[str, typer.Option("--engine", "-e", help="Only on this engine.")] = "",
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Why a policy did what it did at a moment: the decision in force then, read from the record alone."""
    moment = moment_of(at, ahead=False) if at else None
    with connect(url, token, data_dir) as client:
        said = client.policy_why(name, at=moment.isoformat() if moment else None, engine=engine or None)
    if as_json:
        show_json(said)
        return
    if not said["answers"]:
        OUT.print(f"{name} had decided nothing by {as_time(said['at'])} UTC.", markup=False)
    for answer in said["answers"]:
        for line in answer["words"]:
            OUT.print(line, markup=False)
        if answer["acted_words"]:
            OUT.print("Before that, it last did something:", style="dim")
            for line in answer["acted_words"]:
                OUT.print(f"  {line}", markup=False)


def remove(
    name: Name,
    reason: Reason = "removed by hand",
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Remove a policy that somebody added; what it decided stays on record."""
    with connect(url, token, data_dir) as client:
        removed = client.remove_policy(name, reason=reason)
    _said(removed, as_json, f"{name} is removed")


RUN_COLUMNS = ("policy", "engine", "at", "trigger", "decision", "why", "did", "changed")


def _run_row(row: dict[str, Any], engine: str | None) -> tuple[Any, ...]:
    trigger = f"{row['trigger']}{' (dry)' if row['dry_run'] else ''}"
    said = row["error"] or row["inputs"].get("why")
    did = deeds_text(row["did"]) if row["did"] else ""
    changed = changes_text(row["changed"]) if row["changed"] else ""
    return row["policy"], engine, as_time(row["at"]), trigger, row["decision"], said, did, changed


def _said(body: Any, as_json: bool, text: str) -> None:
    if as_json:
        show_json(body)
    else:
        OUT.print(text.strip(), markup=False)


def _when(policy: dict[str, Any]) -> str:
    return when_text(policy["every_seconds"], policy["cron"], policy["time_zone"])


def _scope(policy: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in policy["scope"].items()) or "everywhere"


def _pause(policy: dict[str, Any]) -> str:
    if not policy["paused"]:
        return "on"
    return f"paused until {as_time(policy['paused_until'])}" if policy["paused_until"] else "paused"


def value_told(name: str, knob: Knob | None, value: Any) -> str:
    """A value as `--set` takes it and, where it says more, with its unit."""
    typed = _value(value)
    words = "" if value is None or isinstance(value, list | bool) else parameter_text(name, knob, value)
    return f"{typed} ({words})" if words not in ("", typed) else typed


def _value(value: Any) -> str:
    return json.dumps(value) if isinstance(value, list | dict | bool) else "-" if value is None else str(value)


def scope_of(engine: str, group: str, namespace: str) -> dict[str, str]:
    """Where a rule holds, as the API takes it."""
    wanted = {"engine": engine, "group": group, "namespace": namespace}
    return {key: value for key, value in wanted.items() if value}


def parameters_of(given: list[str] | None) -> dict[str, Any]:
    """`NAME=VALUE` each; a value is JSON if it can be read so (`5`, `true`, `["a"]`), else text."""
    parameters: dict[str, Any] = {}
    for one in given or ():
        name, equals, text = one.partition("=")
        if not equals or not name:
            raise CliError(f"{one!r} is no NAME=VALUE.", "Write --set max_bytes=1073741824.", Exit.USAGE)
        try:
            parameters[name] = json.loads(text)
        except ValueError:
            parameters[name] = text
    return parameters
