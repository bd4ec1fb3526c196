"""What would leave if other limits were set now. Chooses as `room.py` and `leaving.py` do, and changes nothing.

What can be said exactly: who is evicted by caps on prefixes, and who leaves the GPU by caps on bytes, under `lru` and
without shares of namespaces. What tiers below then do with what comes down depends on page classes and on whether a
copy succeeds, so those figures are estimates, and say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any

from engine.consistency.admission import Caps
from engine.consistency.eviction import Candidate, EvictionRule
from engine.consistency.namespaces import NamespaceCap
from engine.memory.holding import Tier
from engine.schedule.ledger import Ledger, PrefixNode

MOST_NAMED = 20


@dataclass(slots=True)
class _Shadow:
    """The tree as it would be: who is gone, who is off the GPU, what went down."""

    gone: set[PrefixNode] = field(default_factory=set)
    off_gpu: set[PrefixNode] = field(default_factory=set)
    down_bytes: int = 0
    short: list[str] = field(default_factory=list)
    guesses: list[str] = field(default_factory=list)


class Foresight:
    """One look ahead. Made and used under the engine lock."""

    def __init__(self, ledger: Ledger, caps: Caps, namespaces: dict[str, NamespaceCap], rule: EvictionRule) -> None:
        self._ledger = ledger
        self._caps = caps
        self._namespaces = namespaces
        self._rule = rule
        self._then = _Shadow()
        tiers = ledger.tiers
        self._has_below = tiers.materialise and (tiers.host is not None or tiers.disk is not None)

    def look(self) -> dict[str, Any]:
        """`{evicted, leave_gpu, bytes_by_tier, ..., certainty, why}`; see docs/reference/wire.md, section 3."""
        ledger, then = self._ledger, self._then
        held = list(ledger.nodes.values())
        if self._caps.prefixes is not None:
            self._evict_leaves(len(held) - self._caps.prefixes, lambda _: True, "cap_prefixes")
        if self._caps.gpu_bytes is not None:
            freed = sum(node.record.gpu_bytes for node in then.gone)
            self._free_gpu(ledger.tiers.gpu.live_bytes - freed - self._caps.gpu_bytes, lambda _: True, "cap_gpu_bytes")
        for name, cap in self._namespaces.items():
            self._keep_namespace(name, cap)
        self._go_down()
        if self._rule.sample > 1:
            then.guesses.append(f"{self._rule.name} chooses anew with every request")
        return self._said()

    def _keep_namespace(self, name: str, cap: NamespaceCap) -> None:
        then = self._then

        def own(node: PrefixNode) -> bool:
            return node.record.namespace == name

        mine = [node for node in self._ledger.nodes.values() if own(node) and node not in then.gone]
        if cap.max_prefixes is not None:
            self._evict_leaves(len(mine) - cap.max_prefixes, own, f"max_prefixes of {name}")
        if cap.max_bytes is not None:
            on_gpu = (node for node in mine if node not in then.gone and node not in then.off_gpu)
            n_bytes = sum(node.record.gpu_bytes for node in on_gpu)
            self._free_gpu(n_bytes - cap.max_bytes, own, f"max_bytes of {name}")

    def _evict_leaves(self, n: int, among: Callable[[PrefixNode], bool], limit: str) -> None:
        for node in self._leaves(among, (Tier.DISK, Tier.HOST, Tier.GPU)):
            if n <= 0:
                return
            self._then.gone.add(node)
            n -= 1
        if n > 0:
            self._then.short.append(f"{limit}: {n} more prefixes, but they are leased, pinned or busy")

    def _free_gpu(self, n_bytes: int, among: Callable[[PrefixNode], bool], limit: str) -> None:
        for node in self._leaves(among, (Tier.GPU,), parents_too=self._has_below):
            if n_bytes <= 0:
                return
            n_bytes -= node.record.gpu_bytes
            if self._has_below and not node.record.approximate:
                self._then.off_gpu.add(node)
                missing = (h for h in node.record.holdings() if h.gpu is not None and not h.below)
                self._then.down_bytes += sum(h.gpu.total_bytes for h in missing if h.gpu is not None)
            else:
                self._then.gone.add(node)
        if n_bytes > 0:
            self._then.short.append(f"{limit}: {n_bytes:,} more bytes, but they are leased, pinned or busy")

    def _leaves(
        self, among: Callable[[PrefixNode], bool], tiers: tuple[Tier, ...], *, parents_too: bool = False
    ) -> Iterable[PrefixNode]:
        """Who may leave, in the order in which they would: leaves before parents, of the first tier that has any."""
        ledger, then = self._ledger, self._then
        ranks = {tier: rank for rank, tier in enumerate(tiers)}

        def key(node: PrefixNode) -> tuple[int, int] | None:
            for tier in tiers:
                if node in ledger.orders[tier]:
                    return ranks[tier], ledger.orders[tier].touched(node)
            return None

        def may_go(node: PrefixNode) -> bool:
            if node in then.gone or node in then.off_gpu or not among(node) or not ledger.may_leave(node):
                return False
            if parents_too and not node.record.approximate:
                return True
            return all(child in then.gone for child in node.children.values())

        heap: list[tuple[int, int, int, PrefixNode]] = []
        for i, node in enumerate(ledger.nodes.values()):
            if may_go(node) and (found := key(node)):
                heap.append((*found, i, node))
        heapify(heap)
        serial = len(ledger.nodes)
        while heap:
            node = self._next(heap)
            yield node
            parent = node.parent
            if parent is None or parent.parent is None or parents_too or not may_go(parent):
                continue
            if found := key(parent):
                serial += 1
                heappush(heap, (*found, serial, parent))

    def _next(self, heap: list[tuple[int, int, int, PrefixNode]]) -> PrefixNode:
        if self._rule.sample == 1:
            return heappop(heap)[3]
        seen = [heappop(heap) for _ in range(min(self._rule.sample, len(heap)))]
        facts = [_facts(touched, node) for _, touched, _, node in seen]
        chosen = seen.pop(self._rule.choose(facts))
        for row in seen:
            heappush(heap, row)
        return chosen[3]

    def _go_down(self) -> None:
        """What comes down may push others further down, and off the disk."""
        ledger, then = self._ledger, self._then
        host, disk = ledger.tiers.host, ledger.tiers.disk
        down = then.down_bytes
        if host is not None:
            limit = _limit(host.total_bytes, self._caps.host_bytes)
            gone = sum(node.record.held_bytes(Tier.HOST) for node in then.gone)
            down = max(0, host.live_bytes - gone + down - limit)
            if down and disk is None:
                then.guesses.append("what the host cannot take is evicted")
                self._evict_bytes(down, Tier.HOST)
                return
        if disk is not None:
            limit = _limit(disk.quota_bytes, self._caps.disk_bytes)
            gone = sum(node.record.held_bytes(Tier.DISK) for node in then.gone)
            over = disk.used_bytes - gone + down - limit
            if over > 0:
                then.guesses.append("what the disk cannot take is evicted")
                self._evict_bytes(over, Tier.DISK)
        if then.down_bytes:
            then.guesses.append("a copy to a tier below may find no room for its page class, and is evicted then")

    def _evict_bytes(self, n_bytes: int, tier: Tier) -> None:
        for node in self._leaves(lambda _: True, (tier,)):
            if n_bytes <= 0:
                return
            n_bytes -= node.record.held_bytes(tier)
            self._then.gone.add(node)

    def _said(self) -> dict[str, Any]:
        then = self._then
        off = then.off_gpu - then.gone
        by_tier = {str(tier): sum(node.record.held_bytes(tier) for node in then.gone) for tier in Tier}
        own_tokens = sum(node.record.n_pages * node.record.page_tokens for node in then.gone)
        return {
            "evicted": len(then.gone),
            "evicted_tokens": own_tokens,
            "evicted_bytes_by_tier": by_tier,
            "leave_gpu": len(off),
            "leave_gpu_bytes": sum(node.record.gpu_bytes for node in off),
            "tokens_served": sum(node.record.tokens_served for node in then.gone | off),
            "first_evicted": [node.record.prefix_id for node in list(then.gone)[:MOST_NAMED]],
            "cannot_keep": then.short,
            "certainty": "estimate" if then.guesses else "exact",
            "why": "; ".join(dict.fromkeys(then.guesses)) or "the engine's own order, as it was at this moment",
        }


def _limit(total_bytes: int, cap_bytes: int | None) -> int:
    return total_bytes if cap_bytes is None else min(total_bytes, cap_bytes)


def _facts(touched: int, node: PrefixNode) -> Candidate:
    record = node.record
    return Candidate(touched, record.first_page * record.page_tokens, record.tokens, record.gpu_bytes)
