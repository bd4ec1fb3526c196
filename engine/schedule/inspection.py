"""One prefix as the engine has it at this moment: what no span says because every request changes it.

Under the engine lock, in bounded work whatever the prefix, the tree and the number of leases; changes nothing.
"""

from __future__ import annotations

from heapq import nlargest
from typing import Any

from engine.clock import NS_PER_S
from engine.consistency.lease import Lease
from engine.consistency.prefix import PrefixRecord
from engine.index.node import Node
from engine.memory.arena import Arena
from engine.memory.holding import Bound, Holding, SlotCopy, Tier
from engine.memory.tiers import Tiers
from engine.schedule.ledger import Ledger

MOST_LEASES = 20
MOST_CHECKPOINTS = 50
MOST_STEPS = 100_000  # up from leases, in search of those that run through the prefix
MOST_SLOTS = 200_000  # of leases, compared with the arena
BOUND_COSTS_SLOTS = 100  # a pointer of one slot takes about as long to compare as one of so many more


def inspect_prefix(ledger: Ledger, prefix_id: str) -> dict[str, Any] | None:
    """State, leases and copies of one prefix (wire.md, section 3); None when the engine does not hold it."""
    node = ledger.nodes.get(prefix_id)
    if node is None:
        return None
    record, now_ns = node.record, ledger.clock.wall_ns()
    deepest = nlargest(MOST_CHECKPOINTS, record.checkpoints.values(), key=lambda checkpoint: checkpoint.boundary)
    objects = [row for holding in record.spans.values() for row in _copies(ledger.tiers, holding, None)]
    for checkpoint in deepest:
        for block in checkpoint.blocks.values():
            objects += _copies(ledger.tiers, block, checkpoint.boundary)
    return {
        "prefix_id": prefix_id,
        "namespace": record.namespace,
        "state": str(record.state),
        "version": record.version,
        "life": record.life,
        "busy": record.busy,
        "at_unix_s": now_ns / NS_PER_S,
        "pinned_until_unix_s": record.pinned_until_ns / NS_PER_S if record.pinned_until_ns > now_ns else None,
        "leases": record.leases,
        "oldest_leases": _oldest_leases(ledger, node),
        "checkpoints": len(record.checkpoints),
        "checkpoints_told": len(deepest),
        "objects": objects,
    }


def _oldest_leases(ledger: Ledger, node: Node[PrefixRecord]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    now_ns, steps, slots = ledger.clock.monotonic_ns(), MOST_STEPS, MOST_SLOTS
    wanted = min(node.record.leases, MOST_LEASES)
    for lease in ledger.leases.live() if wanted else ():  # in the order in which they were granted
        runs_through, taken = _runs_through(lease.node, node, steps)
        steps -= taken
        if runs_through:
            bounds = [*(bound for bounds in lease.spans.values() for bound in bounds), *lease.blocks.values()]
            slots -= sum(len(bound.pointer.slots) + BOUND_COSTS_SLOTS for bound in bounds)
            found.append(_lease_row(lease, now_ns, ledger.tiers.gpu, bounds if slots >= 0 else None))
        if len(found) == wanted or steps <= 0:
            break
    return found


def _runs_through(end: Node[PrefixRecord] | None, node: Node[PrefixRecord], most_steps: int) -> tuple[bool, int]:
    """Whether the path to `end` has `node`, and in how many steps that was seen. A stretch is one step: it is a
    chain, so of two nodes on it the shallower is above the other."""
    steps = 0
    while end is not None and end.last_page >= node.last_page and steps < most_steps:
        steps += 1
        if end is node or (end.stretch is not None and end.stretch is node.stretch):
            return True, steps
        end = end.parent if end.stretch is None else end.stretch.nodes[0].parent
    return False, steps + 1


def _lease_row(lease: Lease, now_ns: int, gpu: Arena, bounds: list[Bound] | None) -> dict[str, Any]:
    return {
        "lease_id": lease.lease_id,
        "age_s": (now_ns - lease.created_ns) / NS_PER_S,
        "left_s": (lease.expires_ns - now_ns) / NS_PER_S,  # below 0: past its deadline, ends at the next tick
        "usable_tokens": lease.usable_tokens,
        "current": None if bounds is None else all(gpu.is_current(bound.pointer) for bound in bounds),
    }


def _copies(tiers: Tiers, holding: Holding, boundary: int | None) -> list[dict[str, Any]]:
    """A row a tier that has it; one without a tier when none has and it should."""
    about = {"kind": str(holding.kind), "boundary": boundary, "content_version": holding.content_version}
    rows: list[dict[str, Any]] = []
    for tier, copy, arena in ((Tier.GPU, holding.gpu, tiers.gpu), (Tier.HOST, holding.host, tiers.host)):
        if copy is not None and arena is not None and len(copy.slots):
            rows.append({**about, "tier": str(tier), **_slots(copy, arena)})
    if (disk := holding.disk) is not None and disk.n_pages:
        generation = disk.file.generation
        rows.append(
            {
                **about, "tier": str(Tier.DISK), "codec": disk.meta.codec, "pages": disk.n_pages,
                "bytes": disk.total_bytes, "generation_min": generation, "generation_max": generation,
                "current": None,
            }
        )  # fmt: skip
    if not rows and holding.n_pages:
        missing = {"codec": None, "pages": 0, "bytes": 0, "generation_min": None, "generation_max": None}
        rows.append({**about, "tier": None, **missing, "current": None})
    return rows


def _slots(copy: SlotCopy, arena: Arena) -> dict[str, Any]:
    """`current`: whether the pointer that leases are given to all of it is so still; None: none was made yet."""
    generations = arena.point(copy.page_class, copy.slots).generations
    bound = copy.bound if copy.bound is not None and copy.bound.is_of(copy) else None
    return {
        "codec": copy.meta.codec,
        "pages": len(copy.slots),
        "bytes": copy.total_bytes,
        "generation_min": int(generations.min()),
        "generation_max": int(generations.max()),
        "current": None if bound is None else arena.is_current(bound.pointer),
    }
