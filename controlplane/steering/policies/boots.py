"""Which boot of each engine a policy has seen: kept in the policy's own memory, beside what it keeps of engines."""

from __future__ import annotations

from controlplane.store.models import Policy

BOOTS = "(boots)"  # key in a policy's memory; no engine id has brackets


def of(policy: Policy, engine_id: str) -> str | None:
    """The boot that the policy last saw; None for an engine it never saw."""
    seen: str | None = policy.memory.get(BOOTS, {}).get(engine_id)
    return seen


def remember(policy: Policy, engine_id: str, boot_id: str) -> None:
    """The policy has seen this boot."""
    # New dicts: SQLAlchemy does not see changes inside a JSON value.
    policy.memory = {**policy.memory, BOOTS: {**policy.memory.get(BOOTS, {}), engine_id: boot_id}}
