"""What the pages show, read from the store. Owns the caches.

`st.cache_data` is shared by everybody who is signed in, so the role of the reader is part of every key: nobody is shown
what was read for somebody with more rights. Entries live a few seconds.
"""

from dashboard.data.clearing import clear
from dashboard.data.fleet import IDLE_MINUTES, engines, engines_in, findings, gaps, scope
from dashboard.data.held import damaged, prefix, prefix_families, prefixes
from dashboard.data.line import control_plane, token_still_holds
from dashboard.data.opened import store, unreadable
from dashboard.data.ranges import audit, charts, namespaces, overview, validations, why_miss
from dashboard.data.steered import (
    command,
    commands,
    degrade_threshold,
    effective,
    policies,
    policy_why,
    predictions,
    revisions,
    standing,
    whatif,
)
from dashboard.data.told import alerts, telling, undelivered

__all__ = [
    "IDLE_MINUTES",
    "alerts",
    "audit",
    "charts",
    "clear",
    "command",
    "commands",
    "control_plane",
    "damaged",
    "degrade_threshold",
    "effective",
    "engines",
    "engines_in",
    "findings",
    "gaps",
    "namespaces",
    "overview",
    "policies",
    "policy_why",
    "predictions",
    "prefix",
    "prefix_families",
    "prefixes",
    "revisions",
    "scope",
    "standing",
    "store",
    "telling",
    "token_still_holds",
    "undelivered",
    "unreadable",
    "validations",
    "whatif",
    "why_miss",
]
