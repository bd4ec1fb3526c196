"""Prefixes that engines refused policies, each with a back-off that doubles: nobody judges them again every minute."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy.orm import Session

from controlplane.store.models import Policy, PolicyRefusal

MOST_DOUBLINGS = 16


def note_refusals(
    session: Session, policy: Policy, engine_id: str, refused: Iterable[Mapping[str, Any]], now: dt.datetime
) -> None:
    """Remembers what one command was refused: `{prefix_id, reason}` each."""
    shortest = int(policy.parameters["back_off_seconds"])
    longest = int(policy.parameters["longest_back_off_seconds"])
    for one in refused:
        if not isinstance(one, Mapping) or "prefix_id" not in one:
            continue
        key = (policy.name, engine_id, str(one["prefix_id"]))
        standing = session.get(PolicyRefusal, key)
        if standing is None:
            standing = PolicyRefusal(policy=key[0], engine_id=key[1], prefix_id=key[2], times=0)
            session.add(standing)
        standing.times += 1
        standing.reason = str(one.get("reason", "unknown"))[:64]
        standing.at = now
        standing.until = now + dt.timedelta(seconds=back_off_seconds(standing.times, shortest, longest))


def back_off_seconds(times: int, shortest: int, longest: int) -> int:
    """How long a prefix refused `times` times in a row is left alone."""
    return min(shortest << min(times - 1, MOST_DOUBLINGS), max(shortest, longest))
