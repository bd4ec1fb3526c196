"""Commit: new pages and checkpoints become part of the tree. Bytes first, then checksums, then the index entry."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from engine.consistency.lease import Lease
from engine.consistency.prefix import CauseOf, Checkpoint, PrefixRecord
from engine.consistency.state import Cause, State
from engine.index.node import Path, node_with
from engine.index.radix import TOKEN_BYTES, Match
from engine.index.space import namespace_of
from engine.memory.holding import Holding, SlotCopy, Tier
from engine.model.objects import ObjectKind
from engine.schedule.draft import Draft, Drafts
from engine.schedule.gate import Gate
from engine.schedule.ledger import Ledger, PrefixNode
from engine.schedule.lineage import OTHER_LINEAGE, Hold, Lineage, content_of
from engine.schedule.room import Room
from engine.telemetry.ring import SpanContext

if TYPE_CHECKING:
    from engine.memory.state import NewState

CHECKPOINTS_A_PREFIX = 64
REFUSALS = {
    "shorter_than_a_page": "the tokens do not fill a page",
    "gap_before_start": "the state starts past what is held, so what lies before it is missing",
    "other_lineage": "the tree has pages of another run of these tokens, and they are leased, pinned or being copied",
    "lossy_basis": "it was computed from history that was coded with loss",
    "approximate_needs_whole_state": "it was computed on an approximate basis, and its state does not start at token 0",
    "mode_drain": "the engine is being drained: it keeps nothing new",
    "weights_changed": "the caller's model is not the one whose state is kept",
    "second_touch": "no other request has brought these pages yet, and the admission rule asks for two",
    "past_first_pages": "the admission rule keeps the first pages of a prompt only, and these are past them",
    "over_namespace_cap": "more prefixes or bytes than its namespace may hold at all",
    "over_prefix_cap": "more prefixes than the cap allows at all",
    "over_gpu_cap": "more bytes than the cap allows at all",
    "cap_held_by_leases_and_pins": "what is leased or pinned fills the cap",
    "out_of_memory": "everything that could make room is leased, pinned or cannot go lower",
}
"""Why a commit is refused; those of the admission rule also why only its beginning is kept."""
DROPS = {
    "second_touch": "the pages it follows are not kept: the admission rule asks for a second request",
    "past_first_pages": "the pages it follows are not kept: the admission rule keeps the first pages only",
    "checkpoint_budget": "the checkpoints' share of the GPU tier is leased, pinned or too small for it",
    "namespace_cap": "its namespace is at its maximum, and what it holds is leased or pinned",
    "pin_budget": "the prefix is pinned, and it would grow past what pins may hold",
    "prefix_is_full": "the prefix has as many checkpoints as one may have, and all are being read",
}
"""Why a checkpoint of a commit is not kept."""


class CommitResult(NamedTuple):
    """`outcome` is admitted or refused. `reason` says why it was refused, or why only its beginning was admitted (the
    admission rule's reason), or "ok". `new_tokens` and `checkpoints` are what was kept."""

    outcome: str
    reason: str
    new_tokens: int
    new_pages: int
    checkpoints: tuple[int, ...]
    prefix_id: str


class Publisher:
    """Turns tokens and tensors (or tokens alone) into prefixes."""

    def __init__(self, ledger: Ledger, room: Room, gate: Gate) -> None:
        self._ledger = ledger
        self._tiers = ledger.tiers
        self._room = room
        self._gate = gate
        self._drafts = Drafts(ledger, room)
        self._lineage = Lineage(ledger)
        self._page_tokens = ledger.spec.page_tokens

    def commit(
        self,
        space: str,
        tokens: bytes,
        state: NewState | None,
        checkpoints: Iterable[int],
        cause: CauseOf,
        span: SpanContext,
        lease: Lease | None = None,
    ) -> CommitResult:
        """Admit the whole pages of `tokens` and the checkpoints, or those that the admission rule lets in, or refuse
        with a reason.

        Pages that the tree already has are compared with those of `state` (lineage.py). `lease` is what the state was
        computed from; `space` is the index key (index/space.py). Raises `StateMismatch` when the tensors do not fit the
        model; nothing is kept then.
        """
        done = self._commit(space, tokens, state, checkpoints, cause, span, lease)
        if done.reason != "ok":
            self.remember_refused(space, tokens, done.reason)
        return done

    def remember_refused(self, space: str, tokens: bytes, reason: str) -> None:
        """Who asks for these tokens again is told why they are not there."""
        with self._ledger.lock:
            self._ledger.losses.refused(space, tokens, reason)

    def _commit(
        self,
        space: str,
        tokens: bytes,
        state: NewState | None,
        checkpoints: Iterable[int],
        cause: CauseOf,
        span: SpanContext,
        lease: Lease | None = None,
    ) -> CommitResult:
        n_tokens = len(tokens) // TOKEN_BYTES
        pages = n_tokens // self._page_tokens
        positions = sorted(b for b in set(checkpoints) if self._page_tokens <= b <= n_tokens)
        if not pages:
            return self.refuse("shorter_than_a_page")
        ledger = self._ledger
        start_page = state.start_tokens // self._page_tokens if state is not None else 0
        with ledger.lock:
            match = ledger.index.match(space, tokens)
            base = match.pages
            if state is not None and state.start_tokens > base * self._page_tokens:
                return self.refuse("gap_before_start")
            if not self._lineage.stands_on(lease, match, start_page):
                return self.refuse(OTHER_LINEAGE)
            stale = self._to_refresh(match, base, state)
            pages, cut = self._gate.offer(space, tokens, pages, base, lease)
            if cut:
                tokens, positions = self._cut_to(tokens, pages, positions, cut)
                if pages == base and not positions and not stale:
                    return self.refuse(cut)
            hold = Hold(match.last)
            hold.pin()
            covered = self._lineage.covered(match, start_page) if state is not None else []
            new_prefixes = self._new_prefixes(match.path, base, pages, positions)
        draft: Draft | None = None
        try:
            other = self._lineage.first_other_page(covered, state) if covered and state is not None else None
            if other is not None:
                with ledger.lock:
                    match = ledger.index.match(space, tokens)
                    if reason := self._lineage.make_way(match, other, hold, cause, span):
                        return self.refuse(reason)
                    match = ledger.index.match(space, tokens)
                    base = match.pages
                    stale = self._to_refresh(match, base, state)
                    new_prefixes = self._new_prefixes(match.path, base, pages, positions)
            draft = Draft(namespace_of(space), base, pages - base, ledger.next_content())
            draft.odd_pages = state.odd_pages if state is not None else frozenset()
            reason = self._drafts.reserve(draft, positions, stale, new_prefixes)
            if reason := reason or self._drafts.write(draft, state):
                return self.refuse(reason)
            with ledger.lock:
                done = self._publish(space, tokens, pages, draft, cause, span)
                if lease is not None and done.prefix_id:
                    lease.kept = ledger.nodes[done.prefix_id]
                return self._said_cut(done, cut)
        finally:
            if draft is not None:
                self._drafts.give_back(draft)
            with ledger.lock:
                hold.let_go()
            self._tiers.sweeper.sweep()

    def keep_caps(self) -> bool:
        """Evict down to the caps as they are now. False: leases and pins hold more than that."""
        kept = self._room.keep_caps("", 0, 0)
        self._room.keep_own_limits()
        self._room.trim_below()
        self._tiers.sweeper.sweep()
        return kept

    # -- before: cut, look ------------------------------------------------------------------------------------------

    def _cut_to(self, tokens: bytes, pages: int, positions: list[int], reason: str) -> tuple[bytes, list[int]]:
        """Tokens and checkpoints of a commit of which only `pages` pages are admitted; a checkpoint may lie in the page
        that follows them, as its tail is its own."""
        kept = [b for b in positions if b // self._page_tokens <= pages]
        self._ledger.count_dropped(reason, len(positions) - len(kept))
        return tokens[: max([pages * self._page_tokens, *kept[-1:]]) * TOKEN_BYTES], kept

    def _to_refresh(self, match: Match[PrefixRecord], base: int, state: NewState | None) -> list[PrefixNode]:
        """Prefixes on the path that are off the GPU or damaged and whose bytes the model has just computed again."""
        if state is None:
            return []
        return [
            n
            for n in match.nodes
            if n.last_page <= base
            and n.first_page * self._page_tokens >= state.start_tokens
            and not n.record.busy
            and (not n.record.resident or n.record.state is State.QUARANTINED)
        ]

    def _new_prefixes(self, path: Path[PrefixRecord], base: int, pages: int, positions: list[int]) -> int:
        """How many the tree will have more: runs of new pages between checkpoints, and upper halves of splits."""
        cuts = {b // self._page_tokens for b in positions} | {pages}
        inside = {cut for cut in cuts if cut <= base} | {base}
        splits = sum((node := node_with(path, cut)) is not None and node.first_page < cut for cut in inside)
        return sum(cut > base for cut in cuts) + splits

    # -- publication, under the lock --------------------------------------------------------------------------------

    def _publish(
        self, space: str, tokens: bytes, pages: int, draft: Draft, cause: CauseOf, span: SpanContext
    ) -> CommitResult:
        ledger, page_bytes = self._ledger, self._ledger.index.page_bytes
        match = ledger.index.match(space, tokens)
        cuts = sorted({b // self._page_tokens for b in draft.blocks} | {pages})
        # A prefix must end wherever a checkpoint or the new pages hang. Every round looks at all of them anew: while it
        # waited for a busy prefix, another commit may have made the match longer.
        while True:
            if ledger.tiers.materialise and not self._lineage.agrees(match, draft.first_page, draft.spans):
                return self.refuse(OTHER_LINEAGE)
            if not any(self._cut_at(match.path, cut, span) for cut in (*cuts, match.pages) if cut <= match.pages):
                break
            match = ledger.index.match(space, tokens)
        self._drafts.landed(draft)
        self._trim(draft, match.pages)
        self._refresh(draft, cause, span)
        fresh: list[PrefixNode] = []
        parent = match.last
        for cut in cuts:
            if cut <= match.pages:
                continue
            first = parent.last_page if parent is not None else 0
            node = ledger.append(space, parent, tokens[first * page_bytes : cut * page_bytes])
            self._hang_spans(node, draft, first)
            fresh.append(node)
            parent = node
        path = [*match.path, *fresh]
        added = self._hang_checkpoints(path, tokens, draft)
        for page in sorted({boundary // self._page_tokens for boundary in added}):
            node = self._ends_at(path, page)
            if node.record.state is not State.NEW:
                ledger.place(node)
                if not node.record.busy:
                    ledger.settle(node, cause, parent=span)  # a checkpoint computed again may have made it whole
        for node in fresh:
            ledger.place(node)
            node.record.refresh()
            after = State.APPROXIMATE if node.record.approximate else State.FULL
            ledger.move(node, after, cause, parent=span)
        self._drafts.unbook(draft)
        ledger.touch(parent, ledger.clock.monotonic_ns())
        new_pages = pages - match.pages
        ledger.counters.commits += 1
        ledger.graph.changed()
        last = parent.record.prefix_id if parent is not None else ""
        return CommitResult("admitted", "ok", new_pages * self._page_tokens, new_pages, added, last)

    def _cut_at(self, path: Path[PrefixRecord], page: int, span: SpanContext) -> bool:
        """Split the prefix that `page` falls into. True when the tree changed (or may have, while waiting)."""
        node = node_with(path, page)
        if node is None or node.first_page == page:
            return False
        if node.record.busy:
            self._ledger.settled.wait(0.05)  # its bytes are being copied; a split now would lose the copy
        else:
            self._ledger.split(node, page - node.first_page, span)
        return True

    def _ends_at(self, path: Path[PrefixRecord], page: int) -> PrefixNode:
        node = node_with(path, page - 1)
        if node is None or node.last_page != page:
            raise ValueError(f"no prefix ends at page {page}, though the path was cut there")
        return node

    def _trim(self, draft: Draft, base: int) -> None:
        """Give back pages that another commit published meanwhile."""
        surplus = min(base - draft.first_page, draft.n_pages)
        if surplus > 0:
            for kind, copy in draft.spans.items():
                self._tiers.free_slots(Tier.GPU, copy.cut(0, surplus))
                draft.spans[kind] = copy.cut(surplus, draft.n_pages)
            draft.first_page, draft.n_pages = draft.first_page + surplus, draft.n_pages - surplus

    def _hang_spans(self, node: PrefixNode, draft: Draft, first: int) -> None:
        record, parent = node.record, node.parent
        record.odd_pages = frozenset(
            page for page in draft.odd_pages if page in range(record.first_page, record.last_page)
        )
        low, high = first - draft.first_page, first - draft.first_page + node.n_pages
        before = content_of(parent.record) if parent is not None else 0
        for kind, copy in draft.spans.items():
            cut = copy.cut(low, high)
            built_from = draft.content if kind is ObjectKind.INDEXER_STATE else before
            record.spans[kind] = _holding(kind, cut, node.n_pages, draft.content, built_from)
            if cut.sums is not None:
                record.native_sums[kind] = cut.sums

    def _hang_checkpoints(self, path: Path[PrefixRecord], tokens: bytes, draft: Draft) -> tuple[int, ...]:
        added = []
        for boundary, blocks in draft.blocks.items():
            page = boundary // self._page_tokens
            node = self._ends_at(path, page)
            tail = tokens[page * self._ledger.index.page_bytes : boundary * TOKEN_BYTES]
            owner_id = node.record.prefix_id
            checkpoint_id = self._ledger.index.id_with_tail(node, tail) if tail else owner_id
            held = node.record.checkpoints.get(checkpoint_id)
            there = held is not None and (held.on_gpu or node.record.busy)  # busy: another thread copies it right now
            reason = "" if there else self._no_place_for(node, held, blocks)
            if reason:
                self._ledger.count_dropped(reason, 1)
            if there or reason:
                for copy in blocks.values():
                    self._tiers.free_slots(Tier.GPU, copy)
                if there:
                    self._ledger.checkpoints.touch(node, checkpoint_id)
                continue
            content = content_of(node.record)
            holdings = {k: _holding(k, copy, len(copy.slots), draft.content, content) for k, copy in blocks.items()}
            for holding in holdings.values():
                holding.owner_id = checkpoint_id
            self._ledger.checkpoints.add(node, Checkpoint(checkpoint_id, boundary, tail, holdings, owner_id))
            added.append(boundary)
        draft.blocks = {}
        return tuple(added)

    def _no_place_for(self, node: PrefixNode, held: Checkpoint | None, blocks: dict[ObjectKind, SlotCopy]) -> str:
        """Why a prefix takes no further checkpoint, or nothing. It keeps a bounded number, as a match looks at each:
        then the oldest that nobody reads makes place."""
        checkpoints = node.record.checkpoints
        pins = self._ledger.pins
        if len(pins) and not pins.room_for(node.record, sum(copy.total_bytes for copy in blocks.values())):
            return "pin_budget"
        if held is not None or len(checkpoints) < CHECKPOINTS_A_PREFIX:
            return ""
        leases = [lease for lease in self._ledger.leases.live() if lease.node is node]
        read = {(b.pointer.page_class, int(b.pointer.slots[0])) for lease in leases for b in lease.blocks.values()}
        for checkpoint_id, checkpoint in checkpoints.items():
            copies = [block.gpu for block in checkpoint.blocks.values() if block.gpu is not None and block.n_pages]
            if not node.record.busy and not any((c.page_class, int(c.slots[0])) in read for c in copies):
                self._ledger.checkpoints.drop(node, checkpoint_id)
                for kind in checkpoint.blocks:
                    self._ledger.counters.count_eviction(CauseOf(Cause.COMMIT), str(kind))
                return ""
        return "prefix_is_full"

    def _refresh(self, draft: Draft, cause: CauseOf, span: SpanContext) -> None:
        """Replace what was damaged or off the GPU by the bytes just computed."""
        for node, _, n_pages, copies in draft.refreshed:
            record = node.record
            if node.parent is None or record.n_pages != n_pages or record.busy or (copies and record.resident):
                for copy in copies.values():  # split, evicted or restored meanwhile
                    self._tiers.free_slots(Tier.GPU, copy)
                continue
            for kind, copy in copies.items():
                old = record.spans[kind]
                self._tiers.drop_all(old)
                # The same bytes as before: the same content, so what was built from it still is.
                built_from = content_of(record) if kind is ObjectKind.INDEXER_STATE else old.built_from
                record.spans[kind] = _holding(kind, copy, n_pages, old.content_version, built_from)
                if copy.sums is not None:
                    record.native_sums[kind] = copy.sums
            self._ledger.place(node)
            self._ledger.settle(node, cause, parent=span)
        draft.refreshed = []

    def _said_cut(self, done: CommitResult, cut: str) -> CommitResult:
        """A commit of which only the beginning was kept is counted, and says why."""
        if not cut or done.outcome != "admitted":
            return done
        self._ledger.counters.cuts[cut] = self._ledger.counters.cuts.get(cut, 0) + 1
        return done._replace(reason=cut)

    def refuse(self, reason: str) -> CommitResult:
        """A commit that is not admitted, counted by its reason."""
        with self._ledger.lock:
            self._ledger.counters.refusals[reason] = self._ledger.counters.refusals.get(reason, 0) + 1
        return CommitResult("refused", reason, 0, 0, (), "")


def _holding(kind: ObjectKind, copy: SlotCopy, n_pages: int, content: int, built_from: int) -> Holding:
    return Holding(kind=kind, n_pages=n_pages, content_version=content, built_from=built_from, gpu=copy)
