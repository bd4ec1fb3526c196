"""What an alert rule may look at: kinds of expressions, each with typed parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controlplane.steering.parameters import KNOB, Choice, Filters, Text, Whole, knob

Where = Mapping[str, str | Sequence[str]]
METRIC = r"kvcache\.[a-z_.]{1,56}"
DAY_SECONDS = 86_400

# What is counted from the store's tables, not from a metric. True: of each engine; False: of the control plane.
FACTS: Mapping[str, tuple[bool, str]] = {
    "open_gaps": (True, "versions of prefixes that no span told of and no snapshot has closed"),
    "failed_commands": (True, "commands that failed or expired in the window"),
    "failing_policies": (True, "policies whose newest run on the engine failed"),
    "telemetry_lag_seconds": (True, "age of the newest metric of an engine that still speaks"),
    "broken_policies": (False, "policies that cannot run at all"),
    "database_seconds": (False, "longest time one pass of the scheduler over the database took in the window"),
    "database_failures": (False, "passes of the scheduler that the database refused in the window"),
    "undelivered_seconds": (False, "age of the oldest notification that waits for its receiver"),
}


def _metric(meaning: str) -> Any:
    form = "the name of a metric, as kvcache.commits"
    return knob("kvcache.recoveries", Text(pattern=METRIC, form=form, meaning=meaning))


FILTERS = {KNOB: Filters(meaning="Only series with these attributes; nothing: all of them.")}


def _window(default: int, most: int = DAY_SECONDS) -> Any:
    meaning = "How far back; whole minutes are looked at, the current one among them."
    return knob(default, Whole(least=60, most=most, unit="seconds", meaning=meaning))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """The growth of one counter over the growth of another, in a window. 0 when the whole did not grow."""

    part: str = _metric("The counter above the line.")
    part_where: Where = field(default_factory=dict, metadata=FILTERS)
    whole: str = _metric("The counter below the line.")
    whole_where: Where = field(default_factory=dict, metadata=FILTERS)
    window_seconds: int = _window(120)
    minimum: int = knob(
        5, Whole(least=1, most=1_000_000_000, unit="counts", meaning="A whole that grew by less says nothing.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How much a counter grew in a window; restarts are handled."""

    metric: str = _metric("The counter.")
    where: Where = field(default_factory=dict, metadata=FILTERS)
    window_seconds: int = _window(300)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """A gauge as it is now. One not heard of for a minute says nothing."""

    metric: str = _metric("The gauge.")
    where: Where = field(default_factory=dict, metadata=FILTERS)
    over: str = knob("max", Choice(of=("max", "sum"), meaning="How series that match become one value."))


@dataclass(frozen=True, slots=True, kw_only=True)
class GaugeGrowth:
    """How much more a gauge shows now than at the start of a window; a series that was not there then was 0."""

    metric: str = _metric("The gauge.")
    where: Where = field(default_factory=dict, metadata=FILTERS)
    window_seconds: int = _window(900)


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """Seconds since a metric was heard of last. Of an engine that never sent it, nothing is said."""

    metric: str = _metric("The metric.")
    where: Where = field(default_factory=dict, metadata=FILTERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Seconds since an engine's last word. An engine that said goodbye is not silent, it has left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HitRateDrop:
    """How far the hit rate by tokens lies below its own past, as a share of 1. A namespace in the scope narrows it."""

    window_minutes: int = knob(10, Whole(least=1, most=1440, unit="minutes", meaning="What counts as now."))
    past_minutes: int = knob(
        60, Whole(least=1, most=10_080, unit="minutes", meaning="What counts as the past, before.")
    )
    minimum_requests: int = knob(
        100, Whole(least=1, most=1_000_000_000, unit="requests", meaning="Fewer, now or in the past, say nothing.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A number the control plane counts itself."""

    fact: str = knob("open_gaps", Choice(of=tuple(FACTS), meaning="Which one."))
    window_seconds: int = _window(900)

    @property
    def of_engines(self) -> bool:
        """Whether each engine has its own."""
        return FACTS[self.fact][0]


Expression = Ratio | Growth | Gauge | GaugeGrowth | Absence | Silence | HitRateDrop | Fact
KINDS: Mapping[str, type[Expression]] = {
    "ratio": Ratio,
    "growth": Growth,
    "gauge": Gauge,
    "gauge_growth": GaugeGrowth,
    "absence": Absence,
    "silence": Silence,
    "hit_rate_drop": HitRateDrop,
    "fact": Fact,
}
HAVE_NAMESPACES = frozenset({"hit_rate_drop"})
