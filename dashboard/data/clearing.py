"""Forgetting what was read."""

from __future__ import annotations

from dashboard.data import fleet, held, line, opened, ranges, steered, told


def clear() -> None:
    """Forget what was read, so that the next look shows what an action just changed."""
    for cached in (
        fleet.engines,
        fleet.gaps,
        fleet.all_findings,
        held.prefix_families,
        held.prefixes,
        held.prefix,
        held.damaged,
        line.control_plane,
        opened.unreadable,
        ranges.charts,
        ranges.overview,
        ranges.why_miss,
        ranges.validations,
        ranges.audit,
        steered.revisions,
        steered.standing,
        steered.effective,
        steered.commands,
        steered.policies,
        steered.policy_why,
        steered.whatif,
        steered.predictions,
        told.alerts,
        told.telling,
        told.undelivered,
    ):
        cached.clear()
