"""What commands there are: their arguments, as data, and the sentence for each wrong one (wire.md, section 3)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.auth import Role
from controlplane.errors import BadRequest

PREFIX_ID = re.compile(r"^[0-9a-f]{32}$")
MOST_PREFIXES = 10_000
TIERS = ("host", "disk")
DAY_SECONDS = 86_400
MOST_FAULTS = 16

Check = Callable[[Any], str | None]


def _prefix_ids(value: Any) -> str | None:
    if not isinstance(value, list) or not value or len(value) > MOST_PREFIXES:
        return f"must be a list of 1 to {MOST_PREFIXES} prefix ids"
    wrong = next((item for item in value if not isinstance(item, str) or not PREFIX_ID.match(item)), None)
    return None if wrong is None else f"has {wrong!r}, which is no prefix id (32 hex digits)"


def _prefix_id(value: Any) -> str | None:
    ok = isinstance(value, str) and PREFIX_ID.match(value)
    return None if ok else "must be a prefix id (32 hex digits)"


def _versions(value: Any) -> str | None:
    ok = isinstance(value, dict) and all(isinstance(v, int) and v > 0 for v in value.values())
    return None if ok else "must map prefix ids to the versions you saw (whole numbers from 1)"


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


def _tier(value: Any) -> str | None:
    return None if value in TIERS else f"must be one of {', '.join(TIERS)}"


def _word(value: Any) -> str | None:
    return None if isinstance(value, str) and value else "must be a name"


def _amount(most: int) -> Check:
    def check(value: Any) -> str | None:
        ok = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most
        return None if ok else f"must be a whole number from 1 to {most}"

    return check


def _document(value: Any) -> str | None:
    return None if isinstance(value, dict) else "must be a document of desired state"


def _plan(value: Any) -> str | None:
    # Which faults there are is the engine's fact: it refuses an unknown one with the reason.
    ok = isinstance(value, list) and len(value) <= MOST_FAULTS
    ok = ok and all(isinstance(line, dict) and {"what", "at"} <= set(line) for line in value)
    return None if ok else f"must be a list of at most {MOST_FAULTS} faults, each with `what` and `at`"


def _one_of(*words: str) -> Check:
    def check(value: Any) -> str | None:
        return None if value in words else f"must be one of {', '.join(words)}"

    return check


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of command: the arguments it needs, and those it may have with their defaults (None: left out).

    `acts_on` are the states whose prefixes a selector may choose for it; None: it acts on no single prefixes. `role` is
    the least one that may send it. One that only `asks` changes nothing, whatever its answer.
    """

    required: Mapping[str, Check]
    optional: Mapping[str, tuple[Check, Any]]
    acts_on: frozenset[str] | None = None
    role: Role = Role.OPERATOR
    asks: bool = False

    @property
    def takes_prefixes(self) -> bool:
        """Whether prefixes can be selected for it."""
        return self.acts_on is not None


ON_GPU = frozenset({"FULL", "COMPRESSED", "PARTIAL_OFFLOAD"})
HELD = ON_GPU | {"APPROXIMATE", "QUARANTINED", "FULL_RESTORE"}
SEEN: Mapping[str, tuple[Check, Any]] = {"expect_versions": (_versions, None)}
# The pace of bulk work; left out: the engine's own (EngineConfig.bulk_prefixes_per_s, bulk_bytes_per_s).
PACE: Mapping[str, tuple[Check, Any]] = {
    "prefixes_per_s": (_amount(1_000_000), None),
    "bytes_per_s": (_amount(1 << 40), None),
}

KINDS: Mapping[str, Kind] = {
    "evict": Kind(
        required={"prefix_ids": _prefix_ids},
        optional={**SEEN, "descendants": (_flag, False), **PACE},
        acts_on=HELD,
    ),
    "warm": Kind(
        required={"prefix_ids": _prefix_ids},
        optional={"max_bytes": (_amount(1 << 50), 1 << 30), **SEEN, **PACE},
        acts_on=frozenset({"PARTIAL_OFFLOAD"}),
    ),
    "pin": Kind(
        required={"prefix_ids": _prefix_ids},
        optional={"ttl_s": (_amount(30 * DAY_SECONDS), 3600), **SEEN},
        acts_on=ON_GPU | {"APPROXIMATE"},
    ),
    "unpin": Kind(required={"prefix_ids": _prefix_ids}, optional=SEEN, acts_on=HELD),
    "compress": Kind(
        required={"prefix_ids": _prefix_ids},
        optional={"codec": (_word, None), **SEEN, **PACE},
        acts_on=frozenset({"FULL"}),
    ),
    "offload": Kind(required={"prefix_ids": _prefix_ids, "tier": _tier}, optional={**SEEN, **PACE}, acts_on=ON_GPU),
    "restore": Kind(
        required={"prefix_ids": _prefix_ids}, optional={**SEEN, **PACE}, acts_on=frozenset({"PARTIAL_OFFLOAD"})
    ),
    "compact": Kind(required={}, optional={"max_pages": (_amount(1 << 32), 4096)}),
    "scrub": Kind(
        required={}, optional={"max_bytes": (_amount(1 << 50), 1 << 30), "bytes_per_s": (_amount(1 << 40), None)}
    ),
    "drain": Kind(
        required={},
        optional={
            "then": (_one_of("keep", "offload", "evict"), "keep"),
            "tier": (_tier, None),
            "wait_s": (_amount(3600), 60),
            "hold_s": (_amount(7 * DAY_SECONDS), 3600),
            **PACE,
        },
    ),
    "foresee": Kind(required={"document": _document}, optional={}, asks=True),
    "inspect": Kind(required={"prefix_id": _prefix_id}, optional={}, asks=True),
    # What goes wrong on purpose, in an engine that was started for it; an empty plan ends it.
    "fault": Kind(required={"plan": _plan}, optional={"lasts_s": (_amount(600), 30)}, role=Role.ADMIN),
}

QUESTIONS = frozenset(name for name, kind in KINDS.items() if kind.asks)


def check_arguments(kind: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with their defaults. Raises BadRequest naming the kind, the argument and what is allowed."""
    rule = KINDS.get(kind)
    if rule is None:
        raise BadRequest("kind_unknown", f"There is no command {kind!r}.", f"Commands: {', '.join(KINDS)}.")
    known: dict[str, Check] = {**rule.required, **{name: check for name, (check, _) in rule.optional.items()}}
    problems = [f"{name} is no argument of {kind}" for name in arguments if name not in known]
    problems += [f"{name} is missing" for name in rule.required if arguments.get(name) is None]
    for name, value in arguments.items():
        problem = known[name](value) if name in known and value is not None else None
        if problem:
            problems.append(f"{name} {problem}")
    if problems:
        raise BadRequest(
            "arguments_invalid", "; ".join(problems) + ".", f"{kind} takes: {', '.join(known) or 'nothing'}."
        )
    complete = {name: default for name, (_, default) in rule.optional.items()} | dict(arguments)
    return {name: value for name, value in complete.items() if value is not None}
