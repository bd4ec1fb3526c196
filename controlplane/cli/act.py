"""Verbs that act on prefixes and engines: each is a command with an outcome, for one engine or for many."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from controlplane.cli.completion import complete_prefixes
from controlplane.cli.context import parse_bytes, parse_seconds
from controlplane.cli.groups import Line, Pace, Sending, Where, Which, grouped
from controlplane.cli.sending import Order, carry_out

PrefixIds = Annotated[
    list[str] | None,
    typer.Argument(help="Ids of prefixes, or their first letters.", autocompletion=complete_prefixes),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def register(app: typer.Typer) -> None:
    """Adds the verbs."""
    for verb in (evict, warm, restore, pin, unpin, compress, offload, compact, scrub, drain):
        app.command()(grouped(verb))


def evict(
    which: Which,
    where: Where,
    sending: Sending,
    pace: Pace,
    line: Line,
    prefix_ids: PrefixIds = None,
    descendants: Annotated[bool, typer.Option("--descendants", help="And everything that builds on them.")] = False,
    yes: Yes = False,
) -> None:
    """Evict prefixes. Shows what would go, asks, and is refused for what has moved on since it was shown."""
    order = Order(
        kind="evict", arguments={"descendants": descendants, **_paced(pace)}, prefix_ids=prefix_ids or [], asks=not yes
    )
    carry_out(order, which, where, sending, line)


def warm(
    which: Which,
    where: Where,
    sending: Sending,
    pace: Pace,
    line: Line,
    prefix_ids: PrefixIds = None,
    max_bytes: Annotated[str, typer.Option(help="Bring back at most this much: 512MiB, 4G.")] = "1GiB",
) -> None:
    """Bring prefixes back to the GPU before anybody asks for them; of those selected, most served first."""
    arguments = {"max_bytes": parse_bytes(max_bytes), **_paced(pace)}
    carry_out(Order(kind="warm", arguments=arguments, prefix_ids=prefix_ids or []), which, where, sending, line)


def restore(which: Which, where: Where, sending: Sending, pace: Pace, line: Line, prefix_ids: PrefixIds = None) -> None:
    """Bring prefixes back to the GPU, however many bytes that are."""
    order = Order(kind="restore", arguments=_paced(pace), prefix_ids=prefix_ids or [])
    carry_out(order, which, where, sending, line)


def pin(
    which: Which,
    where: Where,
    sending: Sending,
    line: Line,
    prefix_ids: PrefixIds = None,
    lasts: Annotated[str, typer.Option("--for", help="How long: 30m, 2h, 1d.")] = "1h",
) -> None:
    """Keep prefixes from eviction for a while."""
    order = Order(kind="pin", arguments={"ttl_s": parse_seconds(lasts)}, prefix_ids=prefix_ids or [])
    carry_out(order, which, where, sending, line)


def unpin(which: Which, where: Where, sending: Sending, line: Line, prefix_ids: PrefixIds = None) -> None:
    """Let pinned prefixes be evicted again."""
    carry_out(Order(kind="unpin", arguments={}, prefix_ids=prefix_ids or []), which, where, sending, line)


def compress(
    which: Which,
    where: Where,
    sending: Sending,
    pace: Pace,
    line: Line,
    prefix_ids: PrefixIds = None,
    codec: Annotated[str, typer.Option(help="lossless, int8, fp8, int4; default: the codec in force.")] = "",
) -> None:
    """Code the history pages of prefixes, to make room on the GPU."""
    arguments = _paced(pace) | ({"codec": codec} if codec else {})
    carry_out(Order(kind="compress", arguments=arguments, prefix_ids=prefix_ids or []), which, where, sending, line)


def offload(
    which: Which,
    where: Where,
    sending: Sending,
    pace: Pace,
    line: Line,
    prefix_ids: PrefixIds = None,
    to: Annotated[str, typer.Option("--to", help="host or disk.")] = "host",
) -> None:
    """Move prefixes off the GPU to a tier below."""
    arguments = {"tier": to, **_paced(pace)}
    carry_out(Order(kind="offload", arguments=arguments, prefix_ids=prefix_ids or []), which, where, sending, line)


def compact(
    where: Where,
    sending: Sending,
    line: Line,
    max_pages: Annotated[int, typer.Option(min=1, help="Move at most this many pages.")] = 4096,
) -> None:
    """Move pages together, to give slabs back."""
    carry_out(Order(kind="compact", arguments={"max_pages": max_pages}), None, where, sending, line)


def scrub(
    where: Where,
    sending: Sending,
    line: Line,
    max_bytes: Annotated[str, typer.Option(help="Read at most this much: 512MiB, 4G.")] = "1GiB",
    bytes_per_s: Annotated[str, typer.Option(help="How fast: 20MiB, 1G. Default: the engine's own rate.")] = "",
) -> None:
    """Read stored objects and compare their checksums; what is damaged is quarantined."""
    arguments = {"max_bytes": parse_bytes(max_bytes)}
    if bytes_per_s:
        arguments["bytes_per_s"] = parse_bytes(bytes_per_s)
    carry_out(Order(kind="scrub", arguments=arguments), None, where, sending, line)


def drain(
    where: Where,
    sending: Sending,
    pace: Pace,
    line: Line,
    then: Annotated[str, typer.Option(help="With what is held: keep, offload, evict.")] = "keep",
    to: Annotated[str, typer.Option("--to", help="For --then offload: host or disk.")] = "host",
    leases: Annotated[str, typer.Option(help="Wait so long for requests that read now.")] = "60s",
    lasts: Annotated[str, typer.Option("--for", help="Stay drained so long: 30m, 2h; at most 7d.")] = "1h",
    yes: Yes = False,
) -> None:
    """Take an engine out of service: no new reuse, no new commits, leases end. Back: `kvdeck mode auto --engine X`."""
    arguments: dict[str, Any] = {"then": then, "wait_s": parse_seconds(leases), "hold_s": parse_seconds(lasts)}
    if then == "offload":
        arguments["tier"] = to
    order = Order(kind="drain", arguments={**arguments, **_paced(pace)}, asks=not yes)
    carry_out(order, None, where, sending, line)


def _paced(pace: Pace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if pace.prefixes_per_s is not None:
        found["prefixes_per_s"] = pace.prefixes_per_s
    if pace.bytes_per_s:
        found["bytes_per_s"] = parse_bytes(pace.bytes_per_s)
    return found
