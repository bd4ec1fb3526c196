"""What needs a person first: pure rules from what is known to a short list with what, since when and what to do."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.store.queries import AlertView, CommandView, DamagedView
from dashboard.data import ControlPlaneHealth, EngineNow
from dashboard.wording import bytes_text, plural, short_id

RECENT = dt.timedelta(hours=1)
BEHIND_GRACE = dt.timedelta(seconds=20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One thing to look after. `rank` 0 is worst; `page` is where to act."""

    rank: int
    what: str
    since: dt.datetime | None
    action: str
    page: str


def needs_attention(
    *,
    health: ControlPlaneHealth,
    engines: Sequence[EngineNow],
    alerts: Sequence[AlertView],
    damaged: Sequence[DamagedView],
    commands: Sequence[CommandView],
    revised_at: dt.datetime | None,
    now: dt.datetime,
) -> list[Item]:
    """Worst first; inside one rank what began last comes first."""
    found = [*_control_plane(health), *_damaged(damaged), *_alerts(alerts), *_commands(commands, now)]
    for engine in engines:
        found += [*_speech(engine), *_sync(engine, revised_at, now), *_facts(engine)]
    return sorted(found, key=lambda item: (item.rank, -(item.since or now).timestamp()))


def _control_plane(health: ControlPlaneHealth) -> list[Item]:
    if health.state == "up":
        return []
    what = f"The control plane is {health.state}" if health.state == "unreachable" else "Its database is unreadable"
    action = "Start it (`kvdeck serve`) or look at its log" if health.state == "unreachable" else "Check the database"
    return [Item(rank=0, what=what, since=None, action=action, page="overview")]


def _speech(engine: EngineNow) -> list[Item]:
    seen, name = engine.view.last_seen_at, engine.view.id
    if engine.health == "unreachable":
        action = "Check the process and its network; commands to it will expire"
        return [Item(rank=1, what=f"Engine {name} is unreachable", since=seen, action=action, page="overview")]
    if engine.health == "stale":
        action = "Wait a moment, then check the process: its numbers are old"
        return [Item(rank=2, what=f"Engine {name} is stale", since=seen, action=action, page="overview")]
    return []


def _sync(engine: EngineNow, revised_at: dt.datetime | None, now: dt.datetime) -> list[Item]:
    view = engine.view
    error = view.observed.get("error")
    if error:
        what = f"Engine {view.id} refuses part of revision {view.observed_revision}: {error}"
        return [Item(rank=1, what=what, since=revised_at, action="Change the value or roll back", page="caps")]
    behind = view.sync == "behind" and (revised_at is None or now - revised_at > BEHIND_GRACE)
    if behind and view.health == "live":
        what = f"Engine {view.id} runs revision {view.observed_revision}, {view.desired_revision} is desired"
        return [Item(rank=2, what=what, since=revised_at, action="Wait, then look at the engine's log", page="caps")]
    return []


def _facts(engine: EngineNow) -> list[Item]:
    view, found = engine.view, []
    wrong = int(view.stats.get("wrong_bytes") or 0)
    if wrong:
        what = f"Engine {view.id} served {bytes_text(wrong)} of wrong bytes"
        action = "Set mode bypass now, then report it: this must never happen"
        found.append(Item(rank=0, what=what, since=view.last_seen_at, action=action, page="caps"))
    mode = str(view.observed.get("mode") or "normal")
    if mode != "normal":
        action = "See why on Policies; step back on Caps and mode when recoveries work"
        found.append(Item(rank=2, what=f"Engine {view.id} runs in mode {mode}", since=None, action=action, page="caps"))
    if view.open_gaps:
        what = f"The history of {view.id} has {plural(view.open_gaps, 'gap')}"
        action = "A snapshot closes it by itself; if it stays, look for dropped telemetry"
        found.append(Item(rank=3, what=what, since=None, action=action, page="prefixes"))
    return found


def _damaged(damaged: Sequence[DamagedView]) -> list[Item]:
    if not damaged:
        return []
    reasons = ", ".join(sorted({row.reason.replace("_", " ") for row in damaged}))
    what = f"{plural(len(damaged), 'damaged prefix', 'damaged prefixes')} in quarantine ({reasons})"
    action = "Evict to have them rebuilt, scrub the disk to find more"
    return [Item(rank=1, what=what, since=max(row.at for row in damaged), action=action, page="validations")]


def _alerts(alerts: Sequence[AlertView]) -> list[Item]:
    found = []
    for alert in alerts:
        if alert.state != "firing":
            continue
        taken = f" (acknowledged by {alert.acknowledged_by})" if alert.acknowledged_by else ""
        what = f"Alert {alert.rule.replace('_', ' ')}: {alert.summary}{taken}"
        action = "Follow it" if alert.acknowledged_by else "Acknowledge it, then see Alerts"
        found.append(
            Item(rank=3 if alert.acknowledged_by else 1, what=what, since=alert.since, action=action, page="alerts")
        )
    return found


def _commands(commands: Sequence[CommandView], now: dt.datetime) -> list[Item]:
    found = []
    for command in commands:
        ended = command.finished_at
        # A refusal was told to whoever sent it; what failed or ran out of time may have been seen by nobody.
        if command.status not in ("failed", "expired") or ended is None or now - ended > RECENT:
            continue
        why = str(command.outcome.get("reason") or command.outcome.get("error") or "see its outcome")
        what = f"Command {command.kind} {short_id(command.id, 8)} on {command.engine_id} {command.status}: {why}"
        found.append(Item(rank=2, what=what, since=ended, action="Look at its outcome, send it again", page="audit"))
    return found
