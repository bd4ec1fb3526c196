"""The dashboard's line to the control plane: signing in, and every action, with the token of whoever clicked."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

from controlplane.api.client import ControlPlaneClient
from controlplane.errors import Forbidden
from controlplane.settings import Settings
from controlplane.steering.commands import ASK_SECONDS
from controlplane.steering.deed import new_traceparent
from dashboard.desired import Whose
from dashboard.session import ROLES, Person

LOOK_SECONDS = 2.0  # a page must not wait for a control plane that is gone
ACT_SECONDS = 10.0


@cache
def settings() -> Settings:
    """The settings this process started with."""
    return Settings.from_environment()


@contextmanager
def client(token: str | None, *, timeout_seconds: float = ACT_SECONDS) -> Iterator[ControlPlaneClient]:
    """A client for one action. Its methods raise ControlPlaneErrors, as do all functions here."""
    with ControlPlaneClient(settings().url or settings().api_url, token, timeout_seconds=timeout_seconds) as opened:
        yield opened


def health() -> None:
    """Raises Unreachable when nothing answers, Unavailable when the control plane cannot read its database."""
    with client(None, timeout_seconds=LOOK_SECONDS) as line:
        line.health()


def redeem(link_token: str) -> Person:
    """Spend a one-time link."""
    with client(None) as line:
        said = line.redeem(link_token)
    return Person(name=str(said["name"]), role=str(said["role"]), token=str(said["session_token"]))


def exchange(id_token: str) -> Person:
    """Trade an identity provider's ID token for a session: the control plane checks it and says which role it is."""
    with client(None) as line:
        said = line.exchange(id_token)
    return Person(name=str(said["name"]), role=str(said["role"]), token=str(said["session_token"]))


def identify(token: str) -> Person:
    """Who a token belongs to. An engine's token is nobody's: it may not look."""
    with client(token, timeout_seconds=LOOK_SECONDS) as line:
        said = line.me()
    role = str(said["role"])
    if role not in ROLES:
        raise Forbidden("role_engine", "This is an engine's token.", "Sign in with a person's token.")
    return Person(name=str(said["name"]), role=role, token=token)


def preview(person: Person, engine: str, kind: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The blast radius of a command: nothing is changed."""
    with client(person.token) as line:
        return line.preview(engine, kind, arguments)


def submit(person: Person, engine: str, kind: str, arguments: Mapping[str, Any], reason: str, key: str) -> str:
    """Send a command and return its id. `key` makes a second click the same command; the trace is the click's own."""
    with client(person.token) as line:
        sent = line.submit(engine, kind, arguments, reason=reason, idempotency_key=key, traceparent=new_traceparent())
    return str(sent["id"])


def inspect(person: Person, engine: str, prefix_id: str) -> str:
    """Ask an engine for one prefix's leases and generations as they are now; the command's id."""
    with client(person.token) as line:
        sent = line.submit(
            engine,
            "inspect",
            {"prefix_id": prefix_id},
            reason="looked at in the dashboard",
            expires_seconds=ASK_SECONDS,
            traceparent=new_traceparent(),
        )
    return str(sent["id"])


def submit_batch(
    person: Person,
    kind: str,
    arguments: Mapping[str, Any],
    selected: Mapping[str, Mapping[str, int]],
    group: str | None,
    reason: str,
    key: str,
) -> str:
    """Send a command to every engine for exactly what its preview selected; the batch's id."""
    with client(person.token) as line:
        sent = line.submit_batch(
            kind,
            arguments,
            reason=reason,
            group=group,
            selected=selected,
            idempotency_key=key,
            traceparent=new_traceparent(),
        )
    return str(sent["batch_id"])


def batch(person: Person, batch_id: str) -> dict[str, Any]:
    """The commands of a batch as they are now."""
    with client(person.token, timeout_seconds=LOOK_SECONDS) as line:
        return line.batch(batch_id)


def cancel_batch(person: Person, batch_id: str, reason: str) -> None:
    """Stop every command of a batch that is not over."""
    with client(person.token) as line:
        line.cancel_batch(batch_id, reason=reason)


def cancel(person: Person, command_id: str, reason: str) -> None:
    """Stop a command that no engine has taken yet."""
    with client(person.token) as line:
        line.cancel(command_id, reason=reason)


def set_desired(person: Person, whose: Whose, changes: Mapping[str, Any], reason: str, expect_revision: int) -> int:
    """Change desired state of an engine, a group or all, unless it moved on since `expect_revision`: a new revision."""
    with client(person.token) as line:
        said = line.set_desired(
            changes,
            reason=reason,
            engine=whose.engine,
            group=whose.group,
            expect_revision=expect_revision,
            traceparent=new_traceparent(),
        )
    return int(said["revision"])


def try_desired(
    person: Person,
    whose: Whose,
    *,
    changes: Mapping[str, Any] | None = None,
    revision: int | None = None,
    ask: bool = False,
) -> dict[str, Any]:
    """What a change, or a rollback, would write and evict where; `ask`: the engines themselves are asked too."""
    with client(person.token) as line:
        return line.try_desired(changes=changes, revision=revision, engine=whose.engine, group=whose.group, ask=ask)


def rollback(person: Person, revision: int, reason: str) -> int:
    """Make an earlier revision's document the newest. The new revision."""
    with client(person.token) as line:
        return int(line.rollback(revision, reason=reason)["revision"])


def run_policy(person: Person, name: str, reason: str, *, dry_run: bool) -> list[dict[str, Any]]:
    """Run a policy now and return its decisions."""
    with client(person.token, timeout_seconds=30.0) as line:
        return list(line.run_policy(name, reason=reason, dry_run=dry_run)["runs"])


def change_policy(person: Person, name: str, reason: str, **changes: Any) -> None:
    """Pause a policy (`paused`, `paused_until`), or change its `parameters`, times or scope."""
    with client(person.token) as line:
        line.change_policy(name, reason=reason, **changes)


def silence(person: Person, matchers: Mapping[str, str], until: dt.datetime, reason: str) -> None:
    """Tell nobody of what matches until then."""
    with client(person.token) as line:
        line.silence(matchers, until=until.isoformat(), reason=reason)


def unsilence(person: Person, silence_id: int, reason: str) -> None:
    """End a silence now."""
    with client(person.token) as line:
        line.unsilence(silence_id, reason=reason)


def add_receiver(person: Person, name: str, url: str, reason: str, **wanted: Any) -> None:
    """Tell a webhook of alerts: `secret`, `least_severity`. Admins only."""
    with client(person.token) as line:
        line.add_receiver(name, url, reason=reason, **wanted)


def change_receiver(person: Person, name: str, reason: str, **changes: Any) -> None:
    """Change a receiver's `enabled` or `least_severity`. Admins only."""
    with client(person.token) as line:
        line.change_receiver(name, reason=reason, **changes)


def remove_receiver(person: Person, name: str, reason: str) -> None:
    """Tell it nothing more. Admins only."""
    with client(person.token) as line:
        line.remove_receiver(name, reason=reason)


def preview_batch(
    person: Person, kind: str, arguments: Mapping[str, Any], selector: Mapping[str, Any], group: str | None
) -> dict[str, Any]:
    """The blast radius of a command on whatever is selected, engine by engine."""
    with client(person.token, timeout_seconds=30.0) as line:
        return line.preview_batch(kind, arguments, group=group, selector=selector)


def acknowledge(person: Person, alert_id: int, reason: str) -> None:
    """Say that somebody looks after an alert."""
    with client(person.token) as line:
        line.acknowledge(alert_id, reason=reason)
