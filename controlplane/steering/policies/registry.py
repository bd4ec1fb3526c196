"""The standing policies in the store: what a fresh one starts with, and how people create, change and remove them."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from controlplane.auth import Role
from controlplane.errors import BadRequest, Conflict, NotFound
from controlplane.steering.deed import Deed
from controlplane.steering.policies.kinds import (
    CHOOSE_PREFIXES,
    DEFAULT_NAMES,
    DEFAULTS,
    OF_THE_STORE,
    Standing,
    read_rule,
)
from controlplane.steering.policies.scope import Scope, read_scope
from controlplane.steering.policies.when import When, check_when, cron_trigger
from controlplane.store.models import Policy, PolicyRefusal

NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
RESERVED = frozenset({"runs", "kinds"})  # what follows /v1/policies/ and is no policy
MOST_POLICIES = 200
LONGEST_PAUSE = dt.timedelta(days=31)


def seed(session: Session, now: dt.datetime) -> list[str]:
    """Adds the default policies that are not there yet; what people changed stays. Returns the names added."""
    added = []
    for standing in DEFAULTS:
        if session.get(Policy, standing.name) is None:
            session.add(
                Policy(
                    name=standing.name,
                    kind=standing.kind,
                    parameters=asdict(standing.rule),
                    scope=standing.scope.as_json(),
                    paused=standing.paused,
                    memory={},
                    changed_at=now,
                    **asdict(standing.when),
                )
            )
            added.append(standing.name)
    return added


def standing_of(policy: Policy) -> Standing:
    """The row as a value. Raises BadRequest if its kind, parameters or cron expression are not usable."""
    if policy.cron is not None:
        cron_trigger(policy.cron, policy.time_zone)
    return Standing(
        name=policy.name,
        kind=policy.kind,
        rule=read_rule(policy.kind, policy.parameters),
        when=When(every_seconds=policy.every_seconds, cron=policy.cron, time_zone=policy.time_zone),
        scope=Scope(**policy.scope),
        paused=policy.paused,
        paused_until=policy.paused_until,
    )


def find(session: Session, name: str, *, lock: bool = False) -> Policy:
    """The policy's row; `lock`: no other run changes its memory until this transaction ends. Raises NotFound."""
    policy = session.get(Policy, name, with_for_update=True if lock else None)
    if policy is None:
        raise NotFound("policy_unknown", f"There is no policy {name!r}.", "`kvdeck policy list` shows them.")
    return policy


def create(session: Session, deed: Deed, name: str, kind: str, wanted: Mapping[str, Any]) -> Policy:
    """Adds a policy. `wanted`: `parameters`, `every_seconds` or `cron` with `time_zone`, `scope`, `paused`. Audited.

    Raises BadRequest with the reason for whatever cannot be, Conflict for a name that is taken.
    """
    deed.must_be(Role.OPERATOR)
    if not NAME.fullmatch(name) or name in RESERVED:
        raise BadRequest(
            "policy_name",
            f"{name!r} cannot name a policy.",
            f"Use up to 63 small letters, digits and dashes, a letter first; not {' or '.join(sorted(RESERVED))}.",
        )
    rule = read_rule(kind, wanted.get("parameters") or {})
    if kind in OF_THE_STORE:
        raise Conflict(
            "policy_of_the_store", f"There is one policy of kind {kind}, as there is one store.", "Change that one."
        )
    scope = read_scope(wanted.get("scope") or {}, has_namespace=kind in CHOOSE_PREFIXES, what=kind)
    when = check_when(wanted, deed.now)
    if session.get(Policy, name) is not None:
        raise Conflict("policy_exists", f"There is a policy {name!r} already.", "Change it, or choose another name.")
    if (session.scalar(select(func.count()).select_from(Policy)) or 0) >= MOST_POLICIES:
        raise Conflict("policies_full", f"There are {MOST_POLICIES} policies.", "Remove one that is not needed.")
    policy = Policy(
        name=name,
        kind=kind,
        parameters=asdict(rule),
        scope=scope.as_json(),
        paused=bool(wanted.get("paused")),
        memory={},
        changed_at=deed.now,
        **asdict(when),
    )
    session.add(policy)
    session.flush()
    deed.record(session, "create_policy", name, after={"kind": kind, **_tunables(policy)})
    return policy


def change(session: Session, deed: Deed, name: str, changes: Mapping[str, Any]) -> Policy:
    """Pauses, resumes or tunes a policy. Audited.

    `parameters` are merged, a null among them goes back to the default; `every_seconds` and `cron` replace each other;
    `scope` is replaced; `paused` with `paused_until` ends by itself. Raises BadRequest, NotFound.
    """
    deed.must_be(Role.OPERATOR)
    policy = find(session, name, lock=True)
    before = _tunables(policy)
    if tuned := changes.get("parameters"):  # else they stand: also what this release cannot read can be paused
        merged = {**policy.parameters, **tuned}
        rule = read_rule(policy.kind, {key: value for key, value in merged.items() if value is not None})
        policy.parameters = asdict(rule)
    if "scope" in changes:
        if policy.kind in OF_THE_STORE and changes["scope"]:
            raise BadRequest("scope_invalid", f"{policy.kind} has no scope: there is one store.", "Leave it out.")
        has_namespace = policy.kind in CHOOSE_PREFIXES
        policy.scope = read_scope(changes["scope"] or {}, has_namespace=has_namespace, what=policy.kind).as_json()
    when = check_when(_wished_when(policy, changes), deed.now)
    policy.every_seconds, policy.cron, policy.time_zone = when.every_seconds, when.cron, when.time_zone
    if "paused" in changes or "paused_until" in changes:
        policy.paused_until = _pause_end(changes, deed.now)
        policy.paused = bool(changes.get("paused", policy.paused_until is not None))
    policy.changed_at = deed.now
    deed.record(session, "change_policy", name, before=before, after=_tunables(policy))
    return policy


def remove(session: Session, deed: Deed, name: str) -> None:
    """Removes a policy that somebody created; its runs stay. Raises Conflict for a default one, NotFound."""
    deed.must_be(Role.OPERATOR)
    policy = find(session, name, lock=True)
    if name in DEFAULT_NAMES:
        raise Conflict("policy_default", f"{name} is one of the policies every deck has.", "Pause it instead.")
    session.execute(delete(PolicyRefusal).where(PolicyRefusal.policy == name))
    deed.record(session, "remove_policy", name, before={"kind": policy.kind, **_tunables(policy)})
    session.delete(policy)


def _wished_when(policy: Policy, changes: Mapping[str, Any]) -> dict[str, Any]:
    """A new interval replaces a cron expression and the other way round; asking for both is refused."""
    wished = {key: changes.get(key, getattr(policy, key)) for key in ("every_seconds", "cron", "time_zone")}
    if changes.get("cron") is not None and "every_seconds" not in changes:
        wished["every_seconds"] = None
    if changes.get("every_seconds") is not None and "cron" not in changes:
        wished["cron"] = None
    return wished


def _pause_end(changes: Mapping[str, Any], now: dt.datetime) -> dt.datetime | None:
    until: dt.datetime | None = changes.get("paused_until")
    if until is None:
        return None
    if changes.get("paused") is False:
        raise BadRequest("paused_until", "paused_until ends a pause, and paused is false.", "Leave one of them out.")
    if until.tzinfo is None:
        raise BadRequest("time_naive", "paused_until was given without a zone.", "Write 2026-01-31T12:00:00Z.")
    if not now < until <= now + LONGEST_PAUSE:
        raise BadRequest(
            "paused_until",
            f"paused_until must lie in the next {LONGEST_PAUSE.days} days, got {until.isoformat()}.",
            "Leave it out to pause until somebody resumes.",
        )
    return until


def _tunables(policy: Policy) -> dict[str, Any]:
    return {
        "parameters": policy.parameters,
        "every_seconds": policy.every_seconds,
        "cron": policy.cron,
        "time_zone": policy.time_zone,
        "scope": policy.scope,
        "paused": policy.paused,
        "paused_until": policy.paused_until and policy.paused_until.isoformat(),
    }
