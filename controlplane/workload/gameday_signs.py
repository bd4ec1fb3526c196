"""What can be seen of an incident from outside. A sign is data; `look` says when it was seen and by what, or nothing.

Pure: a scene is what the API answered before, at the end of, and after the incident.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What the API answered at one moment. `engine` None: nobody answered, and all else is empty."""

    at: dt.datetime
    engine: Row | None = None
    alerts: Sequence[Row] = ()
    runs: Sequence[Row] = ()
    commands: Sequence[Row] = ()
    told_requests: int = 0  # requests in the history since a moment before the game day
    torn: Sequence[str] = ()  # prefixes whose versions in the history are not each there once

    @property
    def boot(self) -> str:
        """The engine's boot; empty when nobody answered."""
        return "" if self.engine is None else str(self.engine["boot_id"])

    def figure(self, path: Sequence[str]) -> float:
        """A number out of the engine's stats; 0 where there is none."""
        found: Any = {} if self.engine is None else self.engine["stats"]
        for name in path:
            found = found.get(name, {}) if isinstance(found, Mapping) else {}
        return float(found) if isinstance(found, int | float) else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One look at an incident. `start` is the last reading before it; `base` is what growth is counted from: that one,
    or the first after the incident's end."""

    began_at: dt.datetime
    start: Reading
    base: Reading
    now: Reading
    hit_before: float | None = None
    hit_now: float | None = None
    requests_a_second: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """When a sign showed, and what it was, in words."""

    at: dt.datetime
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertFires:
    """One of these alert rules has begun to fire on the engine; or one that fired already, left so by an incident of a
    minute ago, has risen by `rise`."""

    rules: tuple[str, ...]
    rise: float = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDecided:
    """A policy has made one of these decisions."""

    policy: str
    decisions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandEnded:
    """A command that a policy issued has succeeded since, and its outcome counts at least one of `counts`."""

    kind: str
    counts: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeIs:
    """The engine runs in this mode."""

    mode: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Grew:
    """A figure of the engine's stats has grown by so much; `same_boot`: without a restart in between."""

    path: tuple[str, ...]
    least: int
    unit: str
    same_boot: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HitRateBack:
    """The hit rate is at least this share of what it was before."""

    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AnotherBoot:
    """The engine has started again and speaks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoAnswer:
    """The control plane does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The control plane answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryWhole:
    """The history has no open gap, each looked-at prefix has each version once, and as many requests were told as ran:
    within `slack_seconds` of traffic, for what is under way."""

    slack_seconds: float


Sign = (
    AlertFires
    | PolicyDecided
    | CommandEnded
    | ModeIs
    | Grew
    | HitRateBack
    | AnotherBoot
    | NoAnswer
    | Answers
    | HistoryWhole
)


def look(sign: Sign, scene: Scene) -> Seen | None:
    """When the sign showed, and as what; None while it does not."""
    now = scene.now
    if isinstance(sign, NoAnswer):
        return Seen(at=now.at, text="the API does not answer") if now.engine is None else None
    if now.engine is None:
        return None
    match sign:
        case AlertFires():
            return _first(_fired(sign, scene))
        case PolicyDecided():
            return _first(_decided(sign, scene))
        case CommandEnded():
            return _first(_ended(sign, scene))
        case ModeIs():
            mode = now.engine["observed"].get("mode")
            return Seen(at=now.at, text=f"mode {mode}") if mode == sign.mode else None
        case Grew():
            return _grew(sign, scene)
        case HitRateBack():
            return _hit_rate_back(sign, scene)
        case AnotherBoot():
            came = now.boot != scene.start.boot and now.engine["health"] == "live"
            text = "it has registered with a new boot"
            return Seen(at=_time(now.engine["registered_at"]), text=text) if came else None
        case Answers():
            return Seen(at=now.at, text="the API answers")
        case HistoryWhole():
            return _history_whole(sign, scene)


def instead(sign: Sign, now: Reading) -> str:
    """Why a sign may not have shown, in words, as far as the last reading tells; empty if it tells nothing."""
    if now.engine is None:
        return "the API does not answer"
    match sign:
        case PolicyDecided():
            run = next((run for run in now.runs if run["policy"] == sign.policy), None)
            said = (
                f"{sign.policy} decided {run['decision']} at {run['at']}" if run else f"{sign.policy} decided nothing"
            )
            why = run["error"] or run["inputs"].get("why") if run else ""
            waits = "; its snapshot has not come" if now.engine["snapshot_wanted"] else ""
            return f"{said}{f': {why}' if why else ''}{waits}"
        case CommandEnded():
            command = next((command for command in now.commands if command["kind"] == sign.kind), None)
            return (
                f"the last {sign.kind} is {command['status']}: {command['outcome']}" if command else f"no {sign.kind}"
            )
        case ModeIs():
            return f"mode {now.engine['observed'].get('mode')}"
        case HistoryWhole():
            return f"{now.engine['open_gaps']} gaps are open, {len(now.torn)} prefixes torn"
        case AlertFires() | Grew() | HitRateBack() | AnotherBoot() | NoAnswer() | Answers():
            return ""


def grown(path: Sequence[str], base: Reading, now: Reading) -> float:
    """How much a counter grew; an engine that has started again counts from 0."""
    before = base.figure(path) if base.boot == now.boot else 0.0
    return now.figure(path) - before


def _first(seen: Iterator[Seen]) -> Seen | None:
    return min(seen, key=lambda one: one.at, default=None)


def _time(text: Any) -> dt.datetime:
    return dt.datetime.fromisoformat(str(text))


def _of(scene: Scene) -> Any:
    return scene.now.engine["id"] if scene.now.engine else None


def _fired(sign: AlertFires, scene: Scene) -> Iterator[Seen]:
    before = {alert["id"]: float(alert["value"]) for alert in scene.start.alerts}
    for alert in scene.now.alerts:
        if alert["rule"] not in sign.rules or alert["engine_id"] != _of(scene) or not alert["fired_at"]:
            continue
        at = _time(alert["fired_at"])
        if at >= scene.began_at:
            yield Seen(at=at, text=f"{alert['rule']} fires: {alert['summary']}")
        elif alert["state"] == "firing" and alert["value"] >= before.get(alert["id"], float("inf")) + sign.rise:
            yield Seen(at=scene.now.at, text=f"{alert['rule']}, which fired already, rises: {alert['summary']}")


def _decided(sign: PolicyDecided, scene: Scene) -> Iterator[Seen]:
    for run in scene.now.runs:
        if run["policy"] == sign.policy and run["decision"] in sign.decisions and run["engine_id"] == _of(scene):
            at = _time(run["at"])
            if at >= scene.began_at and not run["dry_run"]:
                why = run["inputs"].get("why") or run["decision"]
                yield Seen(at=at, text=f"{run['decision']}: {why}")


def _ended(sign: CommandEnded, scene: Scene) -> Iterator[Seen]:
    for command in scene.now.commands:
        if command["kind"] != sign.kind or command["status"] != "succeeded" or command["engine_id"] != _of(scene):
            continue
        by_policy = str(command["actor"]).startswith("policy:")
        done = int(command["outcome"].get(sign.counts) or 0)
        # Also one that the boot before left under way: the engine has run it to its end since.
        if by_policy and done and _time(command["finished_at"]) >= scene.began_at:
            moved = int(command["outcome"].get("bytes") or 0)
            text = f"{done} prefixes {sign.counts}, {moved / (1 << 20):.1f} MiB moved"
            yield Seen(at=_time(command["finished_at"]), text=text)


def _grew(sign: Grew, scene: Scene) -> Seen | None:
    if sign.same_boot and scene.now.boot != scene.base.boot:
        return None
    by = grown(sign.path, scene.base, scene.now)
    return Seen(at=scene.now.at, text=f"{by:.0f} {sign.unit}") if by >= sign.least else None


def _hit_rate_back(sign: HitRateBack, scene: Scene) -> Seen | None:
    if scene.hit_before is None or scene.hit_now is None or scene.hit_now < sign.share * scene.hit_before - ROUNDING:
        return None
    return Seen(at=scene.now.at, text=f"{scene.hit_now:.1%} of the tokens, {scene.hit_before:.1%} before")


def _history_whole(sign: HistoryWhole, scene: Scene) -> Seen | None:
    start, now = scene.start, scene.now
    assert now.engine is not None
    if now.torn or now.engine["open_gaps"] or now.engine["snapshot_wanted"] or start.boot != now.boot:
        return None
    ran = grown(("requests",), start, now)
    told = now.told_requests - start.told_requests
    if abs(ran - told) > max(10.0, sign.slack_seconds * scene.requests_a_second):
        return None
    return Seen(at=now.at, text=f"no gap, no version twice; {ran:.0f} requests ran, {told} are in the history")
