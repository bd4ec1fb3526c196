"""Long paths in few steps: what is known of a whole stretch of prefixes, so that a request need not ask each of them.

A conversation of ten thousand turns is a path of ten thousand prefixes. The index gathers consecutive ones to stretches
(index/node.py); here is what hangs on one. A lease that runs through all of a stretch is counted on it once. A proof
says that each of its prefixes passes whatever the validations ask of span objects; it is made by looking at all of
them (schedule/validation.py) and lasts until the ledger places one of them anew, which is in the same locked step as
whatever changes where its objects are. Guarded by the engine lock.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.consistency.prefix import PrefixRecord
from engine.index.node import Node, Stretch
from engine.memory.arena import Arena
from engine.memory.codec import NATIVE_META
from engine.memory.holding import Bound
from engine.model.objects import ObjectKind

PrefixStretch = Stretch[PrefixRecord]


@dataclass(slots=True, eq=False)
class Proof:
    """`holds`: every span object is on the GPU, native, complete and in step, of every prefix. `odd_pages` are those
    that any of them names. `bounds` are pointers to all of them with their generations, made when first asked for."""

    holds: bool
    odd_pages: frozenset[int]
    bounds: dict[ObjectKind, Bound] | None = None


def joined(node: Node[PrefixRecord]) -> None:
    """The records of a stretch that was gathered, or that a split made longer, know it."""
    if (stretch := node.stretch) is not None:
        stretch.proof = None
        for each in stretch.nodes:
            each.record.stretch = stretch


def dissolve(node: Node[PrefixRecord]) -> None:
    """Before a prefix leaves the tree: what was counted on its stretch is counted on each again."""
    if (stretch := node.stretch) is not None:
        for each in stretch.nodes:
            each.record.own_leases += stretch.leases
            each.record.stretch = None


def bounds_of(stretch: PrefixStretch, gpu: Arena) -> dict[ObjectKind, Bound]:
    """One pointer for each object kind of a stretch whose proof holds."""
    proof: Proof = stretch.proof
    if proof.bounds is None:
        proof.bounds = {}
        for kind in stretch.nodes[0].record.spans:
            copies = [copy for node in stretch.nodes if (copy := node.record.spans[kind].gpu) is not None]
            slots = np.concatenate([copy.slots for copy in copies])
            sums = [copy.sums for copy in copies if copy.sums is not None]
            proven = np.concatenate(sums) if len(sums) == len(copies) else None
            proof.bounds[kind] = Bound(gpu.point(copies[0].page_class, slots), NATIVE_META, proven)
    return proof.bounds
