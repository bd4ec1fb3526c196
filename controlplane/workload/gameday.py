"""Game days as data: what is prepared, what goes wrong for how long, and what must then be seen within which time.

Nothing here runs anything: gameday_run.py does, over the API. What a sign means is in gameday_signs.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from controlplane.workload.gameday_signs import (
    AlertFires,
    AnotherBoot,
    Answers,
    CommandEnded,
    Grew,
    HistoryWhole,
    HitRateBack,
    ModeIs,
    NoAnswer,
    PolicyDecided,
    Sign,
)


class Phase(StrEnum):
    """The parts of a timeline."""

    READY = "ready"
    INJECTED = "injected"
    DETECTED = "detected"
    ACTED = "acted"
    OVER = "over"
    RECOVERED = "recovered"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultLine:
    """One line of a plan, in the words of engine/memory/faults.py; it strikes until the incident is over."""

    what: str
    at: str
    chance: float = 0.0
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """As the command `fault` takes it."""
        return {"what": self.what, "at": self.at, "chance": self.chance, "seconds": self.seconds, "times": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultIncident:
    """Faults below the engine's tiers. They last until all that detects and acts was seen, but `lasts_seconds` at least
    and `longest_seconds` at most: a deck with little traffic meets them later."""

    plan: tuple[FaultLine, ...]
    lasts_seconds: int
    longest_seconds: int = 60

    @property
    def words(self) -> str:
        """What goes wrong."""
        lines = ", ".join(f"{line.what}@{line.at}" for line in self.plan)
        return f"{lines}, for {self.lasts_seconds} to {self.longest_seconds} s"

    def lasting(self, patience: int) -> FaultIncident:
        """The same, waiting so many times as long to be seen."""
        return replace(self, longest_seconds=self.longest_seconds * patience)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageIncident:
    """A part of `kvdeck up` is killed, and started again after a while."""

    part: str
    lasts_seconds: int

    @property
    def words(self) -> str:
        """What goes wrong."""
        return f"the {self.part} is killed and stays away for {self.lasts_seconds} s"

    @property
    def longest_seconds(self) -> int:
        """It ends by itself, when it was said to."""
        return self.lasts_seconds

    def lasting(self, patience: int) -> OutageIncident:
        """The same: who waits for it does not make it longer."""
        return self


Incident = FaultIncident | OutageIncident


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What is other for the time of a game day, and put back afterwards. `of`: policy, rule or new rule."""

    of: str
    name: str
    changes: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Something that must be seen, within so many seconds of the incident's begin or (`after_end`) of its end.

    What is recovered is looked at when all that detects and acts was seen: before that it may be well and fall ill yet.
    """

    phase: Phase
    what: str
    sign: Sign
    within_seconds: int
    after_end: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GameDay:
    """One incident from before it to after it. `gpu_share`: the GPU cap while it runs, with the host tier off, so that
    the workload lives from the disk; None leaves the caps alone."""

    name: str
    title: str
    shows: str
    incident: Incident
    steps: tuple[Step, ...]
    ready: tuple[Step, ...] = ()
    gpu_share: float | None = None
    tunings: tuple[Tuning, ...] = field(default=())


DEGRADE = Tuning(
    of="policy",
    name="degrade",
    changes={
        "every_seconds": 2,
        "parameters": {
            "window_seconds": 10,
            "minimum_samples": 3,
            "down_evaluations": 1,
            "up_evaluations": 2,
            "cool_down_seconds": 4,
            "quiet_hold_seconds": 6,
            "trial_seconds": 5,
        },
    },
)
# The shipped rules judge shares of whole minutes, in which twenty bad seconds are few: these count.
RECOVERIES_FAIL = Tuning(
    of="new rule",
    name="gameday_recoveries_fail",
    changes={
        "kind": "growth",
        "title": "Recoveries fail (game day)",
        "parameters": {
            "metric": "kvcache.recoveries",
            "where": {"outcome": ["failed", "late"]},
            "window_seconds": 60,
            "unit": "recoveries failed or were late",
        },
        "above": 3.0,
        "resolve_at": 0.0,
        "for_seconds": 0,
        "severity": "warning",
    },
)
COMMITS_REFUSED = Tuning(
    of="new rule",
    name="gameday_commits_refused",
    changes={
        "kind": "growth",
        "title": "Memory refuses commits (game day)",
        "parameters": {
            "metric": "kvcache.commits",
            "where": {"outcome": "refused", "reason": "out_of_memory"},
            "window_seconds": 60,
            "unit": "commits refused",
        },
        "above": 3.0,
        "resolve_at": 0.0,
        "for_seconds": 0,
        "severity": "warning",
    },
)
DISK_IS_READ = Step(
    phase=Phase.READY,
    what="the workload restores from the disk",
    sign=Grew(path=("recoveries", "ok"), least=10, unit="restores"),
    within_seconds=240,
)
STEP_DOWN = PolicyDecided(policy="degrade", decisions=("step_down",))
BACK_TO_NORMAL = Step(
    phase=Phase.RECOVERED, what="mode", sign=ModeIs(mode="normal"), within_seconds=120, after_end=True
)
RESTORES_AGAIN = Step(
    phase=Phase.RECOVERED,
    what="restores work",
    sign=Grew(path=("recoveries", "ok"), least=5, unit="restores"),
    within_seconds=120,
    after_end=True,
)
HITS_AGAIN = Step(
    phase=Phase.RECOVERED, what="hit rate", sign=HitRateBack(share=0.9), within_seconds=150, after_end=True
)

CORRUPT_DISK = GameDay(
    name="corrupt-disk",
    title="The disk returns wrong bytes",
    shows="Every read from the disk tier has a flipped bit. Checksums must find each one before it is served, the "
    "files must be set aside, and the deck must stop reading that disk, and dare it again afterwards.",
    gpu_share=0.5,
    tunings=(DEGRADE, RECOVERIES_FAIL, Tuning(of="rule", name="quarantine_growing", changes={"for_seconds": 0})),
    incident=FaultIncident(plan=(FaultLine(what="bit_flip", at="read", chance=1.0),), lasts_seconds=12),
    ready=(DISK_IS_READ,),
    steps=(
        Step(
            phase=Phase.DETECTED,
            what="damage found by checksum",
            sign=Grew(path=("io", "disk", "quarantined_files"), least=1, unit="files set aside"),
            within_seconds=60,
        ),
        Step(
            phase=Phase.DETECTED,
            what="alert",
            sign=AlertFires(rules=("quarantine_growing", "recovery_failure_rate", RECOVERIES_FAIL.name)),
            within_seconds=60,
        ),
        Step(phase=Phase.ACTED, what="degrade", sign=STEP_DOWN, within_seconds=60),
        BACK_TO_NORMAL,
        RESTORES_AGAIN,
        HITS_AGAIN,
    ),
)
SLOW_DISK = GameDay(
    name="slow-disk",
    title="The disk becomes slow",
    shows="Every read from the disk tier takes 0.4 s longer, twice what a request waits. Requests must not wait for "
    "it: restores are given up as late, and the deck must do without the disk until it is well again.",
    gpu_share=0.5,
    tunings=(DEGRADE, RECOVERIES_FAIL),
    incident=FaultIncident(plan=(FaultLine(what="slow", at="read", seconds=0.4),), lasts_seconds=12),
    ready=(DISK_IS_READ,),
    steps=(
        Step(
            phase=Phase.DETECTED,
            what="restores too late",
            sign=Grew(path=("recoveries", "late"), least=1, unit="restores late"),
            within_seconds=60,
        ),
        Step(
            phase=Phase.DETECTED,
            what="alert",
            sign=AlertFires(rules=("recovery_failure_rate", RECOVERIES_FAIL.name)),
            within_seconds=60,
        ),
        Step(phase=Phase.ACTED, what="degrade", sign=STEP_DOWN, within_seconds=60),
        BACK_TO_NORMAL,
        RESTORES_AGAIN,
        HITS_AGAIN,
    ),
)
MEMORY_SQUEEZE = GameDay(
    name="memory-squeeze",
    title="Memory runs short",
    shows="Nine in ten allocations of GPU slots fail. What does not fit must be refused with its reason, nothing may "
    "crash or hang, requests are computed as if there were no cache, and reuse comes back with the memory.",
    gpu_share=0.5,
    tunings=(
        DEGRADE,
        RECOVERIES_FAIL,
        COMMITS_REFUSED,
    ),
    incident=FaultIncident(plan=(FaultLine(what="out_of_memory", at="gpu_take", chance=0.9),), lasts_seconds=12),
    ready=(DISK_IS_READ,),
    steps=(
        Step(
            phase=Phase.DETECTED,
            what="commits refused",
            sign=Grew(path=("commits", "refused", "out_of_memory"), least=3, unit="commits refused"),
            within_seconds=60,
        ),
        Step(
            phase=Phase.DETECTED,
            what="alert",
            sign=AlertFires(rules=("caps_refusing", COMMITS_REFUSED.name)),
            within_seconds=60,
        ),
        Step(phase=Phase.ACTED, what="degrade", sign=STEP_DOWN, within_seconds=60),
        BACK_TO_NORMAL,
        Step(
            phase=Phase.RECOVERED,
            what="commits are admitted",
            sign=Grew(path=("commits", "admitted"), least=10, unit="commits admitted"),
            within_seconds=60,
            after_end=True,
        ),
        HITS_AGAIN,
    ),
)
LOST_PREFIXES = GameDay(
    name="lost-prefixes",
    title="The engine dies, and its hot prefixes with it",
    shows="The engine is killed and starts again with an empty GPU. Somebody must notice; what is on the disk must be "
    "adopted, the hot part of it warmed up by the policy, and the hit rate must come back.",
    gpu_share=0.5,
    tunings=(
        Tuning(of="rule", name="engine_silent", changes={"above": 6.0, "resolve_at": 4.0, "for_seconds": 0}),
        Tuning(of="policy", name="warm-up", changes={"parameters": {"on_engine_start": True}}),
    ),
    incident=OutageIncident(part="engine", lasts_seconds=12),
    ready=(DISK_IS_READ,),
    steps=(
        Step(phase=Phase.DETECTED, what="alert", sign=AlertFires(rules=("engine_silent",)), within_seconds=60),
        Step(phase=Phase.ACTED, what="engine", sign=AnotherBoot(), within_seconds=90, after_end=True),
        Step(
            phase=Phase.ACTED,
            what="warm-up",
            sign=PolicyDecided(policy="warm-up", decisions=("warm", "nothing_to_warm")),
            within_seconds=120,
            after_end=True,
        ),
        Step(
            phase=Phase.ACTED,
            what="warmed",
            sign=CommandEnded(kind="warm", counts="warmed"),
            within_seconds=150,
            after_end=True,
        ),
        HITS_AGAIN,
    ),
)
CONTROL_PLANE_DOWN = GameDay(
    name="control-plane-down",
    title="The control plane goes away",
    shows="The control plane is killed. The engine must serve on with its last settings and keep what it has to tell; "
    "once the control plane is back, all of that must arrive: no gap left in the history, and nothing counted twice.",
    incident=OutageIncident(part="control plane", lasts_seconds=12),
    steps=(
        Step(phase=Phase.DETECTED, what="nobody answers", sign=NoAnswer(), within_seconds=15),
        Step(phase=Phase.ACTED, what="control plane", sign=Answers(), within_seconds=90, after_end=True),
        Step(
            phase=Phase.ACTED,
            what="engine served on",
            sign=Grew(path=("requests",), least=10, unit="requests meanwhile", same_boot=True),
            within_seconds=90,
        ),
        Step(
            phase=Phase.RECOVERED,
            what="history",
            sign=HistoryWhole(slack_seconds=6.0),
            within_seconds=150,
            after_end=True,
        ),
        HITS_AGAIN,
    ),
)
GAME_DAYS: Mapping[str, GameDay] = {
    day.name: day for day in (CORRUPT_DISK, SLOW_DISK, MEMORY_SQUEEZE, LOST_PREFIXES, CONTROL_PLANE_DOWN)
}
