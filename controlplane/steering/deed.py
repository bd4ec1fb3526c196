"""Who steers, why, when and on which trace: the facts every write of the steering rooms carries."""

from __future__ import annotations

import datetime as dt
import re
import secrets
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.orm import Session

from controlplane import audit
from controlplane.auth import Principal, Role
from controlplane.clock import utc_now
from controlplane.errors import BadRequest

TRACEPARENT = re.compile(r"^[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}$")
POLICY_PREFIX = "policy:"
LONGEST_REASON = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """One act of steering. `traceparent` (W3C) is that of the click, or None."""

    principal: Principal
    reason: str
    traceparent: str | None = None
    now: dt.datetime = field(default_factory=utc_now)

    @property
    def trace_id(self) -> str | None:
        """The trace the deed belongs to, 32 hex digits."""
        match = TRACEPARENT.match(self.traceparent or "")
        return match.group(1) if match else None

    def must_be(self, role: Role) -> None:
        """Raises Forbidden below `role`, and BadRequest without a usable reason: the audit is worth nothing then."""
        self.principal.must_be(role)
        if not self.reason.strip():
            raise BadRequest("reason_missing", "A reason is needed: it goes into the audit.", "Say why in a few words.")
        if len(self.reason) > LONGEST_REASON:
            raise BadRequest("reason_long", f"The reason is over {LONGEST_REASON} characters.", "Shorten it.")

    def record(
        self,
        session: Session,
        action: str,
        target: str,
        *,
        before: dict[str, Any] | None = None,
        after: dict[str, Any] | None = None,
    ) -> None:
        """Writes the audit row, in the transaction of the deed."""
        audit.record(
            session,
            self.principal,
            action,
            target,
            self.reason,
            before,
            after,
            self.trace_id,
            clock=lambda: self.now,
        )


def policy_principal(name: str) -> Principal:
    """The principal a policy acts as: an operator whose name says which policy it was."""
    return Principal(f"{POLICY_PREFIX}{name}", Role.OPERATOR)


def new_traceparent() -> str:
    """A fresh sampled trace, for a deed that no request started."""
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"
