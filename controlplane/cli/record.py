"""Verbs that read the record: who did what, what changed when, what failed, what is damaged, numbers over time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from controlplane.api.client import ControlPlaneClient
from controlplane.cli.context import SHORT_ID, EngineOption, as_bytes, as_text, as_time, show_json, show_table
from controlplane.cli.exits import OUT
from controlplane.cli.groups import Line, grouped
from controlplane.cli.moments import moment_of

PAGE_ROWS = 1000  # the most that one call answers

Since = Annotated[str, typer.Option(help="From when: 15m, 2h, 03:12, or a whole time; all times are UTC.")]
Limit = Annotated[int, typer.Option(min=1, max=1000, help="At most this many.")]


def register(app: typer.Typer) -> None:
    """Adds the verbs."""
    for verb in (audit, marks, failures, damaged, series):
        app.command()(grouped(verb))


def audit(
    line: Line,
    actor: Annotated[str, typer.Option(help="Only what this person or policy did.")] = "",
    action: Annotated[str, typer.Option(help="Only this: evict, set_desired, create_token...")] = "",
    target: Annotated[
        str, typer.Option(help="Only what was done to this: a part of a prefix, an engine, a name.")
    ] = "",
    trace: Annotated[str, typer.Option(help="Only what belongs to this trace.")] = "",
    since: Annotated[str, typer.Option(help="From when: 15m, 2h, 03:12, or a whole time. Default: all.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="At most this many; all of them are read page by page.")] = 20,
) -> None:
    """Who did what, to what, why, and what it changed; newest first."""
    asked = {"actor": actor or None, "action": action or None, "target": target or None, "trace": trace or None}
    with line.open() as client:
        rows = list(_pages(client, {**asked, "since": _moment(since) if since else None}, limit))
    if line.as_json:
        show_json(rows)
        return
    columns = ("id", "at (UTC)", "who", "action", "target", "reason", "changed")
    show_table("Audit", columns, (_audit_row(row) for row in rows))


def _pages(client: ControlPlaneClient, asked: dict[str, Any], limit: int) -> Iterator[dict[str, Any]]:
    """The newest `limit` rows, each page from where the one before ended: what is written meanwhile shifts nothing."""
    before, left = None, limit
    while left > 0:
        page = client.audit(**asked, before=before, limit=min(left, PAGE_ROWS))
        yield from page
        if len(page) < min(left, PAGE_ROWS):
            return
        before, left = page[-1]["id"], left - len(page)


def _audit_row(row: dict[str, Any]) -> tuple[Any, ...]:
    before, after = row["before"] or {}, row["after"] or {}
    changed = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    who = f"{row['actor']} ({row['role']})"
    return row["id"], as_time(row["at"]), who, row["action"], row["target"], row["reason"], ", ".join(changed) or None


def marks(line: Line, since: Since = "1h", engine: EngineOption = "") -> None:
    """What changed when, for the timeline of an incident: settings, evictions, policies, alerts, quarantines."""
    with line.open() as client:
        found = client.marks(since=_moment(since), engine=engine or None)
    if line.as_json:
        show_json(found)
        return
    rows = ((as_time(m["at"]), m["kind"], m["engine_id"], m["text"], m["actor"], m["reason"]) for m in found)
    show_table("Changes, oldest first", ("at (UTC)", "kind", "engine", "summary", "by", "reason"), rows)


def failures(
    line: Line,
    validation: Annotated[str, typer.Option(help="Only this one: window_fresh, disk_reloaded...")] = "",
    since: Since = "1h",
    engine: EngineOption = "",
    limit: Limit = 20,
) -> None:
    """How the validations ended, and the newest that failed, each with its trace."""
    asked = {"since": _moment(since), "engine": engine or None}
    with line.open() as client:
        counts = client.validations(**asked)
        newest = client.failures(**asked, validation=validation or None, limit=limit)
    if line.as_json:
        show_json({"counts": counts, "failures": newest})
        return
    shown = [row for row in counts if validation in ("", row["validation"])]
    show_table("Validations", ("validation", "verdict", "reason", "count"), (tuple(row.values()) for row in shown))
    columns = ("at (UTC)", "engine", "prefix", "validation", "object kind", "reason", "boundary", "trace")
    show_table("Failures, newest first", columns, (_failure_row(row) for row in newest))


def _failure_row(row: dict[str, Any]) -> tuple[Any, ...]:
    what = (row["validation"], row["object_kind"], row["reason"], row["boundary"])
    return as_time(row["at"]), row["engine_id"], row["prefix_id"][:SHORT_ID], *what, row["trace_id"]


def damaged(line: Line, engine: EngineOption = "", limit: Limit = 20) -> None:
    """Prefixes in quarantine, and why; newest first."""
    with line.open() as client:
        found = client.damaged(engine=engine or None, limit=limit)
    if line.as_json:
        show_json(found)
        return
    columns = ("since (UTC)", "engine", "prefix", "tokens", "held", "cause", "reason", "trace")
    show_table("In quarantine", columns, (_damaged_row(row) for row in found))


def _damaged_row(row: dict[str, Any]) -> tuple[Any, ...]:
    prefix = row["prefix"]
    held = sum(prefix[f"{tier}_bytes"] for tier in ("gpu", "host", "disk"))
    what = (prefix["engine_id"], prefix["prefix_id"][:SHORT_ID], prefix["tokens"], as_bytes(held))
    return as_time(row["at"]), *what, row["cause"], row["reason"], row["trace_id"]


def series(
    line: Line,
    name: Annotated[
        str, typer.Argument(help="usable_and_lcp, hit_rate_by_kind, tier_io_p99...; a wrong one lists all.")
    ],
    since: Since = "1h",
    engine: EngineOption = "",
) -> None:
    """One number over time, by minute: a line of the dashboard's charts, for scripts and terminals."""
    with line.open() as client:
        found = client.series(name, since=_moment(since), engine=engine or None)
    if line.as_json:
        show_json(found)
        return
    labels = sorted({point["label"] for point in found["points"]})
    minutes: dict[str, dict[str, float | None]] = {}
    for point in found["points"]:
        minutes.setdefault(point["minute"], {})[point["label"]] = point["value"]
    rows = ((as_time(minute), *(as_text(values.get(label)) for label in labels)) for minute, values in minutes.items())
    unit = "share" if found["unit"] == "1" else found["unit"]
    show_table(f"{name}, {unit}", ("at (UTC)", *labels), rows)
    if any(values.get(label) is None for values in minutes.values() for label in labels):
        OUT.print("[dim]-: nothing in that minute to make a value of[/]")


def _moment(text: str) -> str:
    return moment_of(text, ahead=False).isoformat()
