"""The shapes of the registry's entries, and who speaks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

SCOPE_NAME = "kvdeck.engine"
SCOPE_VERSION = "1.1"
SCHEMA_URL = f"https://kvdeck.dev/schemas/{SCOPE_VERSION}"
"""Moves with every entry that is renamed, retyped or taken away; a new entry alone moves the number after the dot."""


class Stability(StrEnum):
    STABLE = "stable"  # kept through every 0.x release; taken away only with a new number before the dot
    EXPERIMENTAL = "experimental"  # may change with any release


class InstrumentKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute:
    """One attribute of spans or the resource. `unit` is UCUM, "" for none; `bound` says how many values there are."""

    name: str
    type: str  # string, int, double or boolean
    meaning: str
    bound: str
    unit: str = ""
    values: tuple[str, ...] = ()  # all there are, where the list is short
    stability: Stability = Stability.STABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkKind:
    """What a span's link leads to, and the attributes that say the same for backends that drop links."""

    leads_to: str
    same_as: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanKind:
    """One kind of span. `attributes` are on every one, `sometimes` on those they fit. `vital`: never dropped, never
    sampled away, whatever its status."""

    name: str
    meaning: str
    parent: str
    attributes: tuple[str, ...]
    sometimes: tuple[str, ...] = ()
    error_when: str = "never"
    link: LinkKind | None = None
    vital: bool = False
    stability: Stability = Stability.STABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """One attribute of an instrument. Every label is bounded: `bound` is the most values it can have."""

    name: str
    bound: int
    meaning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instrument:
    """One metric. `pulled` is its name for Prometheus; where the label `of` tells units apart, one a value of it."""

    name: str
    kind: InstrumentKind
    unit: str
    meaning: str
    pulled: dict[str, str]  # value of `of` ("" without that label) -> Prometheus name
    labels: tuple[Label, ...] = ()
    stability: Stability = Stability.STABLE

    @property
    def most_series(self) -> int:
        """The most series of it that one engine can have."""
        product = 1
        for label in self.labels:
            product *= label.bound
        return product
