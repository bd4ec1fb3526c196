"""`kvdeck alert rules` and the verbs beside it: what is watched."""

from __future__ import annotations

import json
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
    connect,
    show_json,
    show_table,
)
from controlplane.cli.exits import OUT, CliError, Exit
from controlplane.cli.policy import Engine, Group, Namespace, Set, parameters_of, scope_of, show_kind

Name = Annotated[str, typer.Argument(help="The rule's name.")]
Above = Annotated[float | None, typer.Option("--above", help="Fires above this.")]
ResolveAt = Annotated[float | None, typer.Option("--resolve-at", help="Is over at this or below.")]
For = Annotated[int | None, typer.Option("--for", help="It must stay above for so many seconds.")]
Severity = Annotated[str, typer.Option("--severity", help="info, warning or critical.")]


def register(alert: typer.Typer) -> None:
    """Adds the verbs."""
    alert.command("rules")(rules)
    alert.command("rule")(rule)
    alert.command("kinds")(kinds)
    alert.command("add-rule")(add_rule)
    alert.command("set-rule")(set_rule)
    alert.command("remove-rule")(remove_rule)


def rules(
    url: Url = DEFAULT_URL, token: TokenOption = "", data_dir: DataDir = DEFAULT_DATA_DIR, as_json: AsJson = False
) -> None:
    """The rules there are."""
    with connect(url, token, data_dir) as client:
        found = client.rules()
    if as_json:
        show_json(found)
        return
    columns = ("rule", "severity", "fires above", "for", "over at", "where", "summary", "")
    show_table("Alert rules", columns, map(_row, found))


def kinds(
    url: Url = DEFAULT_URL, token: TokenOption = "", data_dir: DataDir = DEFAULT_DATA_DIR, as_json: AsJson = False
) -> None:
    """What a rule can look at, and the parameters of each kind."""
    with connect(url, token, data_dir) as client:
        found = client.rule_kinds()
    if as_json:
        show_json(found)
        return
    for kind in found:
        show_kind(f"{kind['kind']}: {kind['is']}", kind["parameters"])


def _row(rule: dict[str, Any]) -> tuple[Any, ...]:
    where = ", ".join(f"{key} {value}" for key, value in rule["scope"].items()) or "everywhere"
    unit = rule["parameters"].get("unit", "")
    limits = (f"{rule['above']:g}", f"{rule['for_seconds']} s", f"{rule['resolve_at']:g}")
    said = f"{rule['title']} ({unit})" if unit else rule["title"]
    return (rule["name"], rule["severity"], *limits, where, said, "" if rule["enabled"] else "off")


def rule(
    name: Name,
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """One rule, whole."""
    with connect(url, token, data_dir) as client:
        found = client.rule(name)
    if as_json:
        show_json(found)
        return
    show_table("Alert rule", ("what", "reason"), ((key, _text(value)) for key, value in found.items()))


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, list | dict) else str(value)


def add_rule(
    name: Name,
    kind: Annotated[str, typer.Argument(help="ratio, growth, gauge, gauge_growth, absence, hit_rate_drop, fact.")],
    above: Annotated[float, typer.Option("--above", help="Fires above this.")],
    resolve_at: Annotated[float, typer.Option("--resolve-at", help="Is over at this or below.")],
    title: Annotated[str, typer.Option("--title", help="What it says, in a few words.")] = "",
    set_: Set = None,
    for_seconds: Annotated[int, typer.Option("--for", help="It must stay above for so many seconds.")] = 0,
    severity: Severity = "warning",
    runbook: Annotated[str, typer.Option("--runbook", help="Where the reader finds what to do.")] = "",
    engine: Engine = "",
    group: Group = "",
    namespace: Namespace = "",
    reason: Reason = "added by hand",
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Add a rule. Parameters are given with --set; `unit` says what the value counts."""
    wanted = {
        "kind": kind,
        "title": title or name.replace("_", " "),
        "parameters": parameters_of(set_),
        "above": above,
        "resolve_at": resolve_at,
        "for_seconds": for_seconds,
        "severity": severity,
        "scope": scope_of(engine, group, namespace),
    } | ({"runbook": runbook} if runbook else {})
    with connect(url, token, data_dir) as client:
        made = client.add_rule(name, reason=reason, **wanted)
    _said(made, as_json, f"rule {name} is there: above {made['above']:g} for {made['for_seconds']} s")


def set_rule(
    name: Name,
    set_: Set = None,
    above: Above = None,
    resolve_at: ResolveAt = None,
    for_seconds: For = None,
    severity: Annotated[str, typer.Option("--severity", help="info, warning or critical.")] = "",
    off: Annotated[bool, typer.Option("--off", help="Evaluate it no more; its alerts are over.")] = False,
    on: Annotated[bool, typer.Option("--on", help="Evaluate it again.")] = False,
    engine: Engine = "",
    group: Group = "",
    namespace: Namespace = "",
    everywhere: Annotated[bool, typer.Option("--everywhere", help="On all engines again.")] = False,
    reason: Reason = "changed by hand",
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Change a rule's limits, parameters or scope, or switch it off and on. What is not named stays."""
    if on and off:
        raise CliError("--on and --off were both given.", "Give one of them.", Exit.USAGE)
    given = {"above": above, "resolve_at": resolve_at, "for_seconds": for_seconds, "severity": severity or None}
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    changes |= {"parameters": parameters_of(set_)} if set_ else {}
    changes |= {"enabled": on} if on or off else {}
    scope = scope_of(engine, group, namespace)
    changes |= {"scope": scope} if scope or everywhere else {}
    if not changes:
        raise CliError("There is nothing to change.", "Give --above, --resolve-at, --off...", Exit.USAGE)
    with connect(url, token, data_dir) as client:
        rule_now = client.change_rule(name, reason=reason, **changes)
    limits = f"above {rule_now['above']:g} for {rule_now['for_seconds']} s, over at {rule_now['resolve_at']:g}"
    _said(rule_now, as_json, f"rule {name} is {'on' if rule_now['enabled'] else 'off'}: {limits}")


def remove_rule(
    name: Name,
    reason: Reason = "removed by hand",
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Remove a rule that somebody added."""
    with connect(url, token, data_dir) as client:
        removed = client.remove_rule(name, reason=reason)
    _said(removed, as_json, f"rule {name} is removed")


def _said(body: Any, as_json: bool, text: str) -> None:
    if as_json:
        show_json(body)
    else:
        OUT.print(text, markup=False)
