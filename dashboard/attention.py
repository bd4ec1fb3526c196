"""What needs a person first: the doctor's findings and the alerts that fire as one short list, worst first.

No rule is made here. What is wrong is said by `controlplane.insight.doctor` and by the alert rules; this module joins
the two where they say the same, and puts one sentence for many engines.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from controlplane.insight.doctor_rule import Finding
from controlplane.steering.alerts.rule import RUNBOOK
from controlplane.store.queries import AlertView
from dashboard.readings import ControlPlaneHealth
from dashboard.wording import plural

MANY_ENGINES = 2  # more engines with the same trouble are one line
RANK_OF = {"severe": 0, "critical": 0, "warning": 1, "notice": 2, "info": 2}
ACKNOWLEDGED_RANK = 3

SAME_AS = {
    "recovery_failure_rate": "restores_failing",
    "engine_silent": "engine_silent",
    "history_gaps_open": "history_gaps",
    "telemetry_dropped": "telemetry_dropped",
    "disk_breaker_open": "breaker_open",
    "quarantine_growing": "quarantine_filling",
    "commands_failing": "commands_failed",
    "policy_failing": "policy_failing",
}
"""Alert rule -> the doctor's rule that looks for the same trouble."""
_ALERT_LIKE = {finding: alert for alert, finding in SAME_AS.items()}
DOCTORS_PAGE = "docs/howto/doctor.md"
PAGE_OF = {
    "wrong_bytes": "caps",
    "engine_silent": "fleet",
    "breaker_open": "memory",
    "restores_failing": "validations",
    "quarantine_filling": "validations",
    "disk_slow": "memory",
    "caps_too_small": "caps",
    "checkpoints_missing": "caps",
    "namespace_maximum": "caps",
    "namespace_thrashing": "prefixes",
    "telemetry_dropped": "fleet",
    "telemetry_refused": "fleet",
    "history_gaps": "fleet",
    "clock_skew": "fleet",
    "mode_degraded": "caps",
    "desired_unobserved": "caps",
    "commands_failed": "audit",
    "policy_failing": "policies",
    "policy_paused": "policies",
    "leader_missing": "policies",
    "database_growing": "policies",
    "device_calls_stuck": "memory",
}
"""Rule -> the page where something can be done about it; any other alert: Alerts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One thing to look after. `rank` 0 is worst; `page` is where to act; `alert`: it fires as one."""

    rank: int
    rule: str
    what: str
    since: dt.datetime | None
    action: str
    page: str
    runbook: str = ""
    engines: tuple[str, ...] = ()
    alert: bool = False


def needs_attention(
    *, health: ControlPlaneHealth, findings: Sequence[Finding], alerts: Sequence[AlertView]
) -> list[Item]:
    """Worst first; inside one rank what fires as an alert, then what began last."""
    found = _merged([*map(_of_finding, findings)], [*map(_of_alert, (a for a in alerts if a.state == "firing"))])
    return sorted([*_control_plane(health), *_gathered(found)], key=_order)


def _order(item: Item) -> tuple[int, bool, float]:
    return item.rank, not item.alert, -(item.since.timestamp() if item.since else 0.0)


def _control_plane(health: ControlPlaneHealth) -> list[Item]:
    if health.state == "up":
        return []
    gone = health.state == "unreachable"
    what = "The control plane is unreachable" if gone else "The control plane cannot read its database"
    action = "Start it (`kvdeck serve`), or look at its log." if gone else "Check the database; then Refresh."
    return [Item(rank=-1, rule="control_plane", what=what, since=None, action=action, page="overview")]


def _of_finding(finding: Finding) -> Item:
    return Item(
        rank=RANK_OF[finding.severity],
        rule=finding.rule,
        what=finding.summary,
        since=finding.since,
        action=finding.advice,
        page=PAGE_OF.get(finding.rule, "fleet"),
        runbook=RUNBOOK.format(name=_ALERT_LIKE[finding.rule]) if finding.rule in _ALERT_LIKE else DOCTORS_PAGE,
        engines=(finding.engine_id,) if finding.engine_id else (),
    )


def _of_alert(alert: AlertView) -> Item:
    taken = f" (acknowledged by {alert.acknowledged_by})" if alert.acknowledged_by else ""
    rule = SAME_AS.get(alert.rule, alert.rule)
    return Item(
        rank=ACKNOWLEDGED_RANK if alert.acknowledged_by else RANK_OF.get(alert.severity, 1),
        rule=rule,
        what=f"{alert.summary}{taken}",
        since=alert.since,
        action="Somebody looks after it." if alert.acknowledged_by else "Acknowledge it on Alerts; see the runbook.",
        page=PAGE_OF.get(rule, "alerts"),
        runbook=alert.runbook or RUNBOOK.format(name=alert.rule),
        engines=(alert.engine_id,) if alert.engine_id else (),
        alert=True,
    )


def _merged(findings: Sequence[Item], alerts: Sequence[Item]) -> list[Item]:
    """An alert and a finding of the same trouble on the same engine are one item: the alert knows since when and who
    looks after it, the finding what helps."""
    firing = {(item.rule, item.engines): item for item in alerts}
    found = []
    for item in findings:
        alert = firing.pop((item.rule, item.engines), None)
        if alert is None:
            found.append(item)
            continue
        rank = alert.rank if alert.rank == ACKNOWLEDGED_RANK else min(item.rank, alert.rank)
        since = min((at for at in (item.since, alert.since) if at), default=None)
        found.append(
            replace(alert, rank=rank, since=since, action=item.action, what=_both(item.what, alert), page=item.page)
        )
    return [*found, *firing.values()]


def _both(what: str, alert: Item) -> str:
    taken = alert.what[alert.what.rindex(" (acknowledged") :] if " (acknowledged" in alert.what else ""
    return f"{what}{taken}"


def _gathered(items: Iterable[Item]) -> list[Item]:
    """Items of one rule and rank on many engines as one, so that a fleet's common trouble is one line."""
    alike: dict[tuple[int, str, bool], list[Item]] = defaultdict(list)
    for item in items:
        alike[item.rank, item.rule, bool(item.engines)].append(item)
    found = []
    for group in alike.values():
        engines = tuple(dict.fromkeys(engine for item in group for engine in item.engines))
        if len(engines) <= MANY_ENGINES:
            found += group
            continue
        since = min((item.since for item in group if item.since), default=None)
        what = f"{plural(len(engines), 'engine')}, among them {engines[0]}: {group[0].what}"
        found.append(replace(group[0], what=what, since=since, engines=engines, alert=any(i.alert for i in group)))
    return found
