"""An alert rule as a value, and what may be one."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from controlplane.errors import BadRequest
from controlplane.steering.alerts.expressions import HAVE_NAMESPACES, KINDS, Expression, HitRateDrop, Ratio
from controlplane.steering.alerts.state import Limits
from controlplane.steering.parameters import build, knobs_of, problems_of
from controlplane.steering.policies.scope import EVERYWHERE, Scope, read_scope
from controlplane.store.models import AlertRuleRow
from controlplane.wording import count_text, seconds_text

NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
SEVERITIES = ("info", "warning", "critical")
LONGEST_FOR_SECONDS = 86_400
WHOLE_FROM = 1000  # from here on, three digits would hide some, or be written with an exponent
RUNBOOK = "docs/howto/runbook.md#{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRule:
    """What is watched, when that is an alert, how bad it is, and where the reader finds what to do."""

    name: str
    title: str
    unit: str  # what the value counts, after the number in the alert's summary
    kind: str
    expression: Expression
    limits: Limits
    severity: str
    runbook: str = ""
    scope: Scope = EVERYWHERE
    enabled: bool = True

    @property
    def link(self) -> str:
        """Where its runbook is."""
        return self.runbook or RUNBOOK.format(name=self.name)

    def summary(self, value: float) -> str:
        """One line for people: how much it is, and above what it is an alert."""
        return f"{self.title}: {self.said(value)} (limit {self._amount(self.limits.above)})"

    def said(self, value: float) -> str:
        """A value with what it counts. Of a unit that begins with s, the duration says it."""
        unit = self.unit.removeprefix("s ") if self._is_duration else self.unit
        return f"{self._amount(value)} {unit}".rstrip()

    @property
    def _is_duration(self) -> bool:
        return self.unit == "s" or self.unit.startswith("s ")

    def _amount(self, value: float) -> str:
        if self._is_duration:
            return seconds_text(value)
        if isinstance(self.expression, Ratio | HitRateDrop) or self.unit.startswith("of the "):
            return f"{value * 100:.3g}%"
        return count_text(value) if abs(value) >= WHOLE_FROM else f"{value:.3g}"

    def columns(self) -> dict[str, Any]:
        """The rule as its row keeps it."""
        return {
            "title": self.title,
            "kind": self.kind,
            "parameters": {**asdict(self.expression), "unit": self.unit},
            "above": self.limits.above,
            "resolve_at": self.limits.resolve_at,
            "for_seconds": self.limits.for_seconds,
            "severity": self.severity,
            "runbook": self.link,
            "scope": self.scope.as_json(),
            "enabled": self.enabled,
        }


def rule_of(row: AlertRuleRow) -> AlertRule:
    """The row as a value. Raises BadRequest if somebody wrote past the write door what cannot be one."""
    return check_rule(
        row.name,
        {
            "title": row.title,
            "kind": row.kind,
            "parameters": row.parameters,
            "above": row.above,
            "resolve_at": row.resolve_at,
            "for_seconds": row.for_seconds,
            "severity": row.severity,
            "runbook": row.runbook,
            "scope": row.scope,
            "enabled": row.enabled,
        },
    )


def check_rule(name: str, wanted: Mapping[str, Any]) -> AlertRule:
    """The wish as a rule. Raises BadRequest with every problem: name, kind, parameters, limits, severity, scope."""
    kind = str(wanted.get("kind"))
    expression_type = KINDS.get(kind)
    if expression_type is None:
        raise BadRequest("rule_kind", f"There is no kind of rule {kind!r}.", f"Kinds: {', '.join(KINDS)}.")
    given = dict(wanted.get("parameters") or {})
    unit = given.pop("unit", "")
    problems = problems_of(expression_type, given, kind)
    problems += _texts(name, wanted, unit)
    problems += _limits(wanted)
    if problems:
        known = ", ".join([*knobs_of(expression_type), "unit"])
        raise BadRequest("rule_invalid", "; ".join(problems) + ".", f"Parameters of {kind}: {known}.")
    scope = read_scope(wanted.get("scope") or {}, has_namespace=kind in HAVE_NAMESPACES, what=kind)
    return AlertRule(
        name=name,
        title=wanted["title"],
        unit=unit,
        kind=kind,
        expression=build(expression_type, given),
        limits=Limits(
            above=float(wanted["above"]),
            resolve_at=float(wanted["resolve_at"]),
            for_seconds=wanted["for_seconds"],
        ),
        severity=wanted["severity"],
        runbook=wanted.get("runbook") or "",
        scope=scope,
        enabled=bool(wanted.get("enabled", True)),
    )


def _texts(name: str, wanted: Mapping[str, Any], unit: Any) -> list[str]:
    problems = []
    if not NAME.fullmatch(name):
        problems.append(f"the name must be small letters, digits and _, a letter first, at most 63, got {name!r}")
    title, runbook = wanted.get("title"), wanted.get("runbook") or ""
    if not isinstance(title, str) or not 0 < len(title) <= 128:
        problems.append(f"title must be 1 to 128 characters, got {title!r}")
    if not isinstance(unit, str) or len(unit) > 128:
        problems.append(f"unit must be at most 128 characters, got {unit!r}")
    if len(runbook) > 256:
        problems.append("runbook must be at most 256 characters")
    if wanted.get("severity") not in SEVERITIES:
        problems.append(f"severity must be one of {', '.join(SEVERITIES)}, got {wanted.get('severity')!r}")
    return problems


def _limits(wanted: Mapping[str, Any]) -> list[str]:
    above, resolve_at, for_seconds = (wanted.get(key) for key in ("above", "resolve_at", "for_seconds"))
    problems = [
        f"{key} must be a number, got {value!r}"
        for key, value in (("above", above), ("resolve_at", resolve_at))
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value)
    ]
    if not problems and resolve_at > above:  # type: ignore[operator]
        problems.append(
            f"resolve_at must not lie over above, or it would resolve while it fires: {resolve_at} > {above}"
        )
    whole = isinstance(for_seconds, int) and not isinstance(for_seconds, bool)
    if not whole or not 0 <= for_seconds <= LONGEST_FOR_SECONDS:  # type: ignore[operator]
        problems.append(f"for_seconds must be 0 to {LONGEST_FOR_SECONDS} seconds, got {for_seconds!r}")
    return problems
