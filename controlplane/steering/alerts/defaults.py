"""The rules every deck starts with, to be tuned, scoped or disabled. docs/howto/runbook.md has a section for each."""

from __future__ import annotations

from controlplane.steering.alerts.expressions import Fact, Gauge, GaugeGrowth, Growth, HitRateDrop, Ratio, Silence
from controlplane.steering.alerts.rule import AlertRule
from controlplane.steering.alerts.state import Limits

CAP_REASONS = (
    "over_namespace_cap",
    "over_prefix_cap",
    "over_gpu_cap",
    "cap_held_by_leases_and_pins",
    "out_of_memory",
)


def _limits(above: float, resolve_at: float, for_seconds: int) -> Limits:
    return Limits(above=above, resolve_at=resolve_at, for_seconds=for_seconds)


DEFAULT_RULES = (
    AlertRule(
        name="recovery_failure_rate",
        title="Recoveries fail",
        unit="of the recoveries failed or were late",
        kind="ratio",
        expression=Ratio(
            part="kvcache.recoveries",
            part_where={"outcome": ("failed", "late")},
            whole="kvcache.recoveries",
            window_seconds=120,
            minimum=5,
        ),
        limits=_limits(0.2, 0.05, 20),
        severity="critical",
    ),
    AlertRule(
        name="engine_silent",
        title="Engine is silent",
        unit="s since its last word",
        kind="silence",
        expression=Silence(),
        limits=_limits(15, 10, 15),  # after a restart of the whole deck, its engines need a moment to speak again
        severity="critical",
    ),
    AlertRule(
        name="history_gaps_open",
        title="History has gaps",
        unit="gaps that no snapshot has closed",
        kind="fact",
        expression=Fact(fact="open_gaps"),
        limits=_limits(0, 0, 30),
        severity="warning",
    ),
    AlertRule(
        name="telemetry_dropped",
        title="Telemetry is dropped",
        unit="records in the window",
        kind="growth",
        expression=Growth(metric="kvcache.telemetry.dropped", window_seconds=300),
        limits=_limits(0, 0, 0),
        severity="warning",
    ),
    AlertRule(
        name="disk_breaker_open",
        title="A tier's circuit breaker is open",
        unit="where 0 is closed, 1 half open and 2 open",
        kind="gauge",
        expression=Gauge(metric="kvcache.tier.breaker"),
        limits=_limits(1, 0, 0),
        severity="critical",
    ),
    AlertRule(
        name="device_calls_stuck",
        title="Device calls are stuck",
        unit="calls that were left and have not come back",
        kind="gauge",
        expression=Gauge(metric="kvcache.tier.stuck", over="sum"),
        limits=_limits(0, 0, 30),
        severity="critical",
    ),
    AlertRule(
        name="quarantine_growing",
        title="Quarantine grows",
        unit="more prefixes than at the start of the window",
        kind="gauge_growth",
        expression=GaugeGrowth(metric="kvcache.prefixes", where={"state": "QUARANTINED"}, window_seconds=900),
        limits=_limits(0, 0, 0),
        severity="warning",
    ),
    AlertRule(
        name="hit_rate_drop",
        title="The hit rate fell",
        unit="of all tokens below its own past",
        kind="hit_rate_drop",
        expression=HitRateDrop(),
        limits=_limits(0.15, 0.05, 120),
        severity="warning",
    ),
    AlertRule(
        name="caps_refusing",
        title="Caps refuse much",
        unit="of the commits were refused for want of room",
        kind="ratio",
        expression=Ratio(
            part="kvcache.commits",
            part_where={"outcome": "refused", "reason": CAP_REASONS},
            whole="kvcache.commits",
            window_seconds=300,
            minimum=20,
        ),
        limits=_limits(0.2, 0.05, 60),
        severity="warning",
    ),
    AlertRule(
        name="commands_failing",
        title="Commands fail",
        unit="commands failed or expired in the window",
        kind="fact",
        expression=Fact(fact="failed_commands", window_seconds=900),
        limits=_limits(2, 0, 0),
        severity="warning",
    ),
    AlertRule(
        name="policy_failing",
        title="A policy fails",
        unit="policies whose newest run on the engine failed",
        kind="fact",
        expression=Fact(fact="failing_policies"),
        limits=_limits(0, 0, 0),
        severity="warning",
    ),
    AlertRule(
        name="policy_broken",
        title="A policy cannot run",
        unit="policies that cannot run at all",
        kind="fact",
        expression=Fact(fact="broken_policies"),
        limits=_limits(0, 0, 0),
        severity="warning",
    ),
    AlertRule(
        name="telemetry_late",
        title="The store lags behind",
        unit="s since the newest metric of an engine that speaks",
        kind="fact",
        expression=Fact(fact="telemetry_lag_seconds"),
        limits=_limits(30, 10, 30),
        severity="warning",
    ),
    AlertRule(
        name="database_slow",
        title="The database is slow",
        unit="s for one pass of the scheduler",
        kind="fact",
        expression=Fact(fact="database_seconds", window_seconds=60),
        limits=_limits(2, 0.5, 30),
        severity="warning",
    ),
    AlertRule(
        name="database_failing",
        title="The database refused",
        unit="passes of the scheduler in the window",
        kind="fact",
        expression=Fact(fact="database_failures", window_seconds=300),
        limits=_limits(0, 0, 0),
        severity="critical",
    ),
    AlertRule(
        name="notifications_undelivered",
        title="Nobody is told",
        unit="s that the oldest notification has waited",
        kind="fact",
        expression=Fact(fact="undelivered_seconds"),
        limits=_limits(300, 60, 0),
        severity="critical",
    ),
    AlertRule(
        name="fragmentation_high",
        title="Memory is fragmented",
        unit="of the bytes of used slabs are free",
        kind="gauge",
        expression=Gauge(metric="kvcache.fragmentation", where={"class": "all"}),
        limits=_limits(0.5, 0.4, 300),
        severity="info",
    ),
)
DEFAULT_RULE_NAMES = frozenset(rule.name for rule in DEFAULT_RULES)
