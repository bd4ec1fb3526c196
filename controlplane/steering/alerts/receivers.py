"""Receivers: who is told of alerts, where, from which severity on, and the secret that signs it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from controlplane.auth import Role
from controlplane.errors import BadRequest, Conflict, NotFound
from controlplane.steering.alerts.rule import SEVERITIES
from controlplane.steering.deed import Deed
from controlplane.store.models import Notification, Receiver

NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
SHORTEST_SECRET, LONGEST_SECRET = 16, 256
LONGEST_URL = 2000
LONGEST_TIMEOUT_SECONDS = 30
MOST_RECEIVERS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverView:
    """A receiver as anybody may see it: of the URL only the host, as its path is often a secret itself."""

    name: str
    host: str
    signed: bool
    least_severity: str
    timeout_seconds: int
    enabled: bool
    changed_at: datetime
    pending: int
    delivered: int
    failed: int
    dropped: int


def host_of(url: str) -> str:
    """The part of a URL that may be shown and logged: scheme, host and port."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}"


def list_receivers(session: Session) -> list[ReceiverView]:
    """All of them, with how many notifications wait for each and how many ended how."""
    query = select(Notification.receiver, Notification.status, func.count())
    counts: dict[str, dict[str, int]] = {}
    for name, status, count in session.execute(query.group_by(Notification.receiver, Notification.status)):
        counts.setdefault(name, {})[status] = count
    return [see(row, counts.get(row.name, {})) for row in session.scalars(select(Receiver).order_by(Receiver.name))]


def see(row: Receiver, counts: Mapping[str, int]) -> ReceiverView:
    """A receiver without what is secret."""
    return ReceiverView(
        name=row.name,
        host=host_of(row.url),
        signed=bool(row.secret),
        least_severity=row.least_severity,
        timeout_seconds=row.timeout_seconds,
        enabled=row.enabled,
        changed_at=row.changed_at,
        **{status: counts.get(status, 0) for status in ("pending", "delivered", "failed", "dropped")},
    )


def create(session: Session, deed: Deed, name: str, wanted: Mapping[str, Any]) -> Receiver:
    """Adds a receiver: `url`, `secret` ("" for unsigned), `least_severity`, `timeout_seconds`. Admins only; audited."""
    deed.must_be(Role.ADMIN)
    if not NAME.fullmatch(name):
        raise BadRequest(
            "receiver_name", f"{name!r} cannot name a receiver.", "Use small letters, digits and dashes, at most 63."
        )
    if session.get(Receiver, name) is not None:
        raise Conflict("receiver_exists", f"There is a receiver {name!r} already.", "Change it, or choose another.")
    if (session.scalar(select(func.count()).select_from(Receiver)) or 0) >= MOST_RECEIVERS:
        raise Conflict("receivers_full", f"There are {MOST_RECEIVERS} receivers.", "Remove one that is not needed.")
    row = Receiver(name=name, changed_at=deed.now, **_checked(wanted))
    session.add(row)
    session.flush()
    deed.record(session, "create_receiver", name, after=_audited(row))
    return row


def change(session: Session, deed: Deed, name: str, changes: Mapping[str, Any]) -> Receiver:
    """Changes what is given. Admins only; audited, without secrets."""
    deed.must_be(Role.ADMIN)
    row = find(session, name)
    before = _audited(row)
    keys = ("url", "secret", "least_severity", "timeout_seconds", "enabled")
    wanted = {key: getattr(row, key) for key in keys} | {k: v for k, v in changes.items() if v is not None}
    for key, value in _checked(wanted).items():
        setattr(row, key, value)
    row.changed_at = deed.now
    new_secret = {"secret": "changed"} if changes.get("secret") is not None else {}
    deed.record(session, "change_receiver", name, before=before, after=_audited(row) | new_secret)
    return row


def remove(session: Session, deed: Deed, name: str) -> None:
    """Removes a receiver; what still waits for it ends as failed. Admins only; audited."""
    deed.must_be(Role.ADMIN)
    row = find(session, name)
    waiting = (Notification.receiver == name, Notification.status == "pending")
    ended = {"status": "failed", "ended_at": deed.now, "last_error": "the receiver was removed"}
    session.execute(update(Notification).where(*waiting).values(**ended))
    deed.record(session, "remove_receiver", name, before=_audited(row))
    session.delete(row)


def find(session: Session, name: str) -> Receiver:
    """The receiver's row. Raises NotFound."""
    row = session.get(Receiver, name)
    if row is None:
        raise NotFound("receiver_unknown", f"There is no receiver {name!r}.", "`kvdeck alert receivers` lists them.")
    return row


def _checked(wanted: Mapping[str, Any]) -> dict[str, Any]:
    url, secret = wanted.get("url") or "", wanted.get("secret") or ""
    severity, timeout = wanted.get("least_severity") or "warning", wanted.get("timeout_seconds") or 5
    problems = []
    if not _is_web_url(url):
        problems.append("url must be an http(s) address with a host, at most 2,000 characters")  # never repeated back
    if secret and not SHORTEST_SECRET <= len(secret) <= LONGEST_SECRET:
        problems.append(f"secret must be {SHORTEST_SECRET} to {LONGEST_SECRET} characters, got {len(secret)}")
    if severity not in SEVERITIES:
        problems.append(f"least_severity must be one of {', '.join(SEVERITIES)}, got {severity!r}")
    if not 1 <= timeout <= LONGEST_TIMEOUT_SECONDS:
        problems.append(f"timeout_seconds must be 1 to {LONGEST_TIMEOUT_SECONDS}, got {timeout}")
    if problems:
        raise BadRequest("receiver_invalid", "; ".join(problems) + ".", "Nothing was changed.")
    return {
        "url": url,
        "secret": secret,
        "least_severity": severity,
        "timeout_seconds": timeout,
        "enabled": bool(wanted.get("enabled", True)),
    }


def _is_web_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for a port that is no number
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and len(url) <= LONGEST_URL and url.isprintable()


def _audited(row: Receiver) -> dict[str, Any]:
    return {
        "host": host_of(row.url),
        "signed": bool(row.secret),
        "least_severity": row.least_severity,
        "timeout_seconds": row.timeout_seconds,
        "enabled": row.enabled,
    }
