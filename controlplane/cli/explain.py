"""`kvdeck explain`: why requests were no hit. Of a window of time, of one trace, or of one prefix."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

import typer

from controlplane.api.client import ControlPlaneClient
from controlplane.cli.completion import complete_prefixes
from controlplane.cli.context import (
    DEFAULT_DATA_DIR,
    DEFAULT_URL,
    AsJson,
    DataDir,
    EngineOption,
    TokenOption,
    Url,
    as_bytes,
    as_time,
    choose_engine,
    connect,
    parse_seconds,
    show_json,
    show_table,
)
from controlplane.cli.exits import OUT, CliError, Exit
from controlplane.cli.look import full_id

SHOWN_VERSIONS = 20
SHOWN_REQUESTS = 10


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command()(explain)


def explain(
    prefix_id: Annotated[
        str,
        typer.Argument(
            help="A prefix's id, or its first letters; none: all requests.", autocompletion=complete_prefixes
        ),
    ] = "",
    trace: Annotated[str, typer.Option(help="The requests of this trace: 32 hexadecimal digits.")] = "",
    since: Annotated[str, typer.Option(help="How far back: 15m, 1h, 2d.")] = "1h",
    namespace: Annotated[str, typer.Option(help="Only requests of this namespace.")] = "",
    engine: EngineOption = "",
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Why requests were no hit: lost tokens by cause, and what to do. Of a prefix also its life and what missed it."""
    if prefix_id and trace:
        raise CliError("A prefix and a trace were given.", "Explain one of them.", Exit.USAGE)
    if trace and not re.fullmatch("[0-9a-f]{32}", trace):
        raise CliError(f"{trace!r} is no trace id.", "It has 32 hexadecimal digits.", Exit.USAGE)
    minutes = _minutes(since)
    with connect(url, token, data_dir) as client:
        where = {"engine": engine or None, "namespace": namespace or None}
        show: Callable[[dict[str, Any]], None]
        if trace:
            found, show = client.requests(trace=trace, **where), _show_trace
        elif prefix_id:
            found, show = _of_prefix(client, prefix_id, choose_engine(client, engine), minutes), _show_prefix
        else:
            found, show = client.losses(minutes=minutes, **where), _show_window
    if as_json:
        show_json(found)
    else:
        show(found)


def _minutes(since: str) -> float:
    seconds = parse_seconds(since)
    if not 0 < seconds <= 31 * 86_400:
        raise CliError(f"--since {since} is no span we can look back over.", "From 1s to 31d.", Exit.USAGE)
    return seconds / 60


def _of_prefix(client: ControlPlaneClient, start: str, engine: str, minutes: float) -> dict[str, Any]:
    """`GET /v1/prefixes/...`, with the requests that missed it as `missed`."""
    prefix_id = full_id(client, engine, start)
    detail: dict[str, Any] = client.prefix(engine, prefix_id)
    missed = client.requests(lost_prefix=prefix_id, engine=engine, minutes=minutes, limit=1000)
    return {**detail, "missed": missed}


def _show_window(why: dict[str, Any]) -> None:
    if not why["requests"]:
        OUT.print("No request in that time. `kvdeck status` says which engines speak.")
        return
    _show_why(why)


def _show_trace(found: dict[str, Any]) -> None:
    for request in found["requests"]:
        OUT.print(
            f"[bold]{request['outcome']}[/] at {as_time(request['at'])} in namespace {request['namespace']} on "
            f"{request['engine_id']}, mode {request['mode']}, reason {request['reason']}"
        )
        if request["prefix_id"]:
            OUT.print(f"  served from {request['prefix_id']}")
        if request["lost_prefix_id"]:
            OUT.print(f"  would have gone on with {request['lost_prefix_id']}: `kvdeck explain` it")
    _show_why(found["why"])


def _show_why(why: dict[str, Any]) -> None:
    prompt = why["prompt_tokens"]
    rows: list[tuple[Any, ...]] = [("usable", why["usable_tokens"], _share(why["usable_tokens"], prompt), "the hit")]
    rows += [
        (row["cause"], row["tokens"], _share(row["tokens"], prompt), row["meaning"] + ". " + row["advice"])
        for row in why["rows"]
    ]
    title = f"{why['requests']:,} requests, {prompt:,} prompt tokens, {why['lcp_tokens']:,} known"
    show_table(title, ("cause", "tokens", "share", "why"), rows)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def _show_prefix(detail: dict[str, Any]) -> None:
    now = detail["now"]
    OUT.print(f"[bold]{now['prefix_id']}[/] is {now['state']}, version {now['version']}, on {now['engine_id']}")
    OUT.print(f"  {now['tokens']} tokens, served {now['tokens_served']} in {now['requests_served']} requests")
    held = ", ".join(f"{tier} {as_bytes(now[f'{tier}_bytes'])}" for tier in ("gpu", "host", "disk"))
    OUT.print(f"  holds {held}{', pinned' if now['pinned'] else ''}")
    versions = detail["versions"][:SHOWN_VERSIONS]
    columns = ("v", "at", "from", "to", "cause", "reason", "moved", "trace")
    show_table("Versions, newest first", columns, (_version_row(version) for version in versions))
    failures = detail["failures"]
    show_table("Failed validations", ("at", "validation", "object", "reason", "boundary"), map(_failure_row, failures))
    _show_missed(detail["missed"])


def _show_missed(missed: dict[str, Any]) -> None:
    """The requests it would have served more of, had it been there."""
    if not missed["requests"]:
        OUT.print("Requests that missed it: none")
        return
    more = " at least" if missed["capped"] else ""
    OUT.print(f"Requests that missed it:{more} {missed['why']['requests']:,}")
    columns = ("at", "lost", "of prompt", "trace")
    show_table("The newest of them", columns, map(_missed_row, missed["requests"][:SHOWN_REQUESTS]))
    _show_why(missed["why"])


def _missed_row(request: dict[str, Any]) -> tuple[Any, ...]:
    lost = request["prompt_tokens"] - request["usable_tokens"]
    return as_time(request["at"]), lost, request["prompt_tokens"], request["trace_id"]


def _version_row(version: dict[str, Any]) -> tuple[Any, ...]:
    step = (version["version"], as_time(version["at"]), version["state_from"], version["state_to"])
    return (*step, version["cause"], version["reason"], as_bytes(version["bytes_moved"]), version["trace_id"])


def _failure_row(failure: dict[str, Any]) -> tuple[Any, ...]:
    return as_time(failure["at"]), failure["validation"], failure["object_kind"], failure["reason"], failure["boundary"]
