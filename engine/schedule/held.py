"""What is held now, in total and by namespace: what turns the pages of a curve into prefixes and bytes."""

from __future__ import annotations

from typing import Any

from engine.memory.holding import Tier
from engine.schedule.ledger import Ledger

Row = dict[str, int]


def held(ledger: Ledger) -> dict[str, Any]:
    """`total` and `namespaces`: prefixes, pages (of all tiers, each once), and pages and bytes on the GPU; `tiers`: the
    bytes of each; `caps`: those in force, of namespaces by name.

    Takes the lock only to copy the list of prefixes: what moves meanwhile makes no difference to an average.
    """
    with ledger.lock:
        nodes = list(ledger.nodes.values())
        tiers, caps = ledger.tiers, ledger.caps
        sizes = {
            str(Tier.GPU): tiers.gpu.total_bytes,
            str(Tier.HOST): tiers.host.total_bytes if tiers.host else 0,
            str(Tier.DISK): tiers.disk.quota_bytes if tiers.disk else 0,
        }
        shares = {name: cap.document for name, cap in ledger.namespaces.shares.caps.items()}
    total, namespaces = _row(), dict[str, Row]()
    for node in nodes:
        record = node.record
        for row in (total, namespaces.setdefault(record.namespace, _row())):
            row["prefixes"] += 1
            row["pages"] += record.n_pages
            if record.gpu_bytes:
                row["gpu_pages"] += record.n_pages
                row["gpu_bytes"] += record.gpu_bytes
    in_force = {"namespaces": shares, "prefixes": caps.prefixes}
    in_force |= {"gpu_bytes": caps.gpu_bytes, "host_bytes": caps.host_bytes, "disk_bytes": caps.disk_bytes}
    return {"total": total, "namespaces": namespaces, "tiers": sizes, "caps": in_force}


def _row() -> Row:
    return {"prefixes": 0, "pages": 0, "gpu_pages": 0, "gpu_bytes": 0}
