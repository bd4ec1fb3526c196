"""Labels of prefixes: names that operators give, kept by prefix id over evictions, restarts and engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import delete
from sqlalchemy.orm import Session

from controlplane.auth import Role
from controlplane.errors import BadRequest, Conflict
from controlplane.steering.command_kinds import PREFIX_ID
from controlplane.steering.deed import Deed
from controlplane.steering.hosts import MOST_LABELS, check_labels
from controlplane.store.models import PrefixLabel
from controlplane.store.queries_prefixes import labels_of
from controlplane.store.upsert import replace

MOST_AT_ONCE = 1000


def label(
    session: Session, deed: Deed, prefix_ids: Sequence[str], labels: Mapping[str, str | None]
) -> dict[str, dict[str, str]]:
    """Set labels on prefixes (None: take one away), whether an engine holds them now or not -> prefix -> its labels.

    Raises Forbidden, BadRequest, and Conflict where a prefix would have more than MOST_LABELS.
    """
    deed.must_be(Role.OPERATOR)
    check_labels(labels)
    if not labels or not 1 <= len(prefix_ids) <= MOST_AT_ONCE:
        raise BadRequest(
            "label_nothing",
            f"{len(prefix_ids)} prefixes and {len(labels)} labels were given.",
            f"Name at least one label, and 1 to {MOST_AT_ONCE} prefixes.",
        )
    if wrong := next((prefix_id for prefix_id in prefix_ids if not PREFIX_ID.match(prefix_id)), None):
        raise BadRequest("prefix_id", f"{wrong!r} is no prefix id.", "It is 32 hex digits: `kvdeck prefixes --json`.")
    wanted = sorted(set(prefix_ids))
    before = labels_of(session, wanted)
    gone = [name for name, value in labels.items() if value is None]
    if gone:
        session.execute(delete(PrefixLabel).where(PrefixLabel.prefix_id.in_(wanted), PrefixLabel.name.in_(gone)))
    common = {"actor": deed.principal.name, "at": deed.now}
    kept = {name: value for name, value in labels.items() if value is not None}
    rows = [
        {"prefix_id": key, "name": name, "value": value, **common} for key in wanted for name, value in kept.items()
    ]
    replace(session, PrefixLabel, rows, ("prefix_id", "name"))
    after = labels_of(session, wanted)
    if full := next((key for key, found in after.items() if len(found) > MOST_LABELS), None):
        raise Conflict("labels_many", f"Prefix {full} would have {len(after[full])} labels.", "Take some away first.")
    for prefix_id in wanted:
        if before.get(prefix_id, {}) != after.get(prefix_id, {}):
            deed.record(
                session,
                "label",
                prefix_id,
                before={"labels": before.get(prefix_id, {})},
                after={"labels": after.get(prefix_id, {})},
            )
    return {prefix_id: after.get(prefix_id, {}) for prefix_id in wanted}
