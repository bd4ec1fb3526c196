"""The proof that the books balance: every invariant looked at again from the holdings up. Reads only."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from engine.consistency.orders import TailsFirst
from engine.consistency.prefix import PrefixRecord
from engine.consistency.state import State
from engine.consistency.stretch import Proof
from engine.memory.arena import Slots
from engine.memory.holding import Holding, Tier
from engine.model.objects import BOUNDARY_KINDS, ObjectKind
from engine.schedule.ledger import Ledger, PrefixNode


def check(ledger: Ledger, prove: Callable[[list[PrefixRecord]], Proof]) -> list[str]:
    """Every broken invariant, in words; an empty list is a clean engine.

    Every tier balances (free + live = total), every used slot belongs to exactly one holding or is on its way to one
    (schedule/underway.py), every file is used or being written, states agree with where objects are, leases are counted
    right, versions are at least 1, orders have who has bytes, proofs of stretches hold when `prove` makes them again.
    Each locked step leaves it so: whatever runs, there is no moment to wait for.
    """
    with ledger.lock:
        found = list(ledger.tiers.gpu.violations())
        if ledger.tiers.host is not None:
            found += ledger.tiers.host.violations()
        nodes = list(ledger.index.walk())
        found += _check_slots(ledger, nodes, Tier.GPU)
        found += _check_slots(ledger, nodes, Tier.HOST)
        found += _check_disk(ledger, nodes)
        found += _check_states(ledger, nodes)
        found += _check_leases(ledger, nodes)
        found += _check_namespaces(ledger, nodes)
        found += _check_stretches(ledger, nodes, prove)
        for tier, order in ledger.orders.items():
            found += [f"order of {tier}: {line}" for line in order.violations()]
            found += _check_order(nodes, tier, order)
        found += _check_order_of_checkpoints(ledger, nodes)
        found += ledger.pins.violations(node.record for node in nodes)
        if len(nodes) != len(ledger.nodes):
            found.append(f"index: {len(nodes)} nodes in the tree, {len(ledger.nodes)} by id")
        return found


def _holdings(nodes: list[PrefixNode]) -> list[Holding]:
    return [h for node in nodes for h in node.record.holdings()]


def _check_slots(ledger: Ledger, nodes: list[PrefixNode], tier: Tier) -> list[str]:
    arena = ledger.tiers.gpu if tier is Tier.GPU else ledger.tiers.host
    if arena is None:
        return []
    owned: dict[str, list[int]] = {}
    for holding in _holdings(nodes):
        copy = holding.gpu if tier is Tier.GPU else holding.host
        if copy is not None:
            owned.setdefault(copy.page_class, []).extend(copy.slots.tolist())
            if len(copy.slots) != holding.n_pages:
                return [f"{tier}: a holding of {holding.n_pages} pages has {len(copy.slots)} slots"]
    coming: dict[str, int] = {}
    for page_class, on_their_way in ledger.underway.of(tier):
        owned.setdefault(page_class, []).extend(on_their_way.tolist())
        coming[page_class] = coming.get(page_class, 0) + len(on_their_way)
    found = []
    for name, usage in arena.usage().items():
        slots = owned.get(name, [])
        if len(set(slots)) != len(slots):
            found.append(f"{tier}: class {name}: a slot belongs to two objects")
        if len(slots) != usage.used_slots:
            n = coming.get(name, 0)
            found.append(
                f"{tier}: class {name}: {usage.used_slots} slots are used, objects own {len(slots) - n}, {n} are on "
                "their way"
            )
    return found


def _check_disk(ledger: Ledger, nodes: list[PrefixNode]) -> list[str]:
    disk = ledger.tiers.disk
    if disk is None:
        return []
    live: dict[str, int] = {}
    for holding in _holdings(nodes):
        if holding.disk is not None:
            live[holding.disk.file.name] = live.get(holding.disk.file.name, 0) + holding.disk.n_pages
    found = disk.violations(ledger.tiers.sweeper.names, ledger.underway.disk_bytes)
    for name, file in disk.files.items():
        if live.get(name, 0) != file.live_pages:
            found.append(f"disk: {name} counts {file.live_pages} live pages, prefixes refer to {live.get(name, 0)}")
    if missing := live.keys() - disk.files.keys():
        found.append(f"disk: prefixes refer to {len(missing)} files that are not in the books, e.g. {min(missing)}")
    return found


def _check_states(ledger: Ledger, nodes: list[PrefixNode]) -> list[str]:
    found = []
    counted: dict[State, int] = dict.fromkeys(State, 0)
    for node in nodes:
        record = node.record
        counted[record.state] += 1
        if record.version < 1 or ledger.nodes.get(record.prefix_id) is not node:
            found.append(f"prefix {record.prefix_id}: version {record.version}, or not found by its id")
        if (
            record.state in (State.FULL, State.COMPRESSED, State.PARTIAL_OFFLOAD)
            and record.state is not record.natural_state
        ):
            found.append(f"prefix {record.prefix_id}: state {record.state}, its objects say {record.natural_state}")
        if record.state is State.FULL_RESTORE and not record.busy:
            found.append(f"prefix {record.prefix_id}: FULL_RESTORE, but no restore is in flight")
        if record.first_page != (node.parent.last_page if node.parent else 0):
            found.append(f"prefix {record.prefix_id}: begins at page {record.first_page}, not where its parent ends")
    for state, n in counted.items():
        if state is not State.EVICTED and ledger.states[state] != n:
            found.append(f"{n} prefixes are {state}, {ledger.states[state]} are counted")
    return found


def _check_leases(ledger: Ledger, nodes: list[PrefixNode]) -> list[str]:
    pins: dict[int, int] = {}
    for lease in ledger.leases.live():
        node = lease.node
        while node is not None and node.parent is not None:
            pins[id(node)] = pins.get(id(node), 0) + 1
            node = node.parent
    # Commits and restores in flight pin too, so more is possible while work runs; fewer never is.
    short = [n.record.prefix_id for n in nodes if n.record.leases < pins.get(id(n), 0)]
    return [f"{len(short)} prefixes count fewer leases than run through them, e.g. {short[0]}"] if short else []


def _check_stretches(
    ledger: Ledger, nodes: list[PrefixNode], prove: Callable[[list[PrefixRecord]], Proof]
) -> list[str]:
    """Each is a piece of one path, and what is known of it is what looking at all of it again says."""
    found = []
    for stretch in {id(s): s for node in nodes if (s := node.stretch) is not None}.values():
        name = f"stretch at prefix {stretch.nodes[0].record.prefix_id}"
        path = all(lower.parent is upper for upper, lower in pairwise(stretch.nodes))
        if not path or stretch.edge != b"".join(node.edge for node in stretch.nodes):
            found.append(f"{name}: its {len(stretch.nodes)} prefixes are no piece of a path, or it has other tokens")
        if any(node.stretch is not stretch or node.record.stretch is not stretch for node in stretch.nodes):
            found.append(f"{name}: a prefix of it is of another stretch")
        proof, again = stretch.proof, prove([node.record for node in stretch.nodes])
        if proof is None:
            continue
        if (proof.holds, proof.odd_pages) != (again.holds, again.odd_pages):
            found.append(f"{name}: proven {proof.holds}, its prefixes say {again.holds}")
        for kind, bound in (proof.bounds or {}).items():
            slots = [int(slot) for node in stretch.nodes for slot in _slots_of(node, kind)]
            if slots != bound.pointer.slots.tolist() or not ledger.tiers.gpu.is_current(bound.pointer):
                found.append(f"{name}: its pointer to {kind} is not to where its prefixes are")
    return found


def _slots_of(node: PrefixNode, kind: ObjectKind) -> Slots | tuple[()]:
    copy = node.record.spans[kind].gpu if kind in node.record.spans else None
    return () if copy is None else copy.slots


def _check_order(nodes: list[PrefixNode], tier: Tier, order: TailsFirst[PrefixNode]) -> list[str]:
    held = {id(node) for node in nodes if node.record.held_bytes(tier)}
    wrong = [node.record.prefix_id for node in nodes if (node in order) != (id(node) in held)]
    if not wrong and len(order) == len(held):
        return []
    return [f"order of {tier}: it has {len(order)} prefixes, {len(held)} have bytes there; e.g. {wrong[:1]}"]


def _check_order_of_checkpoints(ledger: Ledger, nodes: list[PrefixNode]) -> list[str]:
    """One that is not in it can never leave for others, and holds its part of their budget for ever."""
    held = {(node, key) for node in nodes for key, c in node.record.checkpoints.items() if c.gpu_bytes}
    order = ledger.checkpoints.order
    if len(order) == len(held) and all(key in order for key in held):
        return []
    missing = sum(key not in order for key in held)
    return [f"order of checkpoints: it has {len(order)}, {len(held)} have GPU bytes; {missing} of those are not in it"]


def _check_namespaces(ledger: Ledger, nodes: list[PrefixNode]) -> list[str]:
    """The books by namespace, and of checkpoints, against what prefixes hold. Commits on their way are booked too, so
    more is possible."""
    held: dict[str, list[int]] = {}
    found = []
    for node in nodes:
        record = node.record
        row = held.setdefault(record.namespace, [0, 0])
        row[0], row[1] = row[0] + record.gpu_bytes, row[1] + 1
        n_bytes = record.held_bytes(Tier.GPU)
        if record.gpu_bytes != n_bytes + record.arriving_bytes:
            found.append(f"prefix {record.prefix_id}: {record.gpu_bytes} GPU bytes are booked, it holds {n_bytes}")
    books = ledger.namespaces
    for name in {*held, *books.gpu_bytes, *books.prefixes}:
        n_bytes, n = held.get(name, [0, 0])
        if books.gpu_bytes.get(name, 0) < n_bytes or books.prefixes.get(name, 0) < n:
            found.append(f"namespace {name!r}: {n_bytes} bytes in {n} prefixes are held, fewer are in the books")
    blocks = [b for node in nodes for c in node.record.checkpoints.values() for b in c.blocks.values()]
    n_bytes = sum(block.gpu.total_bytes for block in blocks if block.gpu is not None)
    if ledger.checkpoints.gpu_bytes != n_bytes:
        found.append(f"checkpoints: {ledger.checkpoints.gpu_bytes} GPU bytes in the books, {n_bytes} are held")
    sizes = ledger.tiers.gpu
    coming = sum(len(s) * sizes.slot_bytes(c) for c, s in ledger.underway.of(Tier.GPU) if c in BOUNDARY_KINDS)
    if (booked := ledger.underway.checkpoint_bytes) != coming:
        found.append(f"checkpoints: {booked} GPU bytes in the books are on their way, {coming} are in somebody's hand")
    if books.total_bytes != sum(books.gpu_bytes.values()):
        found.append(f"namespaces: {books.total_bytes} bytes in all, {sum(books.gpu_bytes.values())} by name")
    return found
