"""`kvdeck replay`: a trace, or the built-in workload, through a real engine; every loaded byte is verified."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.cli.exits import Exit, show_error

if TYPE_CHECKING:
    from controlplane.workload.driver import DriverConfig
    from controlplane.workload.replay import ReplayConfig, ReplayResult
    from controlplane.workload.report import Report

INTERRUPTED = 130  # what a shell expects of a program that Ctrl-C ended; `main` uses the same


def replay(
    trace: Annotated[
        Path | None, typer.Argument(help="A Mooncake or Qwen-Bailian JSONL trace; without it, the built-in workload.")
    ] = None,
    spec: Annotated[str, typer.Option(help="Model preset; `kvdeck spec` lists them.")] = "small-deepseek-v4",
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after this many requests.")] = None,
    speed: Annotated[
        float | None, typer.Option(min=0.001, help="Times real time; without it, as fast as possible.")
    ] = None,
    inflight: Annotated[int, typer.Option(min=0, help="Leases held while later requests start.")] = 0,
    verify: Annotated[bool, typer.Option(help="Compare every loaded byte with the truth.")] = True,
    namespace: Annotated[str, typer.Option(help="Namespace of a trace's requests.")] = "default",
    gpu_mib: Annotated[int, typer.Option(min=1, help="GPU tier (host memory on --device cpu).")] = 48,
    host_mib: Annotated[int, typer.Option(min=0, help="Host tier; 0 leaves it out.")] = 96,
    disk_mib: Annotated[int, typer.Option(min=0, help="Disk tier; 0 leaves it out.")] = 384,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the disk tier; a temporary one without it.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    codec: Annotated[str, typer.Option(help="none, lossless, int8, fp8 or int4.")] = "lossless",
    mode: Annotated[str, typer.Option(help="Mode of degradation to run in.")] = "normal",
    cap_prefixes: Annotated[int | None, typer.Option(min=1, help="Admission cap in prefixes.")] = None,
    checkpoint_every: Annotated[int, typer.Option(min=0, help="Also a checkpoint every N tokens; 0: none.")] = 0,
    restore_deadline: Annotated[float, typer.Option(min=0, help="Seconds one restore may take.")] = 0.2,
    materialise: Annotated[bool, typer.Option(help="Keep real bytes; without, bookkeeping only.")] = True,
    block_tokens: Annotated[int | None, typer.Option(min=2, help="Tokens a hash id; guessed without it.")] = None,
    time_unit: Annotated[str | None, typer.Option(help="ms or s; guessed without it.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the synthetic bytes and of the built-in workload.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Replay a trace and report hits, misses with their reasons, and wrong bytes (there must be none).

    Exits 1 on wrong bytes, a broken line or a broken invariant; the report covers everything before it. Ctrl-C stops
    after the request in hand and prints the report so far.
    """
    from controlplane.workload.driver import DriverConfig
    from controlplane.workload.replay import ReplayConfig

    config = ReplayConfig(
        trace=trace,
        spec=spec,
        limit=limit,
        namespace=namespace,
        gpu_mib=gpu_mib,
        host_mib=host_mib,
        disk_mib=disk_mib,
        data_dir=data_dir,
        device=device,
        codec=codec,
        mode=mode,
        cap_prefixes=cap_prefixes,
        checkpoint_every_tokens=checkpoint_every,
        materialise=materialise,
        block_tokens=block_tokens,
        time_unit=time_unit,
        seed=seed,
    )
    driving = DriverConfig(verify=verify, inflight=inflight, speed=speed, restore_deadline_s=restore_deadline)
    result = _run(config, driving)
    typer.echo(json.dumps(result.as_dict(), indent=2)) if as_json else _print_table(result)
    _say_what_went_wrong(result)
    if result.failed:
        raise typer.Exit(Exit.FAILED)
    if result.interrupted:
        raise typer.Exit(INTERRUPTED)


def _run(config: ReplayConfig, driving: DriverConfig) -> ReplayResult:
    from controlplane.workload.replay import run_replay
    from engine.integrations.synthetic import use_one_thread

    use_one_thread()
    with _stop_on_interrupt() as stop, _progress(config.limit) as on_request:
        return run_replay(config, driving, stop=stop, on_request=on_request)


@contextmanager
def _stop_on_interrupt() -> Iterator[threading.Event]:
    """The first Ctrl-C asks for a stop between two requests; a second one interrupts for good."""
    stop = threading.Event()

    def ask(_signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        stop.set()

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _progress(limit: int | None) -> Iterator[Callable[[Report], None]]:
    """A bar on stderr, so that stdout stays the report's; without a limit it shows no end."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("replay"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[hit]}"),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("replay", total=limit, hit="")

        def on_request(report: Report) -> None:
            hit = f"hit {report.ratio(report.usable_tokens):.1%}, wrong bytes {report.wrong_bytes}"
            bar.update(task, completed=report.requests, hit=hit)

        yield on_request


def _print_table(result: ReplayResult) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from controlplane.workload.report import rows_of

    table = Table(box=None, pad_edge=False, show_header=False)
    last = ""
    for group, what, value in rows_of(result.report, result.engine):
        table.add_row("" if group == last else group, Text(what), Text(value))
        last = group
    Console().print(table)


def _say_what_went_wrong(result: ReplayResult) -> None:
    report = result.report
    if result.error is not None:
        show_error(result.error)
    for violation in result.engine["violations"]:
        typer.echo(f"BROKEN INVARIANT: {violation}", err=True)
    if report.wrong_bytes:
        typer.secho(
            f"WRONG BYTES: {report.wrong_bytes:,} of {report.verified_bytes:,} loaded bytes are not what the model "
            f"would hold (first: {report.first_wrong}). Do not serve from this engine; please report this.",
            err=True,
            fg="red",
            bold=True,
        )
