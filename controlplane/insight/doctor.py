"""`kvdeck doctor`: rules over frozen facts. Each says what it saw, since when, and the command that helps."""

from __future__ import annotations

from controlplane.insight.doctor_deck import DECK_RULES
from controlplane.insight.doctor_engines import ENGINE_RULES
from controlplane.insight.doctor_facts import DeckFacts
from controlplane.insight.doctor_rule import Finding, Found, Rule, Severity

RULES: tuple[Rule, ...] = ENGINE_RULES + DECK_RULES
"""All rules, in the order the reference lists them."""


def examine(facts: DeckFacts) -> list[Finding]:
    """All findings, the worst first."""
    found = [(rule, seen) for rule in RULES for seen in rule.look(facts)]
    found.sort(key=lambda pair: -_severity(*pair))
    return [
        Finding(
            rule=rule.name,
            severity=_severity(rule, seen).word,
            engine_id=seen.engine_id,
            summary=seen.summary,
            evidence=seen.evidence,
            since=seen.since,
            advice=seen.advice or rule.advice,
        )
        for rule, seen in found
    ]


def _severity(rule: Rule, seen: Found) -> Severity:
    return rule.severity if seen.severity is None else seen.severity
