"""Verbs that look: status, prefixes."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from controlplane.api.client import ControlPlaneClient
from controlplane.cli.context import (
    DEFAULT_DATA_DIR,
    DEFAULT_URL,
    SHORT_ID,
    AsJson,
    DataDir,
    EngineOption,
    TokenOption,
    Url,
    as_bytes,
    connect,
    show_json,
    show_table,
)
from controlplane.cli.exits import OUT, CliError, Exit
from controlplane.store.queries_prefixes import ORDERS

FULL_ID = 32
SKEW_SHOWN_SECONDS = 1.0


def register(app: typer.Typer) -> None:
    """Adds the verbs."""
    app.command()(status)
    app.command()(prefixes)


def status(
    url: Url = DEFAULT_URL, token: TokenOption = "", data_dir: DataDir = DEFAULT_DATA_DIR, as_json: AsJson = False
) -> None:
    """Engines, what they run, and what needs attention."""
    with connect(url, token, data_dir) as client:
        engines, overview, alerts = client.engines(), client.overview(), client.alerts(state=["firing"])
    if as_json:
        show_json({"engines": engines, "overview": overview, "firing": alerts})
        return
    columns = ("engine", "group", "health", "sync", "desired", "observed", "mode", "prefixes", "gpu live", "usable")
    show_table("Engines", (*columns, "last seen", "labels", "model"), (_engine_row(engine) for engine in engines))
    if shares := [row for engine in engines for row in _namespace_rows(engine)]:
        named = ("engine", "namespace", "gpu live", "guaranteed", "max", "prefixes", "max prefixes")
        show_table("Capped namespaces", named, shares)
    OUT.print(_last_hour(overview), markup=False)
    show_table("Firing alerts", ("id", "rule", "engine", "summary", "acknowledged"), (_alert_row(a) for a in alerts))
    for engine in engines:
        if engine["observed"].get("error"):
            OUT.print(f"{engine['id']} refused: {engine['observed']['error']}", markup=False)
        if abs(ahead := engine.get("clock_ahead_seconds") or 0.0) >= SKEW_SHOWN_SECONDS:
            word = "ahead of" if ahead > 0 else "behind"
            OUT.print(f"{engine['id']}: its clock is {abs(ahead):,.1f} s {word} ours", markup=False)


def _last_hour(overview: dict[str, Any]) -> str:
    if not overview["requests"]:
        return "Last hour: no requests"
    shares = ", ".join(f"{name} {_share(overview[name])}" for name in ("lcp", "usable"))
    failures = f"recoveries failed {_share(overview['recovery_failures'])}"
    count = f"{overview['requests']:,} request{'s' if overview['requests'] > 1 else ''}"
    return f"Last hour: {count}, of the tokens {shares}; {failures}"


def _share(rate: dict[str, Any]) -> str:
    return "-" if rate["ratio"] is None else f"{rate['ratio']:.1%}"


def _engine_row(engine: dict[str, Any]) -> tuple[Any, ...]:
    stats = engine["stats"]
    prompt, usable = stats.get("prompt_tokens", 0), stats.get("usable_tokens", 0)
    return (
        engine["id"],
        engine["group"] or "-",
        engine["health"],
        engine["sync"],
        engine["desired_revision"],
        engine["observed_revision"],
        engine["observed"].get("mode"),
        sum(stats.get("prefixes", {}).values()),
        as_bytes(stats.get("tiers", {}).get("gpu", {}).get("live_bytes")),
        f"{usable / prompt:.1%}" if prompt else "-",
        f"{engine['last_seen_seconds']:.0f} s ago",
        labels_text(engine["labels"]),
        engine["model"],
    )


def labels_text(labels: dict[str, Any]) -> str:
    """Labels as people read and type them."""
    return " ".join(f"{name}={value}" for name, value in sorted(labels.items())) or "-"


def _namespace_rows(engine: dict[str, Any]) -> list[tuple[Any, ...]]:
    held = engine["stats"].get("namespaces", {})
    return [
        (
            engine["id"],
            name,
            as_bytes(held.get(name, {}).get("gpu_bytes", 0)),
            as_bytes(cap.get("guaranteed_bytes")),
            as_bytes(cap.get("max_bytes")),
            held.get(name, {}).get("prefixes", 0),
            cap.get("max_prefixes"),
        )
        for name, cap in (engine["observed"].get("namespace_caps") or {}).items()
    ]


def _alert_row(alert: dict[str, Any]) -> tuple[Any, ...]:
    return alert["id"], alert["rule"], alert["engine_id"], alert["summary"], alert["acknowledged_by"]


def prefixes(
    engine: EngineOption = "",
    state: Annotated[str, typer.Option(help="FULL, PARTIAL_OFFLOAD, APPROXIMATE, QUARANTINED...")] = "",
    namespace: Annotated[str, typer.Option(help="Only this namespace.")] = "",
    label: Annotated[str, typer.Option("--label", "-l", help="With this label: NAME or NAME=VALUE.")] = "",
    search: Annotated[str, typer.Option(help="The beginning of an id.")] = "",
    order: Annotated[str, typer.Option(help=f"{', '.join(ORDERS)}.")] = "served",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most this many.")] = 20,
    offset: Annotated[int, typer.Option(min=0, help="Leave out so many first: the next page.")] = 0,
    url: Url = DEFAULT_URL,
    token: TokenOption = "",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    as_json: AsJson = False,
) -> None:
    """Prefixes, those that served most first."""
    with connect(url, token, data_dir) as client:
        page = client.prefixes(
            engine=engine or None,
            state=state or None,
            namespace=namespace or None,
            label=label or None,
            search=search or None,
            order=order,
            limit=limit,
            offset=offset,
        )
    if as_json:
        show_json(page)
        return
    columns = ("prefix", "engine", "state", "tokens", "gpu", "host", "disk", "served tokens", "pinned", "namespace")
    rows = [_prefix_row(prefix) for prefix in page["rows"]]
    shown = f"{offset + 1:,}-{offset + len(rows):,}" if offset and rows else f"{len(rows):,}"
    show_table(f"Prefixes ({shown} of {page['total']:,})", (*columns, "labels"), rows)


def _prefix_row(prefix: dict[str, Any]) -> tuple[Any, ...]:
    held = (as_bytes(prefix["gpu_bytes"]), as_bytes(prefix["host_bytes"]), as_bytes(prefix["disk_bytes"]))
    names = (prefix["prefix_id"][:SHORT_ID], prefix["engine_id"], prefix["state"], prefix["tokens"])
    use = (prefix["tokens_served"], prefix["pinned"], prefix["namespace"])
    return (*names, *held, *use, labels_text(prefix["labels"]))


def full_id(client: ControlPlaneClient, engine: str, start: str) -> str:
    """The whole id of the one prefix that begins so. Raises CliError when there is none, or more than one."""
    if len(start) == FULL_ID:
        return start
    if not start:
        raise CliError("An empty text is no prefix id.", "`kvdeck prefixes` lists them.", Exit.USAGE)
    page = client.prefixes(engine=engine, id_start=start, limit=5)
    found = sorted(row["prefix_id"] for row in page["rows"])
    if page["total"] == 1:
        return str(found[0])
    if not found:
        raise CliError(f"No prefix on {engine} begins with {start!r}.", "`kvdeck prefixes` lists them.", Exit.NOT_FOUND)
    some = ", ".join(prefix_id[:SHORT_ID] for prefix_id in found)
    raise CliError(f"{page['total']:,} prefixes begin with {start!r}.", f"Give more of it, as in {some}.", Exit.USAGE)
