"""Parameters as data: what a value may be, and the sentence for each that may not. Validation and reference read it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

KNOB = "knob"  # key of a field's metadata


class Knob(Protocol):
    """What one parameter may be."""

    @property
    def meaning(self) -> str:
        """What it is for, one sentence."""

    @property
    def allowed(self) -> str:
        """What is allowed, in words."""

    def wrong(self, value: Any) -> str | None:
        """What is wrong with a value, as the end of a sentence that begins with the parameter's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A whole number between two limits, both allowed."""

    least: int
    most: int
    unit: str
    meaning: str

    @property
    def allowed(self) -> str:
        return f"{self.least:,} to {self.most:,} {self.unit}"

    def wrong(self, value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int):
            return f"must be a whole number of {self.unit}, got {value!r}"
        return None if self.least <= value <= self.most else f"must be {self.allowed}, got {value:,}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number between two limits, both allowed."""

    least: float
    most: float
    unit: str
    meaning: str

    @property
    def allowed(self) -> str:
        return f"{self.least:g} to {self.most:g} {self.unit}".rstrip()

    def wrong(self, value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"must be a number, {self.allowed}, got {value!r}"
        return None if self.least <= value <= self.most else f"must be {self.allowed}, got {value:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """True or false."""

    meaning: str
    allowed: str = "true or false"

    def wrong(self, value: Any) -> str | None:
        return None if isinstance(value, bool) else f"must be true or false, got {value!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One of a few words."""

    of: Sequence[str]
    meaning: str

    @property
    def allowed(self) -> str:
        return f"one of {', '.join(self.of)}"

    def wrong(self, value: Any) -> str | None:
        return None if value in self.of else f"must be {self.allowed}, got {value!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A text of a given form."""

    pattern: str
    form: str
    meaning: str

    @property
    def allowed(self) -> str:
        return self.form

    def wrong(self, value: Any) -> str | None:
        fits = isinstance(value, str) and re.fullmatch(self.pattern, value)
        return None if fits else f"must be {self.form}, got {value!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """A list of texts of a given form."""

    pattern: str
    form: str
    most: int
    meaning: str

    @property
    def allowed(self) -> str:
        return f"a list of at most {self.most}, each {self.form}"

    def wrong(self, value: Any) -> str | None:
        if not isinstance(value, list | tuple) or len(value) > self.most:
            return f"must be {self.allowed}, got {value!r}"
        bad = next((one for one in value if not isinstance(one, str) or not re.fullmatch(self.pattern, one)), None)
        return None if bad is None else f"must be {self.allowed}, but holds {bad!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Which series of a metric: attribute name -> the value, or the values, it must have."""

    meaning: str
    allowed: str = 'attributes to values, as {"tier": "disk"} or {"outcome": ["failed", "late"]}'

    def wrong(self, value: Any) -> str | None:
        if not isinstance(value, Mapping) or len(value) > 8:
            return f"must map at most 8 {self.allowed}, got {value!r}"
        for name, chosen in value.items():
            values = chosen if isinstance(chosen, list | tuple) else [chosen]
            if not values or len(values) > 32 or not all(isinstance(one, str) and one for one in values):
                return f"must map {self.allowed}, but {name!r} has {chosen!r}"
        return None


def knob(default: Any, what: Knob) -> Any:
    """A field of a rule with what it may be."""
    return field(default=default, metadata={KNOB: what})


def knobs_of(rule: type) -> dict[str, Knob]:
    """The parameters of a rule, in order."""
    return {one.name: one.metadata[KNOB] for one in fields(rule)}


def defaults_of(rule: type) -> dict[str, Any]:
    """What each parameter is when it is not given."""
    return {one.name: one.default_factory() if callable(one.default_factory) else one.default for one in fields(rule)}


def problems_of(rule: type, parameters: Mapping[str, Any], kind: str) -> list[str]:
    """One sentence for each parameter that is unknown, of a wrong type or out of its range."""
    knobs = knobs_of(rule)
    problems = [f"{name} is no parameter of {kind}" for name in parameters if name not in knobs]
    for name, value in parameters.items():
        if name in knobs and (wrong := knobs[name].wrong(value)):
            problems.append(f"{name} {wrong}")
    return problems


def build(rule: type, parameters: Mapping[str, Any]) -> Any:
    """The rule with these parameters, which were found right: JSON's lists become tuples."""
    return rule(**{name: tuple(value) if isinstance(value, list) else value for name, value in parameters.items()})
