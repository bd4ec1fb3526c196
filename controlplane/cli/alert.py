"""`kvdeck alert`: what needs somebody."""

from __future__ import annotations

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
    show_json,
    show_table,
)
from controlplane.cli.exits import OUT


def register(app: typer.Typer) -> None:
    """Adds `kvdeck alert`."""
    alert = typer.Typer(no_args_is_help=True, help="Alerts: list, ack.")
    alert.command("list")(list_alerts)
    alert.command("ack")(ack)
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
    columns = ("id", "state", "rule", "engine", "since", "summary", "acknowledged by")
    show_table("Alerts", columns, map(_row, alerts))


def _row(alert: dict[str, Any]) -> tuple[Any, ...]:
    what = (alert["id"], alert["state"], alert["rule"], alert["engine_id"], as_time(alert["since"]))
    return (*what, alert["summary"], alert["acknowledged_by"])


def ack(
    alert_id: Annotated[int, typer.Argument(help="The alert's number.")],
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
