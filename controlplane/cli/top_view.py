"""What `kvdeck top` shows: one look at the deck as a frozen value, and that value as a screen of any width."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from controlplane.api.client import ControlPlaneClient
from controlplane.cli.context import as_bytes, as_time

WINDOW_MINUTES = 5
SHOWN_NAMESPACES = 12
SHOWN_ALERTS = 5
SHOWN_RUNS = 4
SORTS = ("engine", "requests", "usable", "queue")
_BAR = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLine:
    """One engine now. Rates are between its last two heartbeats; until there were two, of the last minutes. Ratios
    are of prompt tokens, None without any; `tiers` is name -> live and total bytes."""

    id: str
    health: str
    mode: str
    requests_per_s: float | None
    prompt_tokens_per_s: float | None
    usable_ratio: float | None
    lcp_ratio: float | None
    prefixes: int
    leases: int
    queue_depth: int
    recoveries_ok: int
    recoveries_failed: int
    tiers: dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look at the deck. `said` is empty, or why what is shown is not of now."""

    at: str
    engines: tuple[EngineLine, ...] = ()
    namespaces: tuple[dict[str, Any], ...] = ()
    alerts: tuple[dict[str, Any], ...] = ()
    runs: tuple[dict[str, Any], ...] = ()

    @property
    def document(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


class _Heard(NamedTuple):
    """One heartbeat."""

    at: dt.datetime
    stats: dict[str, Any]


@dataclass(slots=True)
class Looker:
    """Looks at a deck again and again, and tells rates from what changed between two heartbeats."""

    client: ControlPlaneClient
    engine: str | None = None
    _heard: dict[str, _Heard] = field(default_factory=dict)
    _rates: dict[str, dict[str, float]] = field(default_factory=dict)

    def look(self) -> Look:
        """Raises ControlPlaneErrors, as the client does."""
        engines = [row for row in self.client.engines() if self.engine in (None, row["id"])]
        asked = self.client.namespaces(minutes=WINDOW_MINUTES, engine=self.engine)
        return Look(
            at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            engines=tuple(self._line(row, asked) for row in engines),
            namespaces=tuple(_namespace(row) for row in asked),
            alerts=tuple(self.client.alerts(state=["firing", "pending"], engine=self.engine, limit=50)),
            runs=tuple(self.client.policy_runs(acted=True, engine=self.engine, limit=SHOWN_RUNS)),
        )

    def _line(self, row: dict[str, Any], asked: Sequence[dict[str, Any]]) -> EngineLine:
        stats, own = row["stats"], [each for each in asked if each["engine_id"] == row["id"]]
        rates = self._moved(row["id"], _Heard(dt.datetime.fromisoformat(row["last_seen_at"]), stats))
        if rates is None:
            names = ("requests", "prompt_tokens", "lcp_tokens", "usable_tokens")
            rates = {name: sum(each[name] for each in own) / (WINDOW_MINUTES * 60) for name in names}
        prompt = rates["prompt_tokens"]
        recoveries = stats.get("recoveries", {})
        return EngineLine(
            id=row["id"],
            health=row["health"],
            mode=row["observed"].get("mode", "-"),
            requests_per_s=round(rates["requests"], 2),
            prompt_tokens_per_s=round(prompt, 1),
            usable_ratio=_ratio(rates["usable_tokens"], prompt),
            lcp_ratio=_ratio(rates["lcp_tokens"], prompt),
            prefixes=sum(stats.get("prefixes", {}).values()),
            leases=stats.get("leases", 0),
            queue_depth=sum(queue["depth"] for queue in stats.get("queues", {}).values()),
            recoveries_ok=recoveries.get("ok", 0),
            recoveries_failed=recoveries.get("failed", 0) + recoveries.get("late", 0),
            tiers={
                tier: (figures.get("live_bytes", 0), figures.get("total_bytes", 0))
                for tier, figures in stats.get("tiers", {}).items()
            },
        )

    def _moved(self, engine: str, heard: _Heard) -> dict[str, float] | None:
        """Counters a second between the last two heartbeats; None before there were two of one start."""
        before = self._heard.get(engine)
        if before is not None and heard.at > before.at:
            seconds = (heard.at - before.at).total_seconds()
            names = ("requests", "prompt_tokens", "lcp_tokens", "usable_tokens")
            moved = {name: heard.stats.get(name, 0) - before.stats.get(name, 0) for name in names}
            if min(moved.values()) >= 0:
                self._rates[engine] = {name: n / seconds for name, n in moved.items()}
            else:  # it was started again
                self._rates.pop(engine, None)
        self._heard[engine] = heard
        return self._rates.get(engine)


def _namespace(row: dict[str, Any]) -> dict[str, Any]:
    prompt = row["prompt_tokens"]
    return {
        "engine_id": row["engine_id"],
        "namespace": row["namespace"],
        "requests_per_s": round(row["requests"] / (WINDOW_MINUTES * 60), 3),
        "prompt_tokens_per_s": round(prompt / (WINDOW_MINUTES * 60), 1),
        "usable_ratio": _ratio(row["usable_tokens"], prompt),
        "lcp_ratio": _ratio(row["lcp_tokens"], prompt),
    }


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole > 0 else None


# -- the screen --------------------------------------------------------------------------------------------------------


class _Column(NamedTuple):
    """`keep`: the narrowest screen that still shows it."""

    title: str
    keep: int
    left: bool = False


_ENGINE_COLUMNS = (
    _Column("engine", 0, left=True), _Column("health", 60), _Column("mode", 70), _Column("req/s", 0),
    _Column("tok/s", 50), _Column("usable", 0), _Column("lcp", 60), _Column("prefixes", 100), _Column("leases", 90),
    _Column("queue", 80), _Column("restores", 110), _Column("gpu", 40), _Column("host", 120), _Column("disk", 130),
)  # fmt: skip
_NAMESPACE_COLUMNS = (
    _Column("namespace", 0, left=True), _Column("engine", 90), _Column("req/s", 0), _Column("tok/s", 50),
    _Column("usable", 0), _Column("lcp", 60),
)  # fmt: skip


def screen(look: Look, width: int, *, sort: str = SORTS[0], note: str = "", paused: bool = False) -> RenderableType:
    """Everything for a screen of `width` columns. `note` says why what is shown is old."""
    parts: list[RenderableType] = [_head(look, width, sort, note, paused)]
    parts.append(_table(_ENGINE_COLUMNS, [_engine_row(line) for line in _sorted(look.engines, sort)], width))
    if look.namespaces:
        rows = [_namespace_row(row) for row in look.namespaces[:SHOWN_NAMESPACES]]
        parts.append(_table(_NAMESPACE_COLUMNS, rows, width))
    parts.append(_alerts(look.alerts, width))
    if look.runs:
        parts.append(_runs(look.runs, width))
    return Group(*parts)


def _head(look: Look, width: int, sort: str, note: str, paused: bool) -> Text:
    head = Text(f"kvdeck top  {look.at[11:19]} UTC", style="bold", overflow="ellipsis", no_wrap=True)
    if paused:
        head.append("  paused", style="yellow")
    if width >= 60:
        head.append(f"  q quit, p pause, s sort ({sort})", style="dim")
    if note:
        head.append(f"\n{note}", style="bold red")
    return head


def _sorted(lines: Sequence[EngineLine], sort: str) -> list[EngineLine]:
    keys = {
        "engine": lambda line: line.id,
        "requests": lambda line: -(line.requests_per_s or 0),
        "usable": lambda line: 1.0 if line.usable_ratio is None else line.usable_ratio,
        "queue": lambda line: -line.queue_depth,
    }
    return sorted(lines, key=keys[sort])


def _engine_row(line: EngineLine) -> tuple[Text, ...]:
    colour = {"live": "green", "stale": "yellow", "unreachable": "red"}.get(line.health, "dim")
    fills = [_fill(*line.tiers[tier]) if tier in line.tiers else Text("-") for tier in ("gpu", "host", "disk")]
    return (
        Text(line.id),
        Text(line.health, style=colour),
        Text(line.mode, style="" if line.mode == "normal" else "yellow"),
        Text(_number(line.requests_per_s)),
        Text(_number(line.prompt_tokens_per_s)),
        Text(_percent(line.usable_ratio)),
        Text(_percent(line.lcp_ratio)),
        Text(f"{line.prefixes:,}"),
        Text(f"{line.leases:,}"),
        Text(f"{line.queue_depth:,}"),
        Text(f"{line.recoveries_ok:,}/{line.recoveries_failed:,}", style="red" if line.recoveries_failed else ""),
        *fills,
    )


def _namespace_row(row: dict[str, Any]) -> tuple[Text, ...]:
    return (
        Text(row["namespace"]),
        Text(row["engine_id"]),
        Text(_number(row["requests_per_s"])),
        Text(_number(row["prompt_tokens_per_s"])),
        Text(_percent(row["usable_ratio"])),
        Text(_percent(row["lcp_ratio"])),
    )


def _alerts(alerts: Sequence[dict[str, Any]], width: int) -> RenderableType:
    if not alerts:
        return Text("no alert", style="dim")
    lines = Text(overflow="ellipsis", no_wrap=True)
    for alert in alerts[:SHOWN_ALERTS]:
        style = "red" if alert["state"] == "firing" else "yellow"
        said = f"{alert['state']} {alert['rule']} {alert['engine_id']}: {alert['summary']}"
        lines.append(said[: max(10, width - 1)] + "\n", style=style)
    if len(alerts) > SHOWN_ALERTS:
        lines.append(f"and {len(alerts) - SHOWN_ALERTS} alerts more\n", style="dim")
    return lines


def _runs(runs: Sequence[dict[str, Any]], width: int) -> RenderableType:
    lines = Text(overflow="ellipsis", no_wrap=True, style="dim")
    for run in runs:
        said = f"{as_time(run['at'])} policy {run['policy']} on {run['engine_id'] or 'all'}: {run['decision']}"
        lines.append(said[: max(10, width - 1)] + "\n")
    return lines


def _table(columns: Sequence[_Column], rows: Sequence[Sequence[Text]], width: int) -> Table:
    """Columns that a screen this narrow has no room for are left out, the last ones first."""
    shown = [index for index, column in enumerate(columns) if column.keep <= width]
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1))
    for index in shown:
        left = columns[index].left
        table.add_column(columns[index].title, justify="left" if left else "right", no_wrap=True, overflow="ellipsis")
    for row in rows:
        table.add_row(*(row[index] for index in shown))
    return table


def _fill(live: int, total: int) -> Text:
    share = live / total if total else 0.0
    bar = "#" * round(share * _BAR)
    return Text(f"{bar:.<{_BAR}} {as_bytes(live)}", style="red" if share > 0.98 else "")


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.1f}"


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1%}"
