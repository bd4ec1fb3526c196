"""Who leaves next: asks the orders for the oldest that may leave, the shares whose, and the eviction rule which.

Everything here is called under the engine lock, chooses and changes nothing. With no cap by namespace there is one
lane and nobody's share to respect; with `lru` the first that may leave is the one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from engine.consistency.eviction import Candidate, PrefillFlops
from engine.consistency.orders import TailsFirst
from engine.memory.holding import Tier
from engine.model.spec import ModelSpec
from engine.schedule.ledger import Ledger, PrefixNode

FRUITLESS = 64
"""After so many prefixes that had to stay, a search for room gives up: a refusal is better than a long wait."""
_LOOKED_A_SAMPLE = 16
"""A rule that wants several leaves gets what there is among so many times the number."""


class For(NamedTuple):
    """For whom room is made: a namespace (empty: nobody's), and whether only its own may leave for it."""

    namespace: str = ""
    own_only: bool = False


class Leaving:
    """Chooses; the room (room.py) applies."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._gpu = ledger.orders[Tier.GPU]

    def next_node(self, whom: For, tried: set[PrefixNode]) -> PrefixNode | None:
        """The next prefix to leave the GPU. One that was `tried` and stayed is not asked again."""
        if len(tried) > FRUITLESS:
            return None
        ledger = self._ledger
        if ledger.eviction.sample == 1 and not ledger.namespaces.capped:  # the first that may leave, of all
            free = (n for n in self._gpu.oldest(ledger.may_leave) if n not in tried and self._can_go(n))
            return next(free, None)
        above = ledger.namespaces.above()
        found: list[PrefixNode] = []
        for lane in self._lanes(self._gpu, whom):
            found += self._sample(lane, whom, tried, above)
        return self._chosen(found, self._gpu)

    def next_leaf(self, whom: For) -> PrefixNode | None:
        """The next prefix to be evicted altogether: from the lowest tier that has one."""
        ledger, above = self._ledger, self._ledger.namespaces.above()

        def may_go(node: PrefixNode) -> bool:
            return not node.children and ledger.may_leave(node) and ledger.may_give(node, whom.namespace, above)

        for tier in (Tier.DISK, Tier.HOST, Tier.GPU):
            order = ledger.orders[tier]
            lane = whom.namespace if whom.own_only else None
            if leaves := list(_first(ledger.eviction.sample, order.oldest(may_go, lane=lane))):
                return self._chosen(leaves, order)
        return None

    def next_checkpoint(self, whom: For) -> tuple[PrefixNode, str] | None:
        """The oldest checkpoint whose prefix may be changed, of whoever may give."""
        ledger, order, above = self._ledger, self._ledger.checkpoints.order, self._ledger.namespaces.above()

        def may_go(key: tuple[PrefixNode, str]) -> bool:
            node, checkpoint_id = key
            if not ledger.may_leave(node):
                return False
            n_bytes = node.record.checkpoints[checkpoint_id].gpu_bytes if above else 0
            return ledger.namespaces.may_give(node.record.namespace, n_bytes, whom.namespace, above)

        return next(order.oldest(may_go, lane=whom.namespace if whom.own_only else None), None)

    def may_still_leave(self, node: PrefixNode, whom: For) -> bool:
        """Asked again after its bytes were copied without the lock."""
        return node.parent is not None and self._ledger.may_leave(node) and self._ledger.may_give(node, whom.namespace)

    # -- how --------------------------------------------------------------------------------------------------------

    def _lanes(self, order: TailsFirst[PrefixNode], whom: For) -> tuple[str, ...]:
        return (whom.namespace,) if whom.own_only else order.lanes

    def _can_go(self, node: PrefixNode) -> bool:
        """Whether there is a way for it to leave the GPU now: below, or out of the tree."""
        if not node.children:
            return True
        if node.record.approximate:  # it has no place below the GPU
            return False
        tiers = self._ledger.tiers
        if tiers.materialise and (tiers.host is not None or tiers.disk is not None):
            return True
        return has_copies_below(node)

    def _sample(self, lane: str, whom: For, tried: set[PrefixNode], above: frozenset[str]) -> list[PrefixNode]:
        """The oldest of one lane that may leave: as many leaves as the rule wants to see, else the oldest of all."""
        ledger = self._ledger
        wanted = ledger.eviction.sample
        found: list[PrefixNode] = []
        spare: list[PrefixNode] = []
        looked = 0
        for node in self._gpu.oldest(ledger.may_leave, lane=lane):
            looked += 1
            if found and looked > wanted * _LOOKED_A_SAMPLE:
                break
            if node in tried or not self._can_go(node) or not ledger.may_give(node, whom.namespace, above):
                continue
            if wanted == 1:
                return [node]
            if any(child in self._gpu for child in node.children.values()):
                spare = spare or [node]
                continue
            found.append(node)
            if len(found) == wanted:
                break
        return found or spare

    def _chosen(self, nodes: list[PrefixNode], order: TailsFirst[PrefixNode]) -> PrefixNode | None:
        if len(nodes) < 2:
            return nodes[0] if nodes else None
        return nodes[self._ledger.eviction.choose([_facts(node, order) for node in nodes])]


def has_copies_below(node: PrefixNode) -> bool:
    """Everything it has on the GPU is also below."""
    return all(h.below or h.n_pages == 0 for h in node.record.holdings() if h.gpu is not None)


def _facts(node: PrefixNode, order: TailsFirst[PrefixNode]) -> Candidate:
    record = node.record
    first = record.first_page * record.page_tokens
    return Candidate(order.touched(node), first, record.tokens, record.gpu_bytes)


def _first(n: int, nodes: Iterable[PrefixNode]) -> Iterator[PrefixNode]:
    for i, node in enumerate(nodes, 1):
        yield node
        if i == n:
            return


def prefill_flops(spec: ModelSpec) -> PrefillFlops:
    """What prefill costs by the spec: its FLOPs a token, and the attention of each token to the history before it.

    A spec knows the width of the keys and values it keeps, not how many query heads share them: the attention counted
    is the least there can be (a product and a sum for each kept value). Without FLOPs in the spec, tokens are counted.
    """
    if not spec.flops_per_token:
        return PrefillFlops(a_token=1.0)
    a_pair = sum(2 * sum(f.width for f in part.fields) / part.ratio for _, part in spec.history_parts)
    return PrefillFlops(a_token=spec.flops_per_token, a_pair=a_pair)
