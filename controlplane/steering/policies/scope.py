"""Where a rule holds: on every engine, a group or one engine; and, if it chooses prefixes, in which namespace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.errors import BadRequest
from controlplane.store.models import Engine

KEYS = ("engine", "group", "namespace")
LONGEST = {"engine": 64, "group": 64, "namespace": 128}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """`engine` or `group`, or neither for all; `namespace` narrows which prefixes or requests are looked at."""

    engine: str | None = None
    group: str | None = None
    namespace: str | None = None

    def covers(self, engine: Engine) -> bool:
        """Whether the rule holds on this engine."""
        return self.engine in (None, engine.id) and self.group in (None, engine.group_name)

    @property
    def nearness(self) -> int:
        """Of two rules that cover an engine, the nearer one counts: one engine before a group before all."""
        return 2 if self.engine is not None else 1 if self.group is not None else 0

    @property
    def words(self) -> str:
        """In words."""
        where = f"engine {self.engine}" if self.engine else f"group {self.group}" if self.group else "all engines"
        return f"{where}, namespace {self.namespace}" if self.namespace else where

    def as_json(self) -> dict[str, Any]:
        """As it is kept: only what is set."""
        return {key: value for key in KEYS if (value := getattr(self, key)) is not None}


EVERYWHERE = Scope()


def read_scope(wanted: Mapping[str, Any], *, has_namespace: bool, what: str) -> Scope:
    """The scope as a value. Raises BadRequest with every problem: `what` names the rule in the sentences."""
    wanted = {key: value for key, value in wanted.items() if value is not None}
    problems = [f"{key} is no part of a scope" for key in wanted if key not in KEYS]
    problems += [
        f"{key} must be 1 to {LONGEST[key]} characters, got {value!r}"
        for key, value in wanted.items()
        if key in KEYS and not (isinstance(value, str) and 0 < len(value) <= LONGEST[key])
    ]
    if "engine" in wanted and "group" in wanted:
        problems.append("engine and group were both given")
    if "namespace" in wanted and not has_namespace:
        problems.append(f"{what} works on whole engines and cannot be narrowed to a namespace")
    if problems:
        raise BadRequest(
            "scope_invalid",
            "; ".join(problems) + ".",
            f"A scope has engine or group{', and namespace' if has_namespace else ''}.",
        )
    return Scope(**wanted)
