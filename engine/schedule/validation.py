"""The five validations. Nothing is a hit until all of them pass or do not apply.

Each is a pure function of a `Boundary`: a position on a path with the objects found for it. They look at the holdings
themselves, or, of a long path, at proofs that somebody did and nothing has moved since (consistency/stretch.py); and
they run under the engine lock in one step with the pin.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from engine.consistency.prefix import Checkpoint, PrefixRecord
from engine.consistency.state import State
from engine.consistency.stretch import PrefixStretch, Proof
from engine.index.node import Node, Path, Stretch, last_of, nodes_of
from engine.index.radix import TOKEN_BYTES
from engine.memory.codec import CODEC_VERSION, CODECS, NATIVE
from engine.memory.holding import Holding
from engine.model.objects import ObjectKind, PrefixLayouts
from engine.model.spec import ModelSpec

_READABLE = frozenset((NATIVE, *CODECS))


class Validation(StrEnum):
    COMPRESSED_COMPLETE = "compressed_complete"
    TAIL_INTACT = "tail_intact"
    WINDOW_FRESH = "window_fresh"
    INDEXER_SYNCED = "indexer_synced"
    DISK_RELOADED = "disk_reloaded"


class Verdict(StrEnum):
    PASS = "pass"
    REPAIRABLE = "repairable"
    FAIL = "fail"
    NOT_APPLICABLE = "not_applicable"


VALIDATION_OF = {
    ObjectKind.COMPRESSED_KV: Validation.COMPRESSED_COMPLETE,
    ObjectKind.UNCOMPRESSED_TAIL: Validation.TAIL_INTACT,
    ObjectKind.SWA_WINDOW: Validation.WINDOW_FRESH,
    ObjectKind.RECURRENT_STATE: Validation.WINDOW_FRESH,
    ObjectKind.INDEXER_STATE: Validation.INDEXER_SYNCED,
    ObjectKind.DISK_PREFIX: Validation.DISK_RELOADED,
}
"""Which validation looks after which object kind."""


class Check(NamedTuple):
    """The outcome of one validation."""

    validation: Validation
    kind: ObjectKind
    verdict: Verdict
    reason: str

    @property
    def failed(self) -> bool:
        return self.verdict is Verdict.FAIL


REASONS = {
    "ok": "everything the validation asks for is there",
    "not_in_model": "the model has no such object",
    "empty_by_layout": "the model keeps nothing for this object at this position",
    "resident": "nothing of the boundary was off the GPU",
    "reloaded": "what was off the GPU is back, whole and proven",
    "pages_missing": "some pages of the path are in no tier",
    "quarantined": "the prefix holds a damaged object and waits for a commit or an eviction",
    "codec_unknown": "pages were coded by a codec or version this engine cannot read",
    "checksum_missing": "pages have no checksums though their bytes were on the host",
    "tail_missing": "no tail was captured at exactly this position",
    "window_missing": "no window was captured at exactly this position",
    "recurrent_missing": "no recurrent state was captured at exactly this position",
    "replay_rebuilds": "an exact replay of the last tokens rebuilds it",
    "replay_approximates": "a replay of one window rebuilds it approximately, as the caller asked for",
    "indexer_missing": "some pages have no indexer entries",
    "indexer_behind": "indexer entries were built from another version of the KV",
    "needs_restore": "an object lies below the GPU and is to be restored",
    "checksum_mismatch": "bytes read back do not match their checksum",
    "restore_late": "the restore did not end before the deadline",
}
"""Every reason code a validation can carry, for the reference and for people."""


@dataclass(slots=True, eq=False)
class Boundary:
    """A candidate position: `nodes` is the path to it, of which `pages` pages count (the last node may be cut)."""

    tokens: int
    path: Path[PrefixRecord]
    pages: int
    checkpoint: Checkpoint | None
    replay_tokens: int = 0
    restored: bool = False
    final: bool = False  # recovery is over: a replay is now the caller's part and counts as a pass
    approximate: bool = False  # what a hit here gives is not what an uninterrupted run would have
    proven: Path[PrefixRecord] | None = None  # the path as `Validator.steps` made it
    last: Node[PrefixRecord] = field(init=False)

    def __post_init__(self) -> None:
        last = last_of(self.path)
        if last is None:
            raise ValueError("a boundary lies behind at least one prefix")
        self.last = last

    @property
    def nodes(self) -> list[Node[PrefixRecord]]:
        """All of them, from the top: as many as the path is long, so not for every request."""
        return nodes_of(self.path)

    @property
    def prefix_id(self) -> str:
        """The prefix (tree node) the boundary hangs on; a checkpoint past it has an id of its own."""
        return self.last.record.prefix_id

    @property
    def replay_reason(self) -> str:
        return "replay_approximates" if self.approximate else "replay_rebuilds"


class Validator:
    """Binds the rules to one model."""

    def __init__(self, spec: ModelSpec, layouts: PrefixLayouts, *, sealed_on_commit: bool) -> None:
        self._spec = spec
        self._layouts = layouts
        self._sealed_on_commit = sealed_on_commit

    def validate(self, boundary: Boundary) -> tuple[Check, ...]:
        return (
            self.compressed_complete(boundary),
            self.tail_intact(boundary),
            self.window_fresh(boundary),
            self.indexer_synced(boundary),
            self.disk_reloaded(boundary),
        )

    def steps(self, boundary: Boundary) -> Path[PrefixRecord]:
        """The path in steps of which is known what the validations ask: stretches that are proven, of everything else
        each prefix. Made once for a boundary, which lives within one locked step."""
        if boundary.proven is None:
            boundary.proven = self.proven_steps(boundary.path)
        return boundary.proven

    def proven_steps(self, path: Path[PrefixRecord]) -> Path[PrefixRecord]:
        found: list[Node[PrefixRecord] | PrefixStretch] = []
        for step in path:
            if not isinstance(step, Stretch) or self.proof_of(step).holds:
                found.append(step)
            else:
                found += step.nodes
        return found

    def proof_of(self, stretch: PrefixStretch) -> Proof:
        """Whether everything below holds of each of its prefixes: looked at once, until the ledger places one anew."""
        proof: Proof | None = stretch.proof
        if proof is None:
            proof = stretch.proof = self.prove([node.record for node in stretch.nodes])
        return proof

    def prove(self, records: list[PrefixRecord]) -> Proof:
        has_history, has_entries = not self._layouts.history.empty, not self._layouts.indexer.empty
        page, holds = records[0].first_page, True
        for record in records:
            if (
                not _on_gpu(record, native=True)
                or (has_history and self._history_lacks(record, page))
                or (has_entries and _entries_lack(record))
            ):
                holds = False
                break
            page = record.last_page
        return Proof(holds, frozenset().union(*(record.odd_pages for record in records)))

    def compressed_complete(self, boundary: Boundary) -> Check:
        """Every page has its entries, a codec this engine reads, and a checksum once its bytes were on the host."""
        kind = ObjectKind.COMPRESSED_KV
        if self._layouts.history.empty:
            return Check(Validation.COMPRESSED_COMPLETE, kind, Verdict.NOT_APPLICABLE, "not_in_model")
        verdict, reason, page = Verdict.PASS, "ok", 0
        for step in self.steps(boundary):
            if isinstance(step, Stretch):
                if step.first_page != page:
                    return Check(Validation.COMPRESSED_COMPLETE, kind, Verdict.FAIL, "pages_missing")
            elif why := self._history_lacks(step.record, page):
                if why != "needs_restore":
                    return Check(Validation.COMPRESSED_COMPLETE, kind, Verdict.FAIL, why)
                verdict, reason = Verdict.REPAIRABLE, why
            page = step.last_page
        return Check(Validation.COMPRESSED_COMPLETE, kind, verdict, reason)

    def _history_lacks(self, record: PrefixRecord, page: int) -> str:
        """What of one prefix's history pages, which must begin at `page`, is not as it must be; empty for nothing."""
        holding = record.spans.get(ObjectKind.COMPRESSED_KV)
        if holding is None or holding.absent or record.first_page != page or holding.n_pages != record.n_pages:
            return "pages_missing"
        copy = holding.gpu
        if copy is None:
            return "needs_restore"
        if len(copy.slots) != holding.n_pages:
            return "pages_missing"
        if copy.meta.version != CODEC_VERSION or copy.meta.codec not in _READABLE:
            return "codec_unknown"
        return "checksum_missing" if copy.sums is None and self._sealed_on_commit else ""

    def tail_intact(self, boundary: Boundary) -> Check:
        """The tail at exactly b. "Empty" (stored with no rows, or empty by layout) is a tail; "absent" is not."""
        kind, name = ObjectKind.UNCOMPRESSED_TAIL, Validation.TAIL_INTACT
        if self._layouts.tail.empty:
            return Check(name, kind, Verdict.NOT_APPLICABLE, "not_in_model")
        if boundary.replay_tokens:
            return Check(name, kind, Verdict.PASS if boundary.final else Verdict.REPAIRABLE, boundary.replay_reason)
        return self._block(name, kind, boundary, self._layouts.tail_is_empty(boundary.tokens), "tail_missing")

    def window_fresh(self, boundary: Boundary) -> Check:
        """A window (and a recurrent state, the same sort of object) that ends at exactly b, or a replay."""
        kind, name = ObjectKind.SWA_WINDOW, Validation.WINDOW_FRESH
        if not self._layouts.recurrent.empty:
            check = self._block(name, ObjectKind.RECURRENT_STATE, boundary, False, "recurrent_missing")
            if check.failed or self._layouts.window.empty:
                return check
        if self._layouts.window.empty:
            return Check(name, kind, Verdict.NOT_APPLICABLE, "not_in_model")
        if boundary.replay_tokens:
            return Check(name, kind, Verdict.PASS if boundary.final else Verdict.REPAIRABLE, boundary.replay_reason)
        return self._block(name, kind, boundary, False, "window_missing")

    def indexer_synced(self, boundary: Boundary) -> Check:
        """Indexer entries for every page, built from the very KV version that would be served."""
        kind, name = ObjectKind.INDEXER_STATE, Validation.INDEXER_SYNCED
        if self._layouts.indexer.empty:
            return Check(name, kind, Verdict.NOT_APPLICABLE, "not_in_model")
        verdict, reason = Verdict.PASS, "ok"
        for step in self.steps(boundary):
            if not isinstance(step, Stretch) and (why := _entries_lack(step.record)):
                if why != "needs_restore":
                    return Check(name, kind, Verdict.FAIL, why)
                verdict, reason = Verdict.REPAIRABLE, why
        return Check(name, kind, verdict, reason)

    def disk_reloaded(self, boundary: Boundary) -> Check:
        """Every object is mapped on the GPU now; those that were not have been read whole and proven."""
        kind, name = ObjectKind.DISK_PREFIX, Validation.DISK_RELOADED
        if boundary.last.record.state is State.QUARANTINED:
            return Check(name, kind, Verdict.FAIL, "quarantined")
        for step in self.steps(boundary):
            if not isinstance(step, Stretch) and not _on_gpu(step.record):
                return Check(name, kind, Verdict.REPAIRABLE, "needs_restore")
        checkpoint = boundary.checkpoint
        if checkpoint is not None and not boundary.replay_tokens and not checkpoint.on_gpu:
            return Check(name, kind, Verdict.REPAIRABLE, "needs_restore")
        return Check(name, kind, Verdict.PASS, "reloaded" if boundary.restored else "resident")

    def _block(self, name: Validation, kind: ObjectKind, boundary: Boundary, empty: bool, missing: str) -> Check:
        """A boundary object is accepted by identity and position, never by its length."""
        checkpoint = boundary.checkpoint
        if checkpoint is None:
            if empty:
                return Check(name, kind, Verdict.PASS, "empty_by_layout")
            return Check(name, kind, Verdict.FAIL, missing)
        block: Holding | None = checkpoint.blocks.get(kind)
        if block is None or block.content_version == 0 or not self._is_at(checkpoint, boundary):
            return Check(name, kind, Verdict.FAIL, missing)
        if block.owner_id != checkpoint.checkpoint_id:  # another position's, of the right length all the same
            return Check(name, kind, Verdict.FAIL, missing)
        if block.n_pages == 0:
            return Check(name, kind, Verdict.PASS, "empty_by_layout")
        if block.absent:
            return Check(name, kind, Verdict.FAIL, missing)
        if block.gpu is None:
            return Check(name, kind, Verdict.REPAIRABLE, "needs_restore")
        return Check(name, kind, Verdict.PASS, "ok")

    def _is_at(self, checkpoint: Checkpoint, boundary: Boundary) -> bool:
        """Captured behind this very prefix and tail, at this very position."""
        whole_tokens = boundary.pages * self._spec.page_tokens
        return (
            checkpoint.owner_id == boundary.prefix_id
            and checkpoint.boundary == boundary.tokens == whole_tokens + len(checkpoint.tail_tokens) // TOKEN_BYTES
        )


def _on_gpu(record: PrefixRecord, *, native: bool = False) -> bool:
    copies = [holding.gpu for holding in record.spans.values()]
    return all(copy is not None and not (native and copy.coded) for copy in copies)


def _entries_lack(record: PrefixRecord) -> str:
    """What of one prefix's indexer entries is not as it must be; empty for nothing."""
    entries, kv = record.spans.get(ObjectKind.INDEXER_STATE), record.spans.get(ObjectKind.COMPRESSED_KV)
    if entries is None or entries.absent or entries.n_pages != record.n_pages:
        return "indexer_missing"
    if kv is None or entries.built_from != kv.content_version:
        return "indexer_behind"
    if entries.gpu is None:
        return "needs_restore"
    return "indexer_missing" if len(entries.gpu.slots) != entries.n_pages else ""


def first_failure(checks: tuple[Check, ...]) -> Check | None:
    return next((c for c in checks if c.failed), None)
