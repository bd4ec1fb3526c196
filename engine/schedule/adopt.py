"""Disk prefixes across restarts: adopt what is whole at start, write what is worth keeping at the end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine.clock import NS_PER_S
from engine.consistency.prefix import CauseOf, Checkpoint, PrefixRecord
from engine.consistency.state import Cause, State
from engine.errors import CorruptObject
from engine.index.radix import TOKEN_BYTES, Match
from engine.memory.disk import AdoptedFile
from engine.memory.diskfile import ObjectHeader
from engine.memory.holding import DiskCopy, Holding
from engine.model.objects import BOUNDARY_KINDS, ObjectKind
from engine.schedule.counters import Damage
from engine.schedule.ledger import Ledger
from engine.schedule.lineage import content_of
from engine.schedule.room import Room


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """What a start found on disk."""

    prefixes: int = 0
    checkpoints: int = 0
    orphans: int = 0
    damaged: int = 0


class Adopter:
    """Single-threaded at start and at the end of an engine."""

    def __init__(self, ledger: Ledger, room: Room) -> None:
        self._ledger = ledger
        self._tiers = ledger.tiers
        self._room = room

    def adopt(self) -> Adoption:
        """Rebuild the tree from the files' own tokens. A file of another model, or whose ancestors are not on disk,
        is an orphan and deleted; a damaged one is moved to quarantine."""
        disk, ledger = self._tiers.disk, self._ledger
        if disk is None:
            return Adoption()
        spans: list[AdoptedFile] = []
        blocks: list[AdoptedFile] = []
        damaged = orphans = 0
        for found in disk.scan():
            if isinstance(found, CorruptObject):
                damaged += 1
                ledger.damages.append(
                    Damage(
                        prefix_id=str(found).split("-", 1)[0],
                        kind="disk_prefix",
                        reason="header_damaged",
                        at_ns=ledger.clock.wall_ns(),
                    )
                )
            elif found.header.fingerprint != ledger.spec.fingerprint or not self._readable(found):
                orphans += self._orphan([found])
            elif ObjectKind(found.header.kind) in BOUNDARY_KINDS:
                blocks.append(found)
            else:
                spans.append(found)
        with ledger.lock:
            prefixes, lost = self._adopt_spans(spans)
            checkpoints, more = self._adopt_blocks(blocks)
            for node in list(ledger.index.walk()):
                node.record.refresh()
                if node.record.state is State.NEW:
                    ledger.place(node)
                    ledger.move(node, State.PARTIAL_OFFLOAD, CauseOf(Cause.ADOPT))
        self._room.trim_below()
        self._tiers.sweeper.sweep()
        return Adoption(prefixes=prefixes, checkpoints=checkpoints, orphans=orphans + lost + more, damaged=damaged)

    def _readable(self, found: AdoptedFile) -> bool:
        """A kind and a form that this engine has: a later version, or a codec that pays elsewhere, may have others."""
        return found.header.kind in set(ObjectKind) and found.header.page_class in self._tiers.gpu.page_classes

    def _adopt_spans(self, files: list[AdoptedFile]) -> tuple[int, int]:
        """Group files into prefixes (same namespace, range and tokens), shallow first; hang each on its path."""
        groups: dict[tuple[str, str, int], dict[ObjectKind, AdoptedFile]] = {}
        orphans = 0
        for found in sorted(files, key=lambda f: f.header.written_ns):
            key = (found.header.namespace, found.header.prefix_id, found.header.first_page)
            kinds = groups.setdefault(key, {})
            kind = ObjectKind(found.header.kind)
            if kind in kinds:
                orphans += self._orphan([kinds[kind]])  # an older copy of the same object
            kinds[kind] = found
        prefixes = 0
        for kinds in sorted(groups.values(), key=lambda k: next(iter(k.values())).header.first_page):
            if self._adopt_prefix(kinds):
                prefixes += 1
            else:
                orphans += self._orphan(kinds.values())
        return prefixes, orphans

    def _adopt_prefix(self, kinds: dict[ObjectKind, AdoptedFile]) -> bool:
        ledger = self._ledger
        first = next(iter(kinds.values()))
        header, tokens = first.header, first.tokens.tobytes()
        whole = set(kinds) == set(ledger.layouts.span_kinds)
        page_bytes = ledger.index.page_bytes
        if not whole or len(tokens) != (header.first_page + header.n_pages) * page_bytes:
            return False
        match = ledger.index.match(header.namespace, tokens)
        if match.pages < header.first_page:
            return False  # an ancestor's file is missing
        if match.pages > header.first_page:
            return False  # another file holds (a part of) the same pages already
        if match.last is not None and not match.last_is_whole:
            ledger.split(match.last, header.first_page - match.last.first_page)
            match = ledger.index.match(header.namespace, tokens)
        parent = match.last
        history = kinds.get(ObjectKind.COMPRESSED_KV)
        if parent is not None and history is not None and history.header.built_from != content_of(parent.record):
            return False  # its ancestors' files are gone; those that are here are of another run
        node = ledger.append(header.namespace, parent, tokens[header.first_page * page_bytes :])
        if node.record.prefix_id != header.prefix_id:
            ledger.unhang(node)
            ledger.states[State.NEW] -= 1
            return False
        node.record.odd_pages = frozenset(header.odd_pages)
        for kind, found in kinds.items():
            node.record.spans[kind] = self._holding(found)
        return True

    def _adopt_blocks(self, files: list[AdoptedFile]) -> tuple[int, int]:
        groups: dict[tuple[str, str, int], dict[ObjectKind, AdoptedFile]] = {}
        orphans = 0
        for found in sorted(files, key=lambda f: f.header.written_ns):
            key = (found.header.namespace, found.header.prefix_id, found.header.boundary)
            kinds = groups.setdefault(key, {})
            kind = ObjectKind(found.header.kind)
            if kind in kinds:
                orphans += self._orphan([kinds[kind]])
            kinds[kind] = found
        checkpoints = 0
        for kinds in sorted(groups.values(), key=lambda k: next(iter(k.values())).header.boundary):
            if self._adopt_checkpoint(kinds):
                checkpoints += 1
            else:
                orphans += self._orphan(kinds.values())
        return checkpoints, orphans

    def _adopt_checkpoint(self, kinds: dict[ObjectKind, AdoptedFile]) -> bool:
        """Only a whole set of boundary objects is a checkpoint."""
        ledger = self._ledger
        first = next(iter(kinds.values()))
        header, tokens = first.header, first.tokens.tobytes()
        if len(tokens) != header.boundary * TOKEN_BYTES:
            return False
        if any(found.header.built_from != header.built_from for found in kinds.values()):
            return False  # blocks of different runs
        blocks = {kind: self._holding(found) for kind, found in kinds.items()}
        tail = ObjectKind.UNCOMPRESSED_TAIL
        if tail not in blocks and not ledger.layouts.tail.empty and ledger.layouts.tail_is_empty(header.boundary):
            blocks[tail] = Holding(kind=tail, n_pages=0, content_version=header.content_version, built_from=0)
        if set(blocks) != set(ledger.layouts.boundary_kinds):
            return False
        pages = header.boundary // ledger.spec.page_tokens
        match = ledger.index.match(header.namespace, tokens)
        if not ledger.layouts.span_kinds and pages > match.pages:
            match = self._bare_path(header, tokens[: pages * ledger.index.page_bytes])
        node = match.last
        if match.pages != pages or node is None or not match.last_is_whole:
            return False
        if header.built_from != content_of(node.record):
            return False  # captured behind the same tokens of another run
        rest = tokens[pages * ledger.index.page_bytes :]
        checkpoint_id = ledger.index.id_with_tail(node, rest) if rest else node.record.prefix_id
        if checkpoint_id != header.prefix_id or checkpoint_id in node.record.checkpoints:
            return False
        for block in blocks.values():
            block.owner_id = checkpoint_id
        ledger.checkpoints.add(node, Checkpoint(checkpoint_id, header.boundary, rest, blocks, node.record.prefix_id))
        return True

    def _bare_path(self, header: ObjectHeader, tokens: bytes) -> Match[PrefixRecord]:
        """The path to a checkpoint of a model that keeps no history: no other file names it."""
        ledger, match = self._ledger, self._ledger.index.match(header.namespace, tokens)
        if match.last is not None and not match.last_is_whole:
            ledger.split(match.last, match.pages - match.last.first_page)
            match = ledger.index.match(header.namespace, tokens)
        node = ledger.append(header.namespace, match.last, tokens[match.pages * ledger.index.page_bytes :])
        node.record.odd_pages = frozenset(header.odd_pages)
        return ledger.index.match(header.namespace, tokens)

    def _holding(self, found: AdoptedFile) -> Holding:
        header, file = found.header, found.file
        file.live_pages = header.n_pages
        self._ledger.content_seen(header.content_version)
        page_bytes = self._tiers.gpu.slot_bytes(header.page_class)
        disk = DiskCopy(file, header.page_class, 0, header.n_pages, header.codec, page_bytes)
        return Holding(
            kind=ObjectKind(header.kind), n_pages=header.n_pages, content_version=header.content_version,
            built_from=header.built_from, disk=disk,
        )  # fmt: skip

    def _orphan(self, files: Iterable[AdoptedFile]) -> int:
        n = 0
        for found in files:
            self._tiers.sweeper.forget(found.file)
            n += 1
        return n

    def persist(self, within_s: float) -> int:
        """Write prefixes that live only above the disk, newest use first, while quota and time last; how many."""
        if self._tiers.disk is None or not self._tiers.materialise:
            return 0
        ledger, written = self._ledger, 0
        deadline_ns = ledger.clock.monotonic_ns() + int(within_s * NS_PER_S)
        with ledger.lock:
            for node in reversed(list(ledger.index.walk())):  # who was served was served with all above it
                if node.parent is not None:
                    node.parent.record.served_ns = max(node.parent.record.served_ns, node.record.served_ns)
            nodes = sorted(ledger.nodes.values(), key=lambda n: n.record.served_ns, reverse=True)
        for node in nodes:
            if ledger.clock.monotonic_ns() > deadline_ns:
                break
            with ledger.lock:
                whole = all(h.disk or not h.n_pages for h in node.record.holdings())
                if whole or node.parent is None or node.record.busy or node.record.approximate:
                    continue
                node.record.busy = True  # a request that began before `close` may still make room
            try:
                if not self._room.disk.write(node, may_evict=False):
                    break
            except CorruptObject:
                continue
            finally:
                with ledger.lock:
                    node.record.busy = False
                    ledger.settled.notify_all()
            written += 1
        return written
