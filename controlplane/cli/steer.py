"""Verbs that set desired state: cap, mode."""

from __future__ import annotations

import datetime as dt
from enum import StrEnum
from typing import Annotated, Any

import typer

from controlplane.api.client import ControlPlaneClient
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
    parse_bytes,
    parse_seconds,
    show_json,
    show_table,
)
from controlplane.cli.exits import OUT, CliError, Exit
from controlplane.clock import utc_now

Scope = Annotated[str, typer.Option("--engine", "-e", help="Only this engine; else the whole fleet.")]


class Mode(StrEnum):
    """The ladder of degradation, and `auto`: nobody holds the mode, the policy decides."""

    NORMAL = "normal"
    NO_DISK = "no_disk"
    RESIDENT_ONLY = "resident_only"
    FULL_ONLY = "full_only"
    BYPASS = "bypass"
    AUTO = "auto"


def register(app: typer.Typer) -> None:
    """Adds the verbs."""
    app.command()(cap)
    app.command()(mode)


def cap(
    engine: Scope = "",
    prefixes: Annotated[
        str, typer.Option(help="At most this many prefixes: 500; 'default' for the engine's own.")
    ] = "",
    gpu: Annotated[str, typer.Option(help="GPU bytes: 40G; 'default' for the engine's own.")] = "",
    host: Annotated[str, typer.Option(help="Host bytes.")] = "",
    disk: Annotated[str, typer.Option(help="Disk bytes.")] = "",
    namespace: Annotated[
        str, typer.Option(help="A namespace to cap: with --guaranteed, --max, --prefixes; or --no-cap.")
    ] = "",
    guaranteed: Annotated[
        str, typer.Option(help="GPU bytes the namespace keeps while others hold more than theirs: 64MiB.")
    ] = "",
    at_most: Annotated[str, typer.Option("--max", help="GPU bytes the namespace may hold: 1GiB.")] = "",
    no_cap: Annotated[bool, typer.Option("--no-cap", help="Take the namespace's caps away.")] = False,
    admission: Annotated[
        str, typer.Option(help="Which pages are kept: all, second_touch, first_pages:N; 'default'.")
    ] = "",
    eviction: Annotated[str, typer.Option(help="Who leaves first: lru, cost_aware; 'default'.")] = "",
    checkpoints: Annotated[
        str, typer.Option(help="The share of the GPU tier that windows and tails may fill: 0.3; 'default'.")
    ] = "",
    rollback: Annotated[int | None, typer.Option(help="Go back to what this revision said.")] = None,
    reason: Reason = "set by hand",
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Set admission caps and rules, for all or one namespace, or show the revisions when nothing is given."""
    own = _namespace_cap(namespace, guaranteed, at_most, prefixes, no_cap)
    changes: dict[str, Any] = {}
    if prefixes and not namespace:
        changes["cap_prefixes"] = None if prefixes == "default" else _count(prefixes)
    for tier, text in (("gpu", gpu), ("host", host), ("disk", disk)):
        if text:
            changes[f"cap_{tier}_bytes"] = None if text == "default" else parse_bytes(text)
    rules = {"admission_rule": admission, "eviction": eviction, "checkpoint_budget_ratio": checkpoints}
    for key, text in rules.items():
        if text:
            value = _ratio(text) if key == "checkpoint_budget_ratio" and text != "default" else text
            changes[key] = None if text == "default" else value
    if (changes or namespace) and rollback is not None:
        raise CliError("--rollback sets the whole document.", "Give it without caps.", Exit.USAGE)
    with connect(url, token, data_dir) as client:
        if rollback is not None:
            _show_revised(client.rollback(rollback, reason=reason), as_json)
        elif changes or namespace:
            if namespace:
                _set_namespace(client, engine or None, namespace, own, changes, reason, as_json)
            else:
                _show_revised(client.set_desired(changes, reason=reason, engine=engine or None), as_json)
        else:
            _show_revisions(client.desired(engine=engine or None, limit=20), as_json)


def _namespace_cap(namespace: str, guaranteed: str, at_most: str, prefixes: str, no_cap: bool) -> dict[str, int]:
    """One namespace's caps as asked for; empty takes them away."""
    given = bool(guaranteed or at_most)
    if not namespace:
        if given or no_cap:
            raise CliError("--guaranteed, --max, --no-cap: of which namespace?", "Add --namespace.", Exit.USAGE)
        return {}
    if no_cap == bool(given or prefixes):
        raise CliError(
            f"What of namespace {namespace!r}?", "Give --guaranteed, --max or --prefixes; or --no-cap.", Exit.USAGE
        )
    found = {}
    for key, text in (("guaranteed_bytes", guaranteed), ("max_bytes", at_most)):
        if text:
            found[key] = parse_bytes(text)
    if prefixes:
        found["max_prefixes"] = _count(prefixes)
    return found


def _set_namespace(
    client: ControlPlaneClient,
    engine: str | None,
    namespace: str,
    own: dict[str, int],
    changes: dict[str, Any],
    reason: str,
    as_json: bool,
) -> None:
    """Replaces one namespace's caps in the newest document of this scope, and nobody else's: a revision in between is a
    conflict."""
    mine = [row for row in client.desired(engine=engine, limit=500) if row["engine_id"] == engine]
    others = (mine[0]["document"].get("namespace_caps") or {}) if mine else {}
    standing = int(mine[0]["revision"]) if mine else 0
    caps = {name: value for name, value in others.items() if name != namespace}
    if own:
        caps[namespace] = own
    changes = {**changes, "namespace_caps": caps or None}
    revised = client.set_desired(changes, reason=reason, engine=engine, expect_revision=standing)
    _show_revised(revised, as_json)


def _ratio(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise CliError(f"--checkpoints is {text!r}.", "Give a share such as 0.3, or 'default'.", Exit.USAGE) from None


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise CliError(f"--prefixes is {text!r}.", "Give a whole number, or 'default'.", Exit.USAGE)
    return int(text)


def mode(
    mode: Annotated[Mode, typer.Argument(help="The mode; auto gives it back to the policy.")],
    engine: Scope = "",
    lasts: Annotated[str, typer.Option("--for", help="How long you hold it: 30m, 2h. At most 7d.")] = "1h",
    reason: Reason = "set by hand",
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Hold an engine, or the fleet, in a mode for a while. A person's hold outranks the policy."""
    if mode is Mode.AUTO:
        changes: dict[str, Any] = {"mode": None, "mode_expires_at": None}
    else:
        expires = utc_now() + dt.timedelta(seconds=parse_seconds(lasts))
        changes = {"mode": mode.value, "mode_expires_at": expires.isoformat()}
    with connect(url, token, data_dir) as client:
        _show_revised(client.set_desired(changes, reason=reason, engine=engine or None), as_json)


def _show_revised(revised: dict[str, Any], as_json: bool) -> None:
    if as_json:
        show_json(revised)
        return
    if not revised["diff"]:
        OUT.print(f"Nothing to change: revision {revised['revision']} says so already.")
        return
    OUT.print(f"Revision {revised['revision']}:")
    for key, (before, after) in revised["diff"].items():
        OUT.print(f"  {key}: {_value(before)} -> {_value(after)}", markup=False)


def _value(value: Any) -> str:
    return "not set" if value is None else str(value)


def _show_revisions(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        show_json(rows)
        return
    cells = (
        (row["revision"], row["engine_id"] or "fleet", as_time(row["at"]), row["actor"], row["reason"], row["document"])
        for row in rows
    )
    show_table("Desired state, newest first", ("revision", "scope", "at", "by", "why", "document"), cells)
