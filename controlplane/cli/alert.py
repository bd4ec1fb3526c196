"""`kvdeck alert`: what needs somebody, and what is said of it to whom."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from controlplane.cli import alert_rules, receivers
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
from controlplane.cli.exits import OUT
from controlplane.cli.groups import Line, grouped
from controlplane.cli.moments import moment_of

AlertId = Annotated[int, typer.Argument(help="The alert's number.")]


def register(app: typer.Typer) -> None:
    """Adds `kvdeck alert`."""
    alert = typer.Typer(no_args_is_help=True, help="Alerts: look, acknowledge, silence; rules and receivers.")
    alert.command("list")(list_alerts)
    alert.command("show")(show)
    alert.command("ack")(ack)
    alert.command("silence")(silence)
    alert.command("silences")(silences)
    alert.command("unsilence")(unsilence)
    alert.command("inbound")(grouped(inbound))
    alert_rules.register(alert)
    receivers.register(alert)
    app.add_typer(alert, name="alert")


def list_alerts(
    everything: Annotated[bool, typer.Option("--all", help="Also those that are over.")] = False,
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Alerts that are pending or firing."""
    states = None if everything else ["pending", "firing"]
    with connect(url, token, data_dir) as client:
        alerts = client.alerts(state=states)
    if as_json:
        show_json(alerts)
        return
    columns = ("id", "state", "severity", "rule", "engine", "since", "summary", "")
    show_table("Alerts", columns, map(_row, alerts))


def _row(alert: dict[str, Any]) -> tuple[Any, ...]:
    what = (alert["id"], alert["state"], alert["severity"], alert["rule"], alert["engine_id"], as_time(alert["since"]))
    return (*what, alert["summary"], _held(alert))


def _held(alert: dict[str, Any]) -> str:
    held = [f"silence {alert['silence_id']}"] if alert["silence_id"] else []
    return ", ".join(held + ([f"{alert['acknowledged_by']} looks after it"] if alert["acknowledged_by"] else []))


def show(
    alert_id: AlertId,
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """One alert: its numbers, its rule, its runbook, and who was told."""
    with connect(url, token, data_dir) as client:
        detail = client.alert(alert_id)
    if as_json:
        show_json(detail)
        return
    alert, rule = detail["alert"], detail["rule"]
    OUT.print(f"[bold]{alert['rule']}[/] on {alert['engine_id'].replace('[', '')} is {alert['state']}")
    OUT.print(f"  {alert['summary']}", markup=False)
    OUT.print(
        f"  since {as_time(alert['since'])}, fired {as_time(alert['fired_at'])}, "
        f"over {as_time(alert['resolved_at'])} UTC"
    )
    if rule:
        OUT.print(f"  fires above {rule['above']:g} for {rule['for_seconds']} s, is over at {rule['resolve_at']:g}")
    OUT.print(f"  runbook: {alert['runbook']}", markup=False)
    if alert["acknowledged_by"]:
        OUT.print(f"  {alert['acknowledged_by']} looks after it: {alert['acknowledged_reason']}", markup=False)
    if alert["silence_id"]:
        OUT.print(f"  silence {alert['silence_id']} keeps it quiet")
    show_table("Told", receivers.NOTIFICATION_COLUMNS, map(receivers.notification_row, detail["notifications"]))


def ack(
    alert_id: AlertId,
    reason: Reason = "acknowledged",
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Say that you look after an alert."""
    with connect(url, token, data_dir) as client:
        alert = client.acknowledge(alert_id, reason=reason)
    if as_json:
        show_json(alert)
    else:
        OUT.print(f"alert {alert_id} ({alert['rule']}) is {alert['acknowledged_by']}'s now", markup=False)


def silence(
    until: Annotated[str, typer.Option("--until", help="2h, 06:00 or an RFC 3339 time, in UTC.")],
    rule: Annotated[str, typer.Option("--rule", help="Of this rule; * is any text.")] = "",
    engine: Annotated[str, typer.Option("--engine", "-e", help="On this engine; * is any text.")] = "",
    group: Annotated[str, typer.Option("--group", help="On engines of this group.")] = "",
    namespace: Annotated[str, typer.Option("--namespace", help="Of rules of this namespace.")] = "",
    reason: Reason = "silenced by hand",
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Tell nobody of the alerts that match, until an end. They go on being evaluated and shown."""
    wanted = {"rule": rule, "engine": engine, "group": group, "namespace": namespace}
    matchers = {key: value for key, value in wanted.items() if value}
    with connect(url, token, data_dir) as client:
        made = client.silence(matchers, until=moment_of(until, ahead=True).isoformat(), reason=reason)
    if as_json:
        show_json(made)
    else:
        OUT.print(f"silence {made['id']}: {json.dumps(matchers)} until {as_time(made['until'])} UTC", markup=False)


def silences(
    everything: Annotated[bool, typer.Option("--all", help="Also those that are over.")] = False,
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """The silences that hold."""
    with connect(url, token, data_dir) as client:
        found = client.silences(everything=everything)
    if as_json:
        show_json(found)
        return
    rows = (
        (one["id"], _matchers(one), as_time(one["until"]), one["actor"], one["reason"], one["removed_by"] or "")
        for one in found
    )
    show_table("Silences", ("id", "matches", "until", "by", "reason", "removed by"), rows)


def _matchers(silence: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in silence["matchers"].items())


def unsilence(
    silence_id: Annotated[int, typer.Argument(help="The silence's number.")],
    reason: Reason = "removed by hand",
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """End a silence now; what still fires is told then."""
    with connect(url, token, data_dir) as client:
        ended = client.unsilence(silence_id, reason=reason)
    if as_json:
        show_json(ended)
    else:
        OUT.print(f"silence {silence_id} is over")


def inbound(line: Line, limit: Annotated[int, typer.Option(min=1, max=1000, help="At most this many.")] = 20) -> None:
    """Alerts that asked for a policy, ours and Alertmanager's, and what came of them; newest first."""
    with line.open() as client:
        found = client.inbound_alerts(limit=limit)
    if line.as_json:
        show_json(found)
        return
    columns = ("received (UTC)", "policy", "engine", "summary", "deliveries", "done (UTC)", "outcome")
    show_table("Alerts that asked for a policy", columns, map(_inbound_row, found))


def _inbound_row(one: dict[str, Any]) -> tuple[Any, ...]:
    ends = (one["deliveries"], as_time(one["done_at"]), json.dumps(one["outcome"]) if one["outcome"] else None)
    return as_time(one["received_at"]), one["policy"], one["engine_id"], one["event"], *ends
