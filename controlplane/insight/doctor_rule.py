"""What a rule of the doctor is, and what it finds."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from controlplane.insight.doctor_facts import DeckFacts

GIB = 1 << 30
Evidence = Mapping[str, float | int | str | None]


class Severity(IntEnum):
    """How bad it is; only `SEVERE` makes `kvdeck doctor` end with 1."""

    NOTICE = 0
    WARNING = 1
    SEVERE = 2

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a rule saw. `worse`: above the rule's own severity."""

    summary: str
    evidence: Evidence
    engine_id: str | None = None
    since: dt.datetime | None = None
    advice: str = ""
    severity: Severity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding of one rule."""

    rule: str
    severity: str
    engine_id: str | None
    summary: str
    evidence: Evidence
    since: dt.datetime | None
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`looks_for` is the sentence of the reference; `advice` is what to do unless a finding knows better."""

    name: str
    severity: Severity
    looks_for: str
    advice: str
    look: Callable[[DeckFacts], Iterable[Found]] = field(repr=False)
