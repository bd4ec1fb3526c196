"""The limits of every knob of desired state, as data, each with the sentence a person gets when outside."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.errors import BadRequest

MODES = ("normal", "no_disk", "resident_only", "full_only", "bypass")
DEFAULT_MODE_HOLD = dt.timedelta(hours=1)
LONGEST_MODE_HOLD = dt.timedelta(days=7)
CODEC_NAME = re.compile(r"^[a-z][a-z0-9_]{0,31}$")
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


def _moment(value: Any) -> str | None:
    try:
        moment = dt.datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return f"must be an RFC 3339 time, got {value!r}"
    return None if moment.tzinfo else f"must carry its time zone, got {value!r}"


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
}


def check_changes(
    changes: Mapping[str, Any], *, page_tokens: int | None, now: dt.datetime, hold_mode: bool = True
) -> dict[str, Any]:
    """The changes, complete and inside their limits; None as a value removes a key.

    `page_tokens` is the engine's page, None for a change to the whole fleet. With `hold_mode`, a degraded mode without
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
        problems.append(f"checkpoint_every_tokens must be a multiple of this engine's page of {page_tokens} tokens")
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
