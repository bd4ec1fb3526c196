"""From an order on the command line to commands with outcomes: choose, show, ask, send, wait, tell."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn

from controlplane.api.client import ControlPlaneClient
from controlplane.cli.context import as_bytes, choose_engine, parse_seconds, show_json
from controlplane.cli.exits import ERR, OUT, CliError, Exit
from controlplane.cli.groups import Line, Sending, Where, Which
from controlplane.cli.look import full_id

REFUSAL_HINTS = {
    "has_descendants": "Other prefixes build on it: --descendants evicts them too.",
    "pinned": "`kvdeck unpin` lets it go.",
    "pin_budget": "Pins may hold a share of the GPU tier only: `kvdeck unpin` others first.",
    "leased": "A request reads it right now: try again in a moment.",
    "version_moved_on": "It has changed since it was shown: look again.",
    "unknown_prefix": "The engine does not hold it (any more).",
    "engine_silent": "The engine was not heard of: `kvdeck status`.",
    "not_taken_in_time": "The engine did not ask for work in time: `kvdeck status`, or a longer --expires.",
}
ENDED = ("succeeded", "failed", "refused", "expired", "cancelled")
LOOK_EVERY_SECONDS = 0.3
WITH_PREFIXES = frozenset({"evict", "warm", "restore", "pin", "unpin", "compress", "offload"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a verb wants done. `asks`: show what it touches and ask first."""

    kind: str
    arguments: Mapping[str, Any]
    prefix_ids: Sequence[str] = field(default_factory=list)
    asks: bool = False


def carry_out(order: Order, which: Which | None, where: Where, sending: Sending, line: Line) -> None:
    """Sends the order and tells what came of it. Raises CliError unless all of it succeeded."""
    where.check()
    selector = which.selector if which is not None else None
    if order.kind in WITH_PREFIXES and bool(order.prefix_ids) == bool(selector):
        raise CliError(
            "Which prefixes?" if not selector else "Ids and a selection were given.",
            "Give ids, or select: --namespace, --label, --state, --held-in, --idle, --least-useful.",
            Exit.USAGE,
        )
    with line.open() as client:
        if where.is_many:
            _to_many(client, order, selector, where, sending, line)
        else:
            _to_one(client, order, selector, where, sending, line)


def _to_one(
    client: ControlPlaneClient,
    order: Order,
    selector: Mapping[str, Any] | None,
    where: Where,
    sending: Sending,
    line: Line,
) -> None:
    engine = choose_engine(client, where.engine)
    arguments = dict(order.arguments)
    if order.prefix_ids:
        arguments["prefix_ids"] = [full_id(client, engine, prefix_id) for prefix_id in order.prefix_ids]
    if order.asks or sending.dry_run:
        radius = client.preview(engine, order.kind, arguments, selector)
        if sending.dry_run:
            show_json(radius) if line.as_json else show_radius(engine, radius)
            return
        show_radius(engine, radius, to_stderr=line.as_json)
        _ask(f"{order.kind.capitalize()}?")
        if order.kind in WITH_PREFIXES:  # exactly what was shown, as it was shown
            if selector is not None and not radius["versions"]:
                raise CliError(f"Nothing on {engine} is selected.", "Select by less.", Exit.NOT_FOUND)
            arguments["expect_versions"] = radius["versions"]
            if selector is not None:
                arguments["prefix_ids"], selector = list(radius["versions"]), None
    elif order.kind == "evict" and selector is None:
        arguments["expect_versions"] = client.preview(engine, order.kind, arguments)["versions"]
    command = client.submit(
        engine,
        order.kind,
        arguments,
        selector=selector,
        reason=_reason(order, sending),
        expires_seconds=parse_seconds(sending.expires),
        idempotency_key=sending.key or None,
    )
    if sending.wait:
        command = until_ended(client, command)
    show_json(command) if line.as_json else tell_command(command)
    raise_unless_done([command])


def _to_many(
    client: ControlPlaneClient,
    order: Order,
    selector: Mapping[str, Any] | None,
    where: Where,
    sending: Sending,
    line: Line,
) -> None:
    arguments = dict(order.arguments)
    if order.prefix_ids:
        arguments["prefix_ids"] = list(order.prefix_ids)
    group = where.group or None
    selected = None
    if order.asks or sending.dry_run:
        radius = client.preview_batch(order.kind, arguments, group=group, selector=selector)
        if sending.dry_run:
            show_json(radius) if line.as_json else show_fleet_radius(radius)
            return
        show_fleet_radius(radius, to_stderr=line.as_json)
        _ask(f"{order.kind.capitalize()}?")
        if order.kind in WITH_PREFIXES:
            arguments.pop("prefix_ids", None)
            selected, selector = radius["selected"], None
    batch = client.submit_batch(
        order.kind,
        arguments,
        group=group,
        selector=selector,
        selected=selected,
        reason=_reason(order, sending),
        expires_seconds=parse_seconds(sending.expires),
        idempotency_key=sending.key or None,
    )
    skipped = batch["skipped"]
    if sending.wait:
        batch = _await(lambda: client.batch(batch["batch_id"]), batch, lambda b: bool(b["over"]), _say_batch)
        batch["skipped"] = skipped
    if line.as_json:
        show_json(batch)
    else:
        OUT.print(f"batch {batch['batch_id']}:", markup=False)
        for command in batch["commands"]:
            tell_command(command)
        for each in skipped:
            OUT.print(f"{each['engine_id']} was skipped: {each['why']}", markup=False)
    raise_unless_done(batch["commands"])


def _reason(order: Order, sending: Sending) -> str:
    return sending.reason if sending.reason != "by hand" else f"{order.kind} by hand"


def until_ended(client: ControlPlaneClient, command: dict[str, Any]) -> dict[str, Any]:
    """The command when it has ended, as it is told meanwhile on stderr."""
    return _await(lambda: client.command(command["id"]), command, lambda c: c["status"] in ENDED, _say_command)


def _await(
    look: Callable[[], dict[str, Any]],
    first: dict[str, Any],
    is_over: Callable[[dict[str, Any]], bool],
    say: Callable[[dict[str, Any]], str],
) -> dict[str, Any]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"))
    found = first
    with Progress(*columns, console=ERR, transient=True) as progress:
        task = progress.add_task(say(found))
        # The control plane ends every command: done by its engine, or expired by the sweep.
        while not is_over(found):
            time.sleep(LOOK_EVERY_SECONDS)
            found = look()
            progress.update(task, description=say(found))
    return found


def _say_command(command: dict[str, Any]) -> str:
    done = ", ".join(f"{key} {value}" for key, value in command["progress"].items())
    return f"{command['kind']}: {command['status']} {done}"


def _say_batch(batch: dict[str, Any]) -> str:
    return f"{batch['kind']}: " + ", ".join(f"{n} {status}" for status, n in batch["by_status"].items())


def tell_command(command: Mapping[str, Any]) -> None:
    """One line for people."""
    kind, engine, status = command["kind"], command["engine_id"], command["status"]
    if status in ENDED:
        OUT.print(f"{kind} {status} on {engine}: {outcome_text(command['outcome'])}", markup=False)
    else:
        OUT.print(f"{kind} is {status} on {engine}: command {command['id']}", markup=False)


def raise_unless_done(commands: Sequence[Mapping[str, Any]]) -> None:
    """Raises CliError, with what to do next, when one of them ended in anything but success."""
    bad = [command for command in commands if command["status"] in ENDED and command["status"] != "succeeded"]
    if not bad:
        return
    first = bad[0]
    why = str(first["outcome"].get("reason", "no reason was given"))
    hint = next((text for word, text in REFUSAL_HINTS.items() if word in why), "")
    record = f"Its record: `kvdeck command {first['id']}`."
    many = f" on {len(bad)} of {len(commands)} engines, first {first['engine_id']}" if len(commands) > 1 else ""
    raise CliError(f"The {first['kind']} {first['status']}{many}: {why}.", f"{hint} {record}".strip())


def show_radius(engine: str, radius: Mapping[str, Any], *, to_stderr: bool = False) -> None:
    """What a command would touch on one engine, for people."""
    out = ERR if to_stderr else OUT
    held = ", ".join(f"{as_bytes(count)} on {tier}" for tier, count in radius["bytes_by_tier"].items())
    out.print(
        f"On {engine}: {counted(radius['prefixes'], 'prefix', 'prefixes')}, {radius['own_tokens']} tokens, {held}"
    )
    below = counted(radius["descendants"], "prefix builds", "prefixes build")
    leases = counted(radius["leases"], "lease is", "leases are")
    out.print(f"  served {radius['tokens_served']} tokens; {below} on them; {leases} held on this engine")
    out.print(f"  {refill_text(radius)}")
    if radius.get("left_out"):
        left = ", ".join(f"{n} {reason}" for reason, n in radius["left_out"].items())
        out.print(f"  {radius['matched']} match; left out: {left}")
    if radius["unknown"]:
        out.print(f"  not known here: {', '.join(radius['unknown'])}")
    for warning in radius["warnings"]:
        out.print(f"  note: {warning}")


def show_fleet_radius(radius: Mapping[str, Any], *, to_stderr: bool = False) -> None:
    """What a command would touch on many engines."""
    for engine, own in radius["engines"].items():
        show_radius(engine, own, to_stderr=to_stderr)
    out = ERR if to_stderr else OUT
    held = ", ".join(f"{as_bytes(count)} on {tier}" for tier, count in radius["bytes_by_tier"].items())
    engines = counted(len(radius["engines"]), "engine", "engines")
    out.print(
        f"In all, on {engines}: {counted(radius['prefixes'], 'prefix', 'prefixes')}, {held}; {refill_text(radius)}"
    )
    for each in radius["skipped"]:
        out.print(f"  {each['engine_id']} would be skipped: {each['why']}", markup=False)


def refill_text(radius: Mapping[str, Any]) -> str:
    """What filling the cache again would cost."""
    if not radius["refill_tokens"]:
        return "nothing has to be computed again"
    cost = f"{radius['refill_tokens']} tokens to compute again if they are asked for"
    seconds = radius["refill_seconds"]
    return cost if seconds is None else f"{cost}, about {seconds:.1f} s of prefill"


def outcome_text(outcome: Mapping[str, Any]) -> str:
    """An outcome in one line."""

    def word(key: str, value: Any) -> str:
        if isinstance(value, list):
            return f"{key} {len(value)}"
        return f"{key} {as_bytes(value)}" if key == "bytes" else f"{key} {value}"

    if "inspected" in outcome:  # the rest is tables
        return f"{outcome['state']}, version {outcome['version']}, leases {outcome['leases']}"
    shown = {key: value for key, value in outcome.items() if key not in ("span_id", "trace_id")}
    return ", ".join(word(key, value) for key, value in shown.items()) or "nothing more was said"


def counted(n: int, one: str, many: str) -> str:
    """A number with its noun."""
    return f"{n} {one if n == 1 else many}"


def _ask(question: str) -> None:
    if not typer.confirm(question, err=True):
        raise CliError("Nothing was changed.", "Say --yes to be asked nothing.", Exit.FAILED)
