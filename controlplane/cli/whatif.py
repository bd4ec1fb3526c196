"""`kvdeck whatif`: what other caps and rules would do, on a recorded trace or on a live engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
    parse_bytes,
    show_json,
    show_table,
)
from controlplane.cli.exits import ERR, OUT, CliError, Exit

if TYPE_CHECKING:
    from controlplane.insight.simulate import Tell
    from controlplane.insight.whatif import TraceAnswer, WhatIf

Caps = Annotated[list[str] | None, typer.Option("--cap-bytes", help="A cap to try: 40G. May be given several times.")]
Counts = Annotated[list[int] | None, typer.Option("--cap-prefixes", min=1, help="A cap to try, in prefixes.")]
NEW_ENGINE = "It grows with every request; `kvdeck whatif TRACE` answers now if you have a trace."


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command()(whatif)


def whatif(
    trace: Annotated[Path | None, typer.Argument(help="A Mooncake or Qwen-Bailian JSONL; else a live engine.")] = None,
    engine: EngineOption = "",
    namespace: Annotated[str, typer.Option(help="Live: only this namespace's curve.")] = "",
    outcomes: Annotated[
        bool, typer.Option("--outcomes", help="Live: what was predicted, and what came of it.")
    ] = False,
    cap_prefixes: Counts = None,
    cap_bytes: Caps = None,
    within: Annotated[float, typer.Option(help="Recommend the smallest cap so many points below the ceiling.")] = 2.0,
    spec: Annotated[str, typer.Option(help="Trace: the model, as in `kvdeck spec`.")] = "bench-full-swa",
    admission: Annotated[list[str] | None, typer.Option(help="Trace: simulate only this admission rule.")] = None,
    eviction: Annotated[list[str] | None, typer.Option(help="Trace: simulate only this eviction rule.")] = None,
    checkpoints: Annotated[
        list[str] | None,
        typer.Option(help="Trace: end_and_branch, end_of_prompt, end_of_output, every:N or none; several times."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Trace: only so many requests.")] = None,
    samples: Annotated[int, typer.Option(min=512, max=65_536, help="Trace: pages watched.")] = 2048,
    rate: Annotated[float | None, typer.Option(min=0.001, max=1.0, help="Trace: share of prompts simulated.")] = None,
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """The hit rate at other caps, a recommended cap with its evidence, and other rules simulated (on a trace)."""
    wanted_bytes = tuple(parse_bytes(text) for text in cap_bytes or ())
    if trace is None:
        with connect(url, token, data_dir) as client:
            where = choose_engine(client, engine)
            if outcomes:
                rows = client.predictions(engine=where)
                show_json(rows) if as_json else _show_outcomes(where, rows)
                return
            found = client.whatif(
                engine=where, namespace=namespace or None, cap_prefixes=_one(cap_prefixes, "--cap-prefixes"),
                cap_bytes=_one(wanted_bytes, "--cap-bytes"), within_points=within,
            )  # fmt: skip
        show_json(found) if as_json else _show_live(found)
        return
    from controlplane.insight.whatif import DEFAULT_ADMISSIONS, DEFAULT_CHECKPOINTS, DEFAULT_EVICTIONS, WhatIf

    what = WhatIf(
        trace=trace,
        spec=spec,
        limit=limit,
        samples=samples,
        caps_prefixes=tuple(cap_prefixes or ()),
        caps_bytes=wanted_bytes,
        admissions=tuple(admission or DEFAULT_ADMISSIONS),
        evictions=tuple(eviction or DEFAULT_EVICTIONS),
        checkpoints=tuple(checkpoints or DEFAULT_CHECKPOINTS),
        rate=rate,
        within_points=within,
    )
    answer = _ask(what)
    typer.echo(json.dumps(answer.as_dict(), indent=2)) if as_json else _show_trace(answer)


def _one(values: Any, option: str) -> Any:
    if values and len(values) > 1:
        raise CliError(f"A live engine is asked for one {option} at a time.", "Run it again for the other.", Exit.USAGE)
    return values[0] if values else None


def _ask(what: WhatIf) -> TraceAnswer:
    from controlplane.insight.whatif import ask_trace
    from engine.integrations.synthetic import use_one_thread

    use_one_thread()
    with _progress() as tell:
        return ask_trace(what, tell)


@contextmanager
def _progress() -> Iterator[Tell]:
    """A bar on stderr that says what is being done."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=ERR, transient=True, disable=not ERR.is_terminal) as bar:
        task = bar.add_task("reading", total=None)

        def tell(what: str, done: int, of: int) -> None:
            bar.update(task, description=what, completed=done, total=of or None)

        yield tell


def _show_trace(answer: TraceAnswer) -> None:
    curve = answer.curve
    OUT.print(
        f"[bold]{answer.what.trace.name}[/]: {answer.requests:,} requests, {curve.references:,.0f} references to "
        f"{answer.distinct_pages:,} pages of {answer.page_tokens} tokens"
    )
    OUT.print(f"  {curve.samples:,.0f} samples of {curve.watched_pages:,} pages, one page in {1 / curve.rate:,.0f}")
    if answer.refused:
        OUT.print(f"  no curve: {answer.refused}")
    else:
        rows = [(f"{r.pages:,}", _number(r.prefixes), as_bytes(r.n_bytes), _share(r.sampled_ratio),
                 _share(r.exact_ratio), f"{r.error_points:.2f}") for r in answer.compared]  # fmt: skip
        columns = ("pages", "prefixes", "bytes", "sampled", "exact", "points apart")
        show_table("Hit rate of the longest common prefix, by cap", columns, rows)
        OUT.print(f"mean error of the sampled curve: {answer.mean_error_points:.2f} points")
    if answer.recommendation is not None:
        _show_recommendation(answer.as_dict()["recommendation"])
    simulated = [
        (
            as_bytes(o.cap_bytes) if o.cap_prefixes is None else f"{o.cap_prefixes:,} prefixes",
            *(o.rules.admission, o.rules.eviction, o.rules.checkpoints),
            *map(_share, (o.lcp_ratio, o.hit_ratio, o.net_ratio)),
        )
        for o in answer.simulated
    ]
    title = f"Rules, simulated on {answer.rate:.0%} of the prompts ({answer.simulated[0].requests:,} requests)"
    named = ("cap", "admission", "eviction", "checkpoints", "common prefix", "usable", "net of replay")
    show_table(title, named, simulated)


def _show_live(found: dict[str, Any]) -> None:
    scope = f"namespace {found['namespace']}" if found["namespace"] else "all namespaces"
    OUT.print(f"[bold]{found['engine']}[/], {scope}, sampled {as_time(found['at'])}", markup=True)
    OUT.print(f"  {found['samples']:,} samples of {found['watched_pages']:,} pages")
    if found["refused"]:
        OUT.print(f"no curve yet: {found['refused']}")
        OUT.print(f"  {NEW_ENGINE}", style="dim")
        return
    points = found["curve"]
    step = max(1, len(points) // 12)
    rows = [(f"{p['pages']:,}", _number(p["prefixes"]), as_bytes(p["bytes"]), _share(p["hit_ratio"]))
            for p in points[::step]]  # fmt: skip
    show_table("Usable hit rate by cap", ("pages", "prefixes", "bytes", "usable"), rows)
    now, proposed = found["now"], found["proposed"]
    measured = "-" if found["measured_ratio"] is None else f"{found['measured_ratio']:.1%}"
    if now is None:
        OUT.print(f"now: no cap of its own, {measured} measured")
    else:
        OUT.print(f"now: room for {now['pages']:,} pages, {now['hit_ratio']:.1%} expected, {measured} measured")
    if proposed is not None:
        gain = "" if now is None else f" ({(proposed['hit_ratio'] - now['hit_ratio']) * 100:+.1f} points)"
        OUT.print(
            f"at the cap asked for: {proposed['hit_ratio']:.1%} expected{gain}; would evict "
            f"{proposed['evicts_prefixes']:,} prefixes, {as_bytes(proposed['evicts_bytes'])}"
        )
    if found["recommendation"] is not None:
        _show_recommendation(found["recommendation"])
    for caution in found["cautions"]:
        OUT.print(f"  {caution}", style="dim", markup=False)


def _show_recommendation(found: dict[str, Any]) -> None:
    cap = found["near_ceiling"]
    OUT.print(f"[bold]recommended[/]: {_number(cap['prefixes'])} prefixes or {as_bytes(cap['bytes'])}")
    OUT.print(f"  {found['why']}", markup=False)


def _show_outcomes(engine: str, rows: list[dict[str, Any]]) -> None:
    columns = ("revision", "at", "namespace", "caps", "predicted", "measured", "points apart", "samples", "state")
    shown = [
        (
            row["revision"], as_time(row["at"]), row["namespace"] or "all", _caps(row["caps"]),
            _share(row["predicted_ratio"]), _share(row["measured_ratio"]),
            None if row["error_points"] is None else f"{row['error_points']:+.1f}", round(row["samples"]), row["state"],
        )
        for row in rows
    ]  # fmt: skip
    show_table(f"What was predicted for {engine}, and what came of it", columns, shown)


def _caps(caps: dict[str, Any]) -> str:
    shown = {key: value if "prefixes" in key else as_bytes(value) for key, value in caps.items() if value is not None}
    return ", ".join(f"{key.removeprefix('cap_')} {value}" for key, value in shown.items()) or "none"


def _share(ratio: float | None) -> str | None:
    return None if ratio is None else f"{ratio:.1%}"


def _number(value: int | None) -> str | None:
    return None if value is None else f"{value:,}"
