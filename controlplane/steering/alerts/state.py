"""The states of an alert, as data, and the one step an evaluation makes. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass

PENDING, FIRING, RESOLVED = "pending", "firing", "resolved"

# None: there is no alert. What was pending and never fired leaves nothing behind, as nobody was told of it.
TRANSITIONS: Mapping[str | None, frozenset[str | None]] = {
    None: frozenset({PENDING}),
    PENDING: frozenset({FIRING, None}),
    FIRING: frozenset({RESOLVED}),
    RESOLVED: frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Fires when the value stays above `above` for `for_seconds`; resolves at `resolve_at` or below (hysteresis)."""

    above: float
    resolve_at: float
    for_seconds: int


def step(
    state: str | None, since: dt.datetime | None, value: float | None, limits: Limits, now: dt.datetime
) -> str | None:
    """The state after one evaluation; one edge of the table at most. A value of None says nothing: all stays as it is.

    `since` is when the alert became pending. A rule with `for_seconds` 0 needs a second step to fire.
    """
    if value is None:
        return state
    if state is None:
        return PENDING if value > limits.above else None
    if state == PENDING:
        if value <= limits.above:
            return None
        waited = since is not None and (now - since).total_seconds() >= limits.for_seconds
        return FIRING if waited else PENDING
    if state == FIRING:
        return RESOLVED if value <= limits.resolve_at else FIRING
    return state
