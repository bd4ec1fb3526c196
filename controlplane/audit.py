"""Who did what, why, before and after. Written in the transaction of the deed, so neither exists alone."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from controlplane.auth import Principal
from controlplane.clock import Clock, utc_now
from controlplane.store.models import Audit


def record(
    session: Session,
    principal: Principal,
    action: str,
    target: str,
    reason: str,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    trace_id: str | None = None,
    *,
    clock: Clock = utc_now,
) -> None:
    """Append one row. `action` is a word of at most 32 letters (`evict`), `target` what it was done to."""
    session.add(
        Audit(
            at=clock(),
            actor=principal.name,
            role=principal.role.word,
            action=action,
            target=target[:128],
            reason=reason,
            before=before,
            after=after,
            trace_id=trace_id,
        )
    )
