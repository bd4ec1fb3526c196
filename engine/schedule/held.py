"""What is held now, in total and by namespace: what turns the pages of a curve into prefixes and bytes."""

from __future__ import annotations

from typing import Any

from engine.memory.holding import Tier
from engine.schedule.ledger import Ledger

Row = dict[str, int]


def held(ledger: Ledger) -> dict[str, Any]:
    """`total` and `namespaces`: prefixes, pages (of all tiers, each once), and pages and bytes on the GPU; `tiers`: the
    bytes each tier may hold, its cap where that is smaller.

    Takes the lock only to copy the list of prefixes: what moves meanwhile makes no difference to an average.
    """
    with ledger.lock:
        nodes = list(ledger.nodes.values())
        tiers, caps = ledger.tiers, ledger.caps
        sizes = {
            str(Tier.GPU): (tiers.gpu.total_bytes, caps.gpu_bytes),
            str(Tier.HOST): (tiers.host.total_bytes if tiers.host else 0, caps.host_bytes),
            str(Tier.DISK): (tiers.disk.quota_bytes if tiers.disk else 0, caps.disk_bytes),
        }
    total, namespaces = _row(), dict[str, Row]()
    for node in nodes:
        record = node.record
        for row in (total, namespaces.setdefault(record.namespace, _row())):
            row["prefixes"] += 1
            row["pages"] += record.n_pages
            if record.gpu_bytes:
                row["gpu_pages"] += record.n_pages
                row["gpu_bytes"] += record.gpu_bytes
    may_hold = {tier: size if cap is None else min(size, cap) for tier, (size, cap) in sizes.items() if size}
    return {"total": total, "namespaces": namespaces, "tiers": may_hold}


def _row() -> Row:
    return {"prefixes": 0, "pages": 0, "gpu_pages": 0, "gpu_bytes": 0}
