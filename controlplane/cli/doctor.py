"""`kvdeck doctor`: what is wrong, by evidence, and which command helps."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from controlplane.api.client import Unreachable
from controlplane.cli.completion import complete_engines
from controlplane.cli.context import (
    DEFAULT_DATA_DIR,
    DEFAULT_URL,
    AsJson,
    DataDir,
    TokenOption,
    Url,
    as_time,
    connect,
    parse_seconds,
    running_ports,
    settings_for,
    show_json,
    show_table,
)
from controlplane.cli.exits import OUT, Exit

SEVERE = "severe"


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command()(doctor)


def doctor(
    engine: Annotated[
        str,
        typer.Option("--engine", "-e", help="Only this one, and what is of all.", autocompletion=complete_engines),
    ] = "",
    since: Annotated[str, typer.Option(help="How far back to look: 15m, 1h, 2d.")] = "1h",
    installation: Annotated[
        bool, typer.Option("--installation", help="Check this machine, even while a deck runs.")
    ] = False,
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """What is wrong, with evidence and the command that helps. Ends with 1 when something is severe.

    Without a deck on this machine it checks whether one could run here.
    """
    minutes = parse_seconds(since) / 60
    found = None if installation else _of_deck(url, token, data_dir, engine, minutes)
    if found is None:
        found = _of_machine(data_dir)
    if as_json:
        show_json(found)
    else:
        _show(found)
    if any(finding["severity"] == SEVERE for finding in found["findings"]):
        raise typer.Exit(Exit.FAILED)


def _of_deck(url: str, token: str, data_dir: Any, engine: str, minutes: float) -> dict[str, Any] | None:
    """The deck's findings; None when none runs here. One that was named and does not answer is an error."""
    with connect(url, token, data_dir) as client:
        try:
            return {**client.doctor(engine=engine or None, minutes=minutes), "checks": []}
        except Unreachable:
            if url != DEFAULT_URL or running_ports(data_dir):
                raise
            return None


def _of_machine(data_dir: Any) -> dict[str, Any]:
    from controlplane.insight.installation import check_installation, findings_of  # loads torch, which takes seconds

    checked = check_installation(settings_for(data_dir))
    findings: list[dict[str, Any]] = [
        {"rule": f.rule, "severity": f.severity, "engine_id": None, "summary": f.summary, "evidence": {},
         "since": None, "advice": f.advice}
        for f in findings_of(checked)
    ]  # fmt: skip
    checks = [{"name": c.name, "said": c.said, "ok": c.severity is None} for c in checked]
    return {"engines": [], "rules": 0, "findings": findings, "checks": checks}


def _show(found: dict[str, Any]) -> None:
    if found["checks"]:
        OUT.print("No deck runs here. Could one?")
        columns = ("check", "well", "summary")
        show_table("Installation", columns, ((c["name"], c["ok"], c["said"]) for c in found["checks"]))
    findings = found["findings"]
    if not findings:
        looked = f"{found['rules']} rules, engines: {', '.join(found['engines']) or 'none'}"
        OUT.print("Nothing is wrong." if found["checks"] else f"Nothing is wrong ({looked}).")
        return
    for finding in findings:
        where = f" on {finding['engine_id']}" if finding["engine_id"] else ""
        since = f", since {as_time(finding['since'])}" if finding["since"] else ""
        colour = {"severe": "red", "warning": "yellow"}.get(finding["severity"], "cyan")
        OUT.print(f"[bold {colour}]{finding['severity']}[/] {finding['rule']}{where}{since}")
        OUT.print(f"  {finding['summary']}", markup=False)
        if finding["evidence"]:
            OUT.print("  " + ", ".join(f"{k} {v}" for k, v in finding["evidence"].items()), markup=False, style="dim")
        OUT.print(f"  {finding['advice']}", markup=False)
