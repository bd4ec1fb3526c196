"""Alert rules in the store: what a fresh one starts with, and how people create, change, disable and remove them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from controlplane.auth import Role
from controlplane.errors import Conflict, NotFound
from controlplane.steering.alerts.defaults import DEFAULT_RULE_NAMES, DEFAULT_RULES
from controlplane.steering.alerts.rule import check_rule
from controlplane.steering.deed import Deed
from controlplane.store.models import AlertRuleRow

MOST_RULES = 200
COLUMNS = (
    "title",
    "kind",
    "parameters",
    "above",
    "resolve_at",
    "for_seconds",
    "severity",
    "runbook",
    "scope",
    "enabled",
)


def seed(session: Session, now: dt.datetime) -> list[str]:
    """Adds the default rules that are not there yet; what people changed stays. Returns the names added."""
    added = []
    standing = set(session.scalars(select(AlertRuleRow.name)))
    for rule in DEFAULT_RULES:
        if rule.name not in standing:
            session.add(AlertRuleRow(name=rule.name, is_default=True, changed_at=now, **rule.columns()))
            added.append(rule.name)
    return added


def find(session: Session, name: str) -> AlertRuleRow:
    """The rule's row. Raises NotFound."""
    row = session.get(AlertRuleRow, name)
    if row is None:
        raise NotFound("rule_unknown", f"There is no alert rule {name!r}.", "`kvdeck alert rules` shows them.")
    return row


def create(session: Session, deed: Deed, name: str, wanted: Mapping[str, Any]) -> AlertRuleRow:
    """Adds a rule. Raises BadRequest with every problem, Conflict for a name that is taken. Audited."""
    deed.must_be(Role.OPERATOR)
    rule = check_rule(name, wanted)
    if session.get(AlertRuleRow, name) is not None:
        raise Conflict("rule_exists", f"There is an alert rule {name!r} already.", "Change it, or choose another name.")
    if (session.scalar(select(func.count()).select_from(AlertRuleRow)) or 0) >= MOST_RULES:
        raise Conflict("rules_full", f"There are {MOST_RULES} alert rules.", "Remove one that is not needed.")
    row = AlertRuleRow(name=name, is_default=False, changed_at=deed.now, **rule.columns())
    session.add(row)
    session.flush()
    deed.record(session, "create_alert_rule", name, after=_tunables(row))
    return row


def change(session: Session, deed: Deed, name: str, changes: Mapping[str, Any]) -> AlertRuleRow:
    """Changes what is given; `parameters` are merged, `scope` is replaced. Raises BadRequest, NotFound. Audited."""
    deed.must_be(Role.OPERATOR)
    row = find(session, name)
    before = _tunables(row)
    merged = {key: value for key, value in changes.items() if value is not None}
    merged["parameters"] = {**row.parameters, **(changes.get("parameters") or {})}
    rule = check_rule(name, {**before, **merged, "kind": row.kind})
    for column, value in rule.columns().items():
        setattr(row, column, value)
    row.changed_at = deed.now
    deed.record(session, "change_alert_rule", name, before=before, after=_tunables(row))
    return row


def remove(session: Session, deed: Deed, name: str) -> None:
    """Removes a rule that somebody created; the next evaluation resolves its alerts. Raises Conflict for a default."""
    deed.must_be(Role.OPERATOR)
    row = find(session, name)
    if name in DEFAULT_RULE_NAMES:
        raise Conflict("rule_default", f"{name} is one of the rules every deck has.", "Disable it instead.")
    deed.record(session, "remove_alert_rule", name, before=_tunables(row))
    session.delete(row)


def _tunables(row: AlertRuleRow) -> dict[str, Any]:
    return {column: getattr(row, column) for column in COLUMNS}
