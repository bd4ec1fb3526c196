"""A commit on its way: its slots are taken and filled before anybody else knows of them.

Bytes first, then checksums; the index entry is the publisher's (publish.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from engine.consistency.admission import refusal
from engine.consistency.prefix import CauseOf
from engine.consistency.state import Cause
from engine.errors import OutOfMemory, StateMismatch
from engine.memory.holding import SlotCopy
from engine.memory.layout import check_range, pack_block, pack_pages
from engine.model.objects import ObjectKind
from engine.schedule.ledger import Ledger, PrefixNode
from engine.schedule.room import Room

if TYPE_CHECKING:
    from engine.memory.state import NewState

_PRESSURE = CauseOf(Cause.PRESSURE, "commit")


class Refresh(NamedTuple):
    """A prefix to get fresh bytes, as it was when its slots were taken: by then it may be split or evicted."""

    node: PrefixNode
    first_page: int
    n_pages: int
    copies: dict[ObjectKind, SlotCopy]


@dataclass(slots=True, eq=False)
class Draft:
    """Slots taken for one commit, owned by it until they are published or given back."""

    namespace: str
    first_page: int
    n_pages: int
    content: int
    booked_prefixes: int = 0  # counted as its namespace's until it is published or given back
    booked_bytes: int = 0
    odd_pages: frozenset[int] = frozenset()
    spans: dict[ObjectKind, SlotCopy] = field(default_factory=dict)
    blocks: dict[int, dict[ObjectKind, SlotCopy]] = field(default_factory=dict)
    refreshed: list[Refresh] = field(default_factory=list)
    published: bool = False  # the tree owns the slots now; giving them back would free what others can read

    @property
    def copies(self) -> list[SlotCopy]:
        found = [*self.spans.values()]
        found += [copy for blocks in self.blocks.values() for copy in blocks.values()]
        return found + [copy for refresh in self.refreshed for copy in refresh.copies.values()]


class Drafts:
    """Takes the slots of commits, fills them, and gives back what was not published."""

    def __init__(self, ledger: Ledger, room: Room) -> None:
        self._ledger = ledger
        self._tiers = ledger.tiers
        self._room = room
        self._page_tokens = ledger.spec.page_tokens
        self._span_kinds = ledger.layouts.span_kinds
        self._span_page_bytes = sum(ledger.layouts.of(kind).slot_bytes for kind in self._span_kinds)
        self._boundary_kinds = ledger.layouts.boundary_kinds

    def reserve(self, draft: Draft, positions: list[int], stale: list[PrefixNode], new_prefixes: int) -> str:
        """Take every slot the commit needs; a reason when it cannot have them."""
        kinds, namespace = self._span_kinds, draft.namespace
        n_bytes = draft.n_pages * self._span_page_bytes
        if reason := refusal(self._ledger.caps, new_prefixes, n_bytes):
            return reason
        n_bytes += sum(node.n_pages for node in stale if not node.record.resident) * self._span_page_bytes
        if reason := self._ledger.namespaces.shares.refusal(namespace, new_prefixes, n_bytes):
            return reason
        if not self._room.keep_caps(namespace, new_prefixes, n_bytes):
            return "cap_held_by_leases_and_pins"
        draft.booked_prefixes, draft.booked_bytes = new_prefixes, n_bytes
        try:
            if draft.n_pages:
                for kind in kinds:
                    draft.spans[kind] = self._tiers.new_copy(
                        kind, self._room.take_gpu(str(kind), draft.n_pages, _PRESSURE, namespace=namespace)
                    )
            for node in stale:
                copies: dict[ObjectKind, SlotCopy] = {}
                # In the draft before it is filled: when the room runs out halfway, what was taken is given back.
                draft.refreshed.append(Refresh(node, node.first_page, node.n_pages, copies))
                for kind in kinds if not node.record.resident else ():
                    n_pages = draft.refreshed[-1].n_pages
                    slots = self._room.take_gpu(str(kind), n_pages, _PRESSURE, namespace=namespace)
                    copies[kind] = self._tiers.new_copy(kind, slots)
        except OutOfMemory:
            return "out_of_memory"
        for boundary in positions:
            self._reserve_blocks(draft, boundary)
        return ""

    def _reserve_blocks(self, draft: Draft, boundary: int) -> None:
        """Slots of one checkpoint; the checkpoint is left out when its budget, or its namespace, has no room."""
        empty = self._ledger.layouts.tail_is_empty(boundary)
        wanted = {k: 0 if empty and k is ObjectKind.UNCOMPRESSED_TAIL else 1 for k in self._boundary_kinds}
        if self._ledger.namespaces.capped:
            n_bytes = sum(n * self._ledger.layouts.of(kind).slot_bytes for kind, n in wanted.items())
            if not self._room.book(draft.namespace, 0, n_bytes, checkpoint=True):
                self._ledger.count_dropped("namespace_cap", 1)
                return
            draft.booked_bytes += n_bytes
        blocks: dict[ObjectKind, SlotCopy] = {}
        draft.blocks[boundary] = blocks
        try:
            for kind, n in wanted.items():
                slots = self._room.take_gpu(str(kind), n, _PRESSURE, namespace=draft.namespace)
                blocks[kind] = self._tiers.new_copy(kind, slots)
        except OutOfMemory:
            with self._ledger.lock:
                for copy in draft.blocks.pop(boundary).values():
                    self._ledger.underway.give_back(copy.slots)
            self._ledger.count_dropped("checkpoint_budget", 1)

    def write(self, draft: Draft, state: NewState | None) -> str:
        """Fill the slots, if there are bytes; a reason when it cannot. No lock: nobody else knows them yet."""
        try:
            if state is not None:
                self._fill(draft, state)
        except OutOfMemory:  # of the copy on its way; the slots are there
            return "out_of_memory"
        return ""

    def _fill(self, draft: Draft, state: NewState) -> None:
        layouts, page_tokens = self._ledger.layouts, self._page_tokens
        check_range(layouts, state, page_tokens)
        runs = [(draft.first_page, draft.n_pages, draft.spans)]
        runs += [(first_page, n, copies) for _, first_page, n, copies in draft.refreshed]
        for first, n, copies in runs:
            for kind, copy in copies.items():
                pages = range(first, first + n)
                self._tiers.put(
                    copy, pack_pages(layouts.of(kind), state.entries, state.start_tokens, pages, page_tokens)
                )
        for boundary, blocks in draft.blocks.items():
            objects = state.checkpoints.get(boundary)
            if objects is None:
                raise StateMismatch(f"checkpoint {boundary}: the state has no boundary objects for it")
            for kind, copy in blocks.items():
                if len(copy.slots):
                    layout = layouts.of(kind)
                    data = pack_block(layout, boundary, page_tokens, objects, state.entries, state.start_tokens)
                    self._tiers.put(copy, data)

    def give_back(self, draft: Draft) -> None:
        """Free every slot that was not published."""
        with self._ledger.lock:
            self.unbook(draft)
            if draft.published:
                return
            for copy in draft.copies:
                self._ledger.underway.give_back(copy.slots)
            draft.spans, draft.blocks, draft.refreshed = {}, {}, []

    def landed(self, draft: Draft) -> None:
        """The tree has its slots from this locked step on; the publisher frees what it does not want. Locked."""
        draft.published = True
        for copy in draft.copies:
            self._ledger.underway.landed(copy.slots)

    def unbook(self, draft: Draft) -> None:
        """What it was counted as having on the way is held now, or given up. Under the lock."""
        if draft.booked_bytes or draft.booked_prefixes:
            self._ledger.namespaces.book(draft.namespace, -draft.booked_prefixes, -draft.booked_bytes)
            draft.booked_prefixes = draft.booked_bytes = 0
