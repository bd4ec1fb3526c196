"""Silences: nobody is told of the alerts that match, until an end that everybody sees."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from controlplane.auth import Role
from controlplane.errors import BadRequest, Conflict, NotFound
from controlplane.steering.deed import Deed
from controlplane.store.models import Silence

KEYS = ("rule", "engine", "group", "namespace")
LONGEST = dt.timedelta(days=31)
LONGEST_MATCHER = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Facets:
    """What of an alert a silence can match. `group` and `namespace` are "" where there is none."""

    rule: str
    engine: str
    group: str
    namespace: str


def matches(matchers: Mapping[str, str], facets: Facets) -> bool:
    """Whether every matcher fits; `*` in one stands for any letters."""
    return all(fnmatchcase(getattr(facets, key), pattern) for key, pattern in matchers.items())


def active(session: Session, now: dt.datetime) -> Sequence[Silence]:
    """The silences that hold now, the one that ends last first: that one is named on the alert."""
    query = select(Silence).where(Silence.until > now, Silence.removed_at.is_(None)).order_by(Silence.until.desc())
    return session.scalars(query).all()


def create(session: Session, deed: Deed, matchers: Mapping[str, Any], until: dt.datetime) -> Silence:
    """Keeps what matches quiet until then. Raises BadRequest: no matcher, an unknown one, no end. Audited."""
    deed.must_be(Role.OPERATOR)
    matchers = {key: value for key, value in matchers.items() if value is not None}
    problems = [f"{key} is no matcher" for key in matchers if key not in KEYS]
    problems += [
        f"{key} must be 1 to {LONGEST_MATCHER} characters, got {value!r}"
        for key, value in matchers.items()
        if not (isinstance(value, str) and 0 < len(value) <= LONGEST_MATCHER)
    ]
    if not matchers:
        problems.append("a silence needs a matcher: one without would hide every alert")
    if until.tzinfo is None or not deed.now < until <= deed.now + LONGEST:
        problems.append(f"until must lie in the next {LONGEST.days} days and carry its zone, got {until.isoformat()}")
    if problems:
        raise BadRequest("silence_invalid", "; ".join(problems) + ".", f"Matchers: {', '.join(KEYS)}; `*` is any text.")
    silence = Silence(
        matchers=dict(matchers), created_at=deed.now, until=until, actor=deed.principal.name, reason=deed.reason
    )
    session.add(silence)
    session.flush()
    after = {"matchers": silence.matchers, "until": until.isoformat()}
    deed.record(session, "silence_alerts", str(silence.id), after=after)
    return silence


def remove(session: Session, deed: Deed, silence_id: int) -> Silence:
    """Ends a silence now. What still fires is told then. Raises NotFound, and Conflict when it is over."""
    deed.must_be(Role.OPERATOR)
    silence = session.get(Silence, silence_id)
    if silence is None:
        raise NotFound("silence_unknown", f"There is no silence {silence_id}.", "`kvdeck alert silences` lists them.")
    if silence.removed_at is not None or silence.until <= deed.now:
        raise Conflict("silence_over", f"Silence {silence_id} is already over.", "There is nothing to remove.")
    silence.removed_at, silence.removed_by = deed.now, deed.principal.name
    deed.record(session, "unsilence_alerts", str(silence_id), before={"until": silence.until.isoformat()})
    return silence
