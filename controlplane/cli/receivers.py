"""`kvdeck alert receivers` and the verbs beside it: who is told, and whether it arrived."""

from __future__ import annotations

import sys
from pathlib import Path
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
from controlplane.cli.exits import OUT, CliError, Exit

Name = Annotated[str, typer.Argument(help="The receiver's name.")]
SecretFile = Annotated[
    Path | None, typer.Option("--secret-file", help="A file with the secret that signs; - reads it from stdin.")
]
NOTIFICATION_COLUMNS = ("receiver", "alert", "state", "status", "attempts", "queued", "ended", "summary")


def register(alert: typer.Typer) -> None:
    """Adds the verbs."""
    alert.command("receivers")(receivers)
    alert.command("add-receiver")(add_receiver)
    alert.command("set-receiver")(set_receiver)
    alert.command("remove-receiver")(remove_receiver)
    alert.command("deliveries")(deliveries)


def receivers(
    url: Url = DEFAULT_URL, token: TokenOption = "", data_dir: DataDir = DEFAULT_DATA_DIR, as_json: AsJson = False
) -> None:
    """Who is told of alerts; of an address only its host is shown."""
    with connect(url, token, data_dir) as client:
        found = client.receivers()
    if as_json:
        show_json(found)
        return
    columns = ("name", "host", "signed", "from", "waiting", "delivered", "failed", "dropped", "")
    shown = ("name", "host", "signed", "least_severity", "pending", "delivered", "failed", "dropped")
    rows = ((*(one[key] for key in shown), "" if one["enabled"] else "off") for one in found)
    show_table("Receivers", columns, rows)


def add_receiver(
    name: Name,
    address: Annotated[str, typer.Argument(help="Where to POST: an http(s) address.")],
    secret_file: SecretFile = None,
    severity: Annotated[str, typer.Option("--severity", help="Tell of alerts from this on.")] = "warning",
    timeout: Annotated[int, typer.Option("--timeout", min=1, max=30, help="Seconds it may take to answer.")] = 5,
    reason: Reason = "added by hand",
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Tell a webhook of alerts (admins only)."""
    secret = {"secret": _read(secret_file)} if secret_file else {}
    with connect(url, token, data_dir) as client:
        made = client.add_receiver(
            name, address, reason=reason, least_severity=severity, timeout_seconds=timeout, **secret
        )
    _said(made, as_json, f"{name} at {made['host']} is told from {made['least_severity']} on")


def set_receiver(
    name: Name,
    address: Annotated[str, typer.Option("--address", help="A new address.")] = "",
    secret_file: SecretFile = None,
    severity: Annotated[str, typer.Option("--severity", help="Tell of alerts from this on.")] = "",
    off: Annotated[bool, typer.Option("--off", help="Tell it no more.")] = False,
    on: Annotated[bool, typer.Option("--on", help="Tell it again.")] = False,
    reason: Reason = "changed by hand",
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Change a receiver, or switch it off and on (admins only)."""
    if on and off:
        raise CliError("--on and --off were both given.", "Give one of them.", Exit.USAGE)
    changes: dict[str, Any] = {"url": address} if address else {}
    changes |= {"secret": _read(secret_file)} if secret_file else {}
    changes |= {"least_severity": severity} if severity else {}
    changes |= {"enabled": on} if on or off else {}
    with connect(url, token, data_dir) as client:
        seen = client.change_receiver(name, reason=reason, **changes)
    _said(seen, as_json, f"{name} at {seen['host']} is {'on' if seen['enabled'] else 'off'}")


def remove_receiver(
    name: Name,
    reason: Reason = "removed by hand",
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Forget a receiver (admins only); what waits for it ends as failed."""
    with connect(url, token, data_dir) as client:
        removed = client.remove_receiver(name, reason=reason)
    _said(removed, as_json, f"receiver {name} is removed")


def deliveries(
    receiver: Annotated[str, typer.Option("--receiver", help="Only to this one.")] = "",
    status: Annotated[str, typer.Option("--status", help="pending, delivered, failed or dropped.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most this many.")] = 20,
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """What receivers were told or will be, newest first."""
    with connect(url, token, data_dir) as client:
        found = client.notifications(receiver=receiver or None, status=status or None, limit=limit)
    if as_json:
        show_json(found)
        return
    show_table("Deliveries", NOTIFICATION_COLUMNS, map(notification_row, found))


def notification_row(one: dict[str, Any]) -> tuple[Any, ...]:
    """One delivery as a line of a table."""
    times = (as_time(one["created_at"]), as_time(one["ended_at"]))
    return (one["receiver"], one["alert_id"], one["state"], one["status"], one["attempts"], *times, one["last_error"])


def _read(path: Path) -> str:
    # Never an option's value: those are in the shell's history and in the list of processes.
    try:
        return (sys.stdin.read() if str(path) == "-" else path.read_text()).strip()
    except OSError as error:
        raise CliError(f"The secret cannot be read from {path}: {error.strerror}.", "", Exit.USAGE) from None


def _said(body: Any, as_json: bool, text: str) -> None:
    if as_json:
        show_json(body)
    else:
        OUT.print(text, markup=False)
