"""Verbs that set desired state: cap, mode."""

from __future__ import annotations

import datetime as dt
from enum import StrEnum
from typing import Annotated, Any

import typer

from controlplane.api.client import ControlPlaneClient
from controlplane.cli.context import parse_bytes, parse_seconds
from controlplane.cli.desired import show_revised, show_revisions, show_trial
from controlplane.cli.exits import CliError, Exit
from controlplane.cli.groups import Line, ScopeOf, Why, grouped
from controlplane.clock import utc_now

KNOB_OPTIONS = {"pins": "pin_budget_ratio", "checkpoints": "checkpoint_budget_ratio"}


class Mode(StrEnum):
    """The ladder of degradation, and `auto`: nobody holds the mode, the policy decides. Draining is `kvdeck drain`."""

    NORMAL = "normal"
    NO_DISK = "no_disk"
    RESIDENT_ONLY = "resident_only"
    FULL_ONLY = "full_only"
    BYPASS = "bypass"
    AUTO = "auto"


def register(app: typer.Typer) -> None:
    """Adds the verbs."""
    app.command()(grouped(cap))
    app.command()(grouped(mode))


def cap(
    scope: ScopeOf,
    why: Why,
    line: Line,
    prefixes: Annotated[
        str, typer.Option(help="At most this many prefixes: 500; 'default' for the engine's own.")
    ] = "",
    gpu: Annotated[str, typer.Option(help="GPU bytes: 40G; 'default' for the engine's own.")] = "",
    host: Annotated[str, typer.Option(help="Host bytes; 0 closes the tier.")] = "",
    disk: Annotated[str, typer.Option(help="Disk bytes; 0 closes the tier.")] = "",
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
    codec: Annotated[str, typer.Option(help="How pages are coded: lossless, int8...; 'default'.")] = "",
    checkpoints: Annotated[
        str, typer.Option(help="The share of the GPU tier that windows and tails may fill: 0.3; 'default'.")
    ] = "",
    checkpoint_every: Annotated[
        str, typer.Option(help="A checkpoint every so many tokens, besides the usual ones: 2048; 'default'.")
    ] = "",
    pins: Annotated[str, typer.Option(help="The share of the GPU tier that pins may hold: 0.5; 'default'.")] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would change and leave; the engines are asked.")
    ] = False,
    rollback: Annotated[
        int | None, typer.Option(min=0, help="Go back to what this revision said; 0 is before the first.")
    ] = None,
) -> None:
    """Set admission caps, rules and budgets, for all or one namespace; without options, show the revisions."""
    own = _namespace_cap(namespace, guaranteed, at_most, prefixes, no_cap)
    texts = {
        "cap_prefixes": "" if namespace else prefixes,
        "cap_gpu_bytes": gpu,
        "cap_host_bytes": host,
        "cap_disk_bytes": disk,
        "admission_rule": admission,
        "eviction": eviction,
        "codec": codec,
        "checkpoint_budget_ratio": checkpoints,
        "checkpoint_every_tokens": checkpoint_every,
        "pin_budget_ratio": pins,
    }
    changes = {key: _value_of(key, text) for key, text in texts.items() if text}
    if (changes or namespace) and rollback is not None:
        raise CliError("--rollback sets the whole document.", "Give it without caps.", Exit.USAGE)
    with line.open() as client:
        expected = None
        if namespace:
            changes["namespace_caps"], expected = _namespaces(client, scope, namespace, own)
        wanted: dict[str, Any] = {"changes": changes} if changes else {"revision": rollback}
        if not changes and rollback is None:
            show_revisions(client.desired(**scope.names, limit=20), line.as_json)
        elif dry_run:
            show_trial(client, client.try_desired(**scope.names, ask=True, **wanted), line.as_json)
        elif rollback is not None:
            show_revised(client.rollback(rollback, reason=_said(why), **scope.names), line.as_json)
        else:
            revised = client.set_desired(changes, reason=_said(why), expect_revision=expected, **scope.names)
            show_revised(revised, line.as_json)


def _said(why: Why) -> str:
    return "set by hand" if why.reason == "by hand" else why.reason


def _value_of(key: str, text: str) -> Any:
    if text == "default":
        return None
    if key.endswith("_bytes"):
        return parse_bytes(text)
    if key.endswith("_ratio"):
        return _ratio(text, key)
    return _count(text, key) if key in ("cap_prefixes", "checkpoint_every_tokens") else text


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


def _namespaces(
    client: ControlPlaneClient, scope: ScopeOf, namespace: str, own: dict[str, int]
) -> tuple[dict[str, Any] | None, int]:
    """Caps of all namespaces with this one's replaced in the newest document of this scope, and its revision: one in
    between is a conflict."""
    names = scope.names
    rows = client.desired(**names, limit=500)
    mine = [row for row in rows if (row["engine_id"], row["group_name"]) == (names["engine"], names["group"])]
    others = (mine[0]["document"].get("namespace_caps") or {}) if mine else {}
    caps = {name: value for name, value in others.items() if name != namespace}
    if own:
        caps[namespace] = own
    return caps or None, int(mine[0]["revision"]) if mine else 0


def _ratio(text: str, key: str) -> float:
    option = next(name for name, knob in KNOB_OPTIONS.items() if knob == key)
    try:
        return float(text)
    except ValueError:
        raise CliError(f"--{option} is {text!r}.", "Give a share such as 0.3, or 'default'.", Exit.USAGE) from None


def _count(text: str, key: str = "cap_prefixes") -> int:
    if not text.isascii() or not text.isdigit():
        option = "prefixes" if key == "cap_prefixes" else "checkpoint-every"
        raise CliError(f"--{option} is {text!r}.", "Give a whole number, or 'default'.", Exit.USAGE)
    return int(text)


def mode(
    scope: ScopeOf,
    why: Why,
    line: Line,
    mode: Annotated[Mode, typer.Argument(help="The mode; auto gives it back to the policy, and ends a drain.")],
    lasts: Annotated[str, typer.Option("--for", help="How long you hold it: 30m, 2h. At most 7d.")] = "1h",
) -> None:
    """Hold an engine, a group, or the fleet, in a mode for a while. A person's hold outranks the policy."""
    if mode is Mode.AUTO:
        changes: dict[str, Any] = {"mode": None, "mode_expires_at": None}
    else:
        expires = utc_now() + dt.timedelta(seconds=parse_seconds(lasts))
        changes = {"mode": mode.value, "mode_expires_at": expires.isoformat()}
    with line.open() as client:
        show_revised(client.set_desired(changes, reason=_said(why), **scope.names), line.as_json)
