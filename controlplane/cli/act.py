"""Verbs that act on prefixes: evict, warm, pin, unpin, compact, scrub. Each is a command with an outcome."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn

from controlplane.api.client import ControlPlaneClient
from controlplane.cli.completion import complete_prefixes
from controlplane.cli.context import (
    DEFAULT_DATA_DIR,
    DEFAULT_URL,
    AsJson,
    DataDir,
    EngineOption,
    Reason,
    TokenOption,
    Url,
    as_bytes,
    choose_engine,
    connect,
    parse_bytes,
    parse_seconds,
    show_json,
)
from controlplane.cli.exits import ERR, OUT, CliError, Exit
from controlplane.cli.look import full_id

REFUSAL_HINTS = {
    "has_descendants": "Other prefixes build on it: --descendants evicts them too.",
    "pinned": "`kvdeck unpin` lets it go.",
    "pin_budget": "Pins may hold a share of the GPU tier only: `kvdeck unpin` others first.",
    "leased": "A request reads it right now: try again in a moment.",
    "version_moved_on": "It has changed since it was shown: look again.",
    "unknown_prefix": "The engine does not hold it (any more).",
}
ENDED = ("succeeded", "failed", "refused", "expired", "cancelled")
LOOK_EVERY_SECONDS = 0.3

PrefixIds = Annotated[
    list[str], typer.Argument(help="Ids of prefixes, or their first letters.", autocompletion=complete_prefixes)
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the outcome.")]
ExpiresIn = Annotated[str, typer.Option("--expires", help="Give up if the engine has not begun by then: 30s, 5m.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One command as asked for on the command line."""

    kind: str
    arguments: Mapping[str, Any]
    reason: str
    expires: str
    wait: bool
    as_json: bool


def register(app: typer.Typer) -> None:
    """Adds the verbs."""
    for verb in (evict, warm, pin, unpin, compact, scrub):
        app.command()(verb)


def evict(
    prefix_ids: PrefixIds,
    engine: EngineOption = "",
    reason: Reason = "evicted by hand",
    descendants: Annotated[bool, typer.Option("--descendants", help="And everything that builds on them.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would go.")] = False,
    yes: Yes = False,
    wait: Wait = True,
    expires: ExpiresIn = "5m",
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Evict prefixes. Shows what would go, asks, and is refused for what has moved on since it was shown."""
    with connect(url, token, data_dir) as client:
        where, ids = _named(client, engine, prefix_ids)
        arguments = {"prefix_ids": ids, "descendants": descendants}
        radius = client.preview(where, "evict", arguments)
        if dry_run:
            show_json(radius) if as_json else _show_radius(where, radius)
            return
        if not yes:
            _show_radius(where, radius)
            _ask("Evict?")
        arguments["expect_versions"] = radius["versions"]
        asked = Asked(kind="evict", arguments=arguments, reason=reason, expires=expires, wait=wait, as_json=as_json)
        send(client, where, asked)


def warm(
    prefix_ids: PrefixIds,
    engine: EngineOption = "",
    max_bytes: Annotated[str, typer.Option(help="Bring back at most this much: 512MiB, 4G.")] = "1GiB",
    reason: Reason = "warmed by hand",
    wait: Wait = True,
    expires: ExpiresIn = "5m",
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Bring prefixes back to the GPU before anybody asks for them."""
    with connect(url, token, data_dir) as client:
        where, ids = _named(client, engine, prefix_ids)
        arguments = {"prefix_ids": ids, "max_bytes": parse_bytes(max_bytes)}
        send(
            client,
            where,
            Asked(kind="warm", arguments=arguments, reason=reason, expires=expires, wait=wait, as_json=as_json),
        )


def pin(
    prefix_ids: PrefixIds,
    engine: EngineOption = "",
    lasts: Annotated[str, typer.Option("--for", help="How long: 30m, 2h, 1d.")] = "1h",
    reason: Reason = "pinned by hand",
    wait: Wait = True,
    expires: ExpiresIn = "5m",
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Keep prefixes from eviction for a while."""
    with connect(url, token, data_dir) as client:
        where, ids = _named(client, engine, prefix_ids)
        arguments = {"prefix_ids": ids, "ttl_s": parse_seconds(lasts)}
        send(
            client,
            where,
            Asked(kind="pin", arguments=arguments, reason=reason, expires=expires, wait=wait, as_json=as_json),
        )


def unpin(
    prefix_ids: PrefixIds,
    engine: EngineOption = "",
    reason: Reason = "unpinned by hand",
    wait: Wait = True,
    expires: ExpiresIn = "5m",
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Let pinned prefixes be evicted again."""
    with connect(url, token, data_dir) as client:
        where, ids = _named(client, engine, prefix_ids)
        arguments = {"prefix_ids": ids}
        send(
            client,
            where,
            Asked(kind="unpin", arguments=arguments, reason=reason, expires=expires, wait=wait, as_json=as_json),
        )


def compact(
    engine: EngineOption = "",
    max_pages: Annotated[int, typer.Option(min=1, help="Move at most this many pages.")] = 4096,
    reason: Reason = "compacted by hand",
    wait: Wait = True,
    expires: ExpiresIn = "5m",
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Move pages together, to give slabs back."""
    with connect(url, token, data_dir) as client:
        arguments = {"max_pages": max_pages}
        asked = Asked(kind="compact", arguments=arguments, reason=reason, expires=expires, wait=wait, as_json=as_json)
        send(client, choose_engine(client, engine), asked)


def scrub(
    engine: EngineOption = "",
    max_bytes: Annotated[str, typer.Option(help="Read at most this much: 512MiB, 4G.")] = "1GiB",
    bytes_per_s: Annotated[str, typer.Option(help="How fast: 20MiB, 1G. Default: the engine's own rate.")] = "",
    reason: Reason = "scrubbed by hand",
    wait: Wait = True,
    expires: ExpiresIn = "5m",
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Read stored objects and compare their checksums; what is damaged is quarantined."""
    with connect(url, token, data_dir) as client:
        arguments = {"max_bytes": parse_bytes(max_bytes)}
        if bytes_per_s:
            arguments["bytes_per_s"] = parse_bytes(bytes_per_s)
        asked = Asked(kind="scrub", arguments=arguments, reason=reason, expires=expires, wait=wait, as_json=as_json)
        send(client, choose_engine(client, engine), asked)


def send(client: ControlPlaneClient, engine: str, asked: Asked) -> None:
    """Submits the command and, if asked to, waits for its end. Raises CliError unless it succeeded."""
    command = client.submit(
        engine, asked.kind, asked.arguments, reason=asked.reason, expires_seconds=parse_seconds(asked.expires)
    )
    if asked.wait:
        command = _await_end(client, command)
    if asked.as_json:
        show_json(command)
    elif command["status"] in ENDED:
        OUT.print(f"{asked.kind} {command['status']} on {engine}: {_outcome_text(command['outcome'])}", markup=False)
    else:
        OUT.print(f"{asked.kind} is {command['status']}: command {command['id']}", markup=False)
    if command["status"] in ENDED and command["status"] != "succeeded":
        why = str(command["outcome"].get("reason", "no reason was given"))
        hint = next((text for word, text in REFUSAL_HINTS.items() if word in why), "")
        record = f"Its record is command {command['id']}."
        raise CliError(f"The {asked.kind} {command['status']}: {why}.", f"{hint} {record}".strip())


def _await_end(client: ControlPlaneClient, command: dict[str, Any]) -> dict[str, Any]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=ERR, transient=True) as progress:
        task = progress.add_task(f"{command['kind']}: {command['status']}")
        # The control plane ends every command: done by its engine, or expired by the sweep.
        while command["status"] not in ENDED:
            time.sleep(LOOK_EVERY_SECONDS)
            command = client.command(command["id"])
            done = ", ".join(f"{key} {value}" for key, value in command["progress"].items())
            progress.update(task, description=f"{command['kind']}: {command['status']} {done}")
    return command


def _named(client: ControlPlaneClient, engine: str, prefix_ids: Sequence[str]) -> tuple[str, list[str]]:
    where = choose_engine(client, engine)
    return where, [full_id(client, where, prefix_id) for prefix_id in prefix_ids]


def _show_radius(engine: str, radius: Mapping[str, Any]) -> None:
    held = ", ".join(f"{as_bytes(count)} on {tier}" for tier, count in radius["bytes_by_tier"].items())
    OUT.print(f"On {engine}: {radius['prefixes']} prefixes, {radius['own_tokens']} tokens, {held}")
    OUT.print(f"  they served {radius['tokens_served']} tokens; {radius['descendants']} prefixes build on them")
    if radius["unknown"]:
        OUT.print(f"  not known here: {', '.join(radius['unknown'])}")
    for warning in radius["warnings"]:
        OUT.print(f"  note: {warning}")


def _outcome_text(outcome: Mapping[str, Any]) -> str:
    def word(key: str, value: Any) -> str:
        if isinstance(value, list):
            return f"{key} {len(value)}"
        return f"{key} {as_bytes(value)}" if key == "bytes" else f"{key} {value}"

    shown = {key: value for key, value in outcome.items() if key != "span_id"}
    return ", ".join(word(key, value) for key, value in shown.items()) or "nothing more was said"


def _ask(question: str) -> None:
    if not typer.confirm(question):
        raise CliError("Nothing was changed.", "Say --yes to be asked nothing.", Exit.FAILED)
