"""The limits of every knob of desired state, as data, each with the sentence a person gets when outside."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.errors import BadRequest

LADDER = ("normal", "no_disk", "resident_only", "full_only", "bypass")  # of degradation, as the policy climbs it
MODES = (*LADDER, "drain")
DEFAULT_MODE_HOLD = dt.timedelta(hours=1)
LONGEST_MODE_HOLD = dt.timedelta(days=7)
CODEC_NAME = re.compile(r"^[a-z][a-z0-9_]{0,31}$")
FIRST_PAGES = re.compile(r"^first_pages:[1-9][0-9]{0,8}$")
EVICTIONS = ("lru", "cost_aware")
MOST_NAMESPACE_CAPS = 256
MIB = 1024 * 1024
PIB = 1024**5


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """A whole number inside two limits, both allowed."""

    least: int
    most: int
    unit: str
    why: str

    def __call__(self, value: Any) -> str | None:
        """None if the value is inside, else what is wrong with it."""
        if isinstance(value, bool) or not isinstance(value, int):
            return f"must be a whole number of {self.unit}, got {value!r}"
        if self.least <= value <= self.most:
            return None
        return f"must be {self.least} to {self.most} {self.unit}, got {value}: {self.why}"


def _mode(value: Any) -> str | None:
    return None if value in MODES else f"must be one of {', '.join(MODES)}, got {value!r}"


def _codec(value: Any) -> str | None:
    # Which codecs exist is the engine's fact: it refuses an unknown one and says so in `observed.error`.
    ok = isinstance(value, str) and CODEC_NAME.match(value)
    return None if ok else f"must be a codec's short name such as 'int8', got {value!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A share of the GPU tier, between 0 and 1: neither of them, unless it may be `whole`."""

    why: str
    whole: bool = False

    def __call__(self, value: Any) -> str | None:
        """None if the value is a share, else what is wrong with it."""
        ok = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1
        ok = ok or (self.whole and value == 1 and not isinstance(value, bool))
        most = "above 0 and at most 1" if self.whole else "between 0 and 1"
        return None if ok else f"must be a share {most}, got {value!r}: {self.why}"


def _admission_rule(value: Any) -> str | None:
    if value in ("all", "second_touch") or (isinstance(value, str) and FIRST_PAGES.match(value)):
        return None
    return f"must be all, second_touch or first_pages:N with N from 1, got {value!r}"


def _eviction(value: Any) -> str | None:
    return None if value in EVICTIONS else f"must be one of {', '.join(EVICTIONS)}, got {value!r}"


def _namespace_caps(value: Any) -> str | None:
    """Whether the guarantees fit the GPU tier together is the engine's to say: it knows its tier."""
    if not isinstance(value, Mapping) or not value:
        return f"must map namespaces to their caps, or be null for none, got {value!r}"
    if len(value) > MOST_NAMESPACE_CAPS:
        return f"must name at most {MOST_NAMESPACE_CAPS} namespaces, got {len(value)}"
    for name, caps in value.items():
        if not isinstance(name, str) or not 0 < len(name) <= 128 or not name.isprintable():
            return f"must name namespaces of 1 to 128 printable characters, got {name!r}"
        if problem := _one_namespace(caps):
            return f"of namespace {name!r} {problem}"
    return None


def _one_namespace(caps: Any) -> str | None:
    if not isinstance(caps, Mapping) or not caps or set(caps) - set(NAMESPACE_LIMITS):
        return f"must set some of {', '.join(NAMESPACE_LIMITS)}, got {caps!r}"
    for key, limit in NAMESPACE_LIMITS.items():
        if key in caps and (problem := limit(caps[key])):
            return f"{key} {problem}"
    if caps.get("guaranteed_bytes", 0) > caps.get("max_bytes", PIB):
        return f"guarantees {caps['guaranteed_bytes']} bytes, more than its max_bytes of {caps['max_bytes']}"
    return None


def _moment(value: Any) -> str | None:
    try:
        moment = dt.datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return f"must be an RFC 3339 time, got {value!r}"
    return None if moment.tzinfo else f"must carry its time zone, got {value!r}"


NAMESPACE_LIMITS: Mapping[str, Callable[[Any], str | None]] = {
    "guaranteed_bytes": Between(least=MIB, most=PIB, unit="bytes", why="below 1 MiB not one page of any model fits"),
    "max_bytes": Between(least=MIB, most=PIB, unit="bytes", why="below 1 MiB not one page of any model fits"),
    "max_prefixes": Between(least=1, most=100_000_000, unit="prefixes", why="leave it out for no limit"),
}

KNOBS: Mapping[str, Callable[[Any], str | None]] = {
    "mode": _mode,
    "mode_expires_at": _moment,
    "cap_prefixes": Between(least=1, most=100_000_000, unit="prefixes", why="to stop reuse altogether set mode bypass"),
    "cap_gpu_bytes": Between(least=MIB, most=PIB, unit="bytes", why="below 1 MiB not one page of any model fits"),
    "cap_host_bytes": Between(least=0, most=PIB, unit="bytes", why="0 switches the tier off"),
    "cap_disk_bytes": Between(least=0, most=PIB, unit="bytes", why="0 switches the tier off"),
    "codec": _codec,
    "checkpoint_every_tokens": Between(
        least=0, most=16_777_216, unit="tokens", why="0 keeps only the default checkpoints"
    ),
    "checkpoint_budget_ratio": Share(why="windows and tails may fill so much of the GPU tier"),
    "pin_budget_ratio": Share(why="all pins together may hold so much of the GPU tier", whole=True),
    "namespace_caps": _namespace_caps,
    "admission_rule": _admission_rule,
    "eviction": _eviction,
}


def check_changes(
    changes: Mapping[str, Any], *, page_tokens: int | None, now: dt.datetime, hold_mode: bool = True
) -> dict[str, Any]:
    """The changes, complete and inside their limits; None as a value removes a key.

    `page_tokens` is the page that checkpoints must end, None while it is not known. With `hold_mode`, a mode without
    `mode_expires_at` is held for one hour, so that nobody forgets it. Raises BadRequest with every problem found.
    """
    problems = [f"{key} is no knob; there are {', '.join(KNOBS)}" for key in changes if key not in KNOBS]
    for key, value in changes.items():
        problem = KNOBS[key](value) if key in KNOBS and value is not None else None
        if problem:
            problems.append(f"{key} {problem}")
    if not changes:
        problems.append("there is nothing to change")
    if not problems:
        problems = _check_together(changes, page_tokens=page_tokens, now=now)
    if problems:
        raise BadRequest(
            "desired_invalid",
            "; ".join(problems) + ".",
            "Nothing was changed: correct the named values, send it again.",
        )
    return _complete_mode(changes, now if hold_mode else None)


def _check_together(changes: Mapping[str, Any], *, page_tokens: int | None, now: dt.datetime) -> list[str]:
    problems = []
    every = changes.get("checkpoint_every_tokens")
    if every and page_tokens and every % page_tokens:
        problems.append(f"checkpoint_every_tokens must be a multiple of the page of {page_tokens} tokens, got {every}")
    expires = changes.get("mode_expires_at")
    if expires is not None:
        if changes.get("mode") is None:
            problems.append("mode_expires_at needs the mode it ends")
        ahead = dt.datetime.fromisoformat(expires) - now
        if not dt.timedelta(0) < ahead <= LONGEST_MODE_HOLD:
            problems.append(f"mode_expires_at must lie in the next {LONGEST_MODE_HOLD.days} days, got {expires}")
    return problems


def _complete_mode(changes: Mapping[str, Any], held_from: dt.datetime | None) -> dict[str, Any]:
    complete = dict(changes)
    if "mode" not in changes:
        return complete
    # A new mode never inherits the end of the hold before it.
    complete.setdefault("mode_expires_at", None)
    if complete["mode_expires_at"] is None and changes["mode"] not in (None, "normal") and held_from:
        complete["mode_expires_at"] = (held_from + DEFAULT_MODE_HOLD).isoformat()
    return complete
