"""A prefix as the engine keeps it: identity, state, version, and what it holds where."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from engine.consistency.state import Cause, State, check_transition
from engine.index.node import Stretch
from engine.memory.checksum import PageSums
from engine.memory.holding import Holding, Tier
from engine.model.objects import ObjectKind


class CauseOf(NamedTuple):
    """Why something happens, and the span that asked for it (hexadecimal ids, empty when there is none)."""

    cause: Cause
    reason: str = ""
    trace_id: str = ""
    span_id: str = ""
    command_id: str = ""


class Transition(NamedTuple):
    """One step of one prefix's life, as telemetry and the store get it."""

    prefix_id: str
    parent_id: str
    namespace: str
    life: int
    version: int
    before: State
    after: State
    cause: CauseOf
    tokens: int
    pages: int
    bytes_moved: int
    objects: dict[str, dict[str, int]]
    checkpoints: tuple[tuple[str, int, tuple[str, ...], tuple[str, ...]], ...]
    pinned: bool
    wall_ns: int
    monotonic_ns: int
    approximate: bool = False


@dataclass(eq=False, slots=True)
class Checkpoint:
    """The boundary objects at exactly `boundary` tokens: valid there and nowhere else.

    `tail_tokens` are the token bytes after the last page boundary. A kind the model has and this dict has not is
    absent; a kind that is empty by layout has a holding of no pages.
    """

    checkpoint_id: str
    boundary: int
    tail_tokens: bytes
    blocks: dict[ObjectKind, Holding]
    owner_id: str  # the prefix (tree node) it was captured behind: compared before it is served

    @property
    def on_gpu(self) -> bool:
        return all(h.gpu is not None or h.n_pages == 0 for h in self.blocks.values())

    @property
    def gpu_bytes(self) -> int:
        return sum(h.gpu.total_bytes for h in self.blocks.values() if h.gpu is not None)


@dataclass(eq=False, slots=True)
class PrefixRecord:
    """Everything known of one prefix (a radix node). Guarded by the engine lock.

    Pages [first_page, first_page + n_pages) are its own; those before belong to its ancestors.
    """

    prefix_id: str
    parent_id: str
    namespace: str
    life: int
    first_page: int
    n_pages: int
    page_tokens: int
    spans: dict[ObjectKind, Holding]
    native_sums: dict[ObjectKind, PageSums] = field(
        default_factory=dict
    )  # of its pages as committed; outlive every copy
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)  # by checkpoint id: one position, many tails
    state: State = State.NEW
    version: int = 0
    own_leases: int = 0  # of `leases`, those that its stretch does not count
    stretch: Stretch[PrefixRecord] | None = None
    busy: bool = False  # bytes of it are being copied by some thread; nobody else may change it
    pinned_until_ns: int = 0  # wall clock; an operator's pin
    gpu_bytes: int = 0  # as its namespace's books count it: what is on the GPU, and `arriving_bytes` while busy
    arriving_bytes: int = 0  # GPU slots taken for it by a restore that has not mapped them yet
    tokens_served: int = 0
    served_ns: int = 0  # monotonic; as the end of a path, which was served with all above it
    resident: bool = True  # every span object on the GPU (kept by `refresh`)
    coded: bool = False  # some span object in coded form
    approximate: bool = False  # in the space of approximate prefixes
    odd_pages: frozenset[int] = frozenset()  # not computed in one call each; after a split both halves name all

    @property
    def leases(self) -> int:
        """Leases whose path runs through this prefix."""
        return self.own_leases + (self.stretch.leases if self.stretch is not None else 0)

    @property
    def tokens(self) -> int:
        return (self.first_page + self.n_pages) * self.page_tokens

    @property
    def last_page(self) -> int:
        return self.first_page + self.n_pages

    def holdings(self) -> list[Holding]:
        found = list(self.spans.values())
        for checkpoint in self.checkpoints.values():
            found += checkpoint.blocks.values()
        return found

    def refresh(self) -> None:
        """Recompute the flags the request path reads."""
        resident, coded = True, False
        for holding in self.spans.values():
            if holding.gpu is None:
                resident = False
            elif holding.gpu.coded:
                coded = True
        self.resident, self.coded = resident, coded

    def cut(self, pages: int, life: int, prefix_id: str, parent_id: str) -> PrefixRecord:
        """The first `pages` pages become a prefix of their own, above this one, which keeps the rest: the same stored
        objects by page range. Checkpoints stay here."""
        upper = PrefixRecord(
            prefix_id, parent_id, self.namespace, life, self.first_page, pages, self.page_tokens,
            {kind: holding.cut(0, pages) for kind, holding in self.spans.items()},
            {kind: sums[:pages] for kind, sums in self.native_sums.items()},
            own_leases=self.own_leases, pinned_until_ns=self.pinned_until_ns, served_ns=self.served_ns,
            approximate=self.approximate, odd_pages=self.odd_pages,
        )  # fmt: skip
        self.parent_id = prefix_id
        self.spans = {kind: holding.cut(pages, holding.n_pages) for kind, holding in self.spans.items()}
        self.native_sums = {kind: sums[pages:] for kind, sums in self.native_sums.items()}
        if history := self.spans.get(ObjectKind.COMPRESSED_KV):
            history.built_from = history.content_version  # the page before it is of the same run
        self.first_page, self.n_pages = self.first_page + pages, self.n_pages - pages
        return upper

    @property
    def natural_state(self) -> State:
        """The state that follows from where the objects are."""
        if self.approximate:
            return State.APPROXIMATE if self.resident else State.QUARANTINED
        if not self.resident or not all(c.on_gpu for c in self.checkpoints.values()):
            return State.PARTIAL_OFFLOAD
        return State.COMPRESSED if self.coded else State.FULL

    def held_bytes(self, tier: Tier) -> int:
        return sum(_tier_bytes(h, tier) for h in self.holdings())

    def objects(self) -> dict[str, dict[str, int]]:
        """Object kind -> tier -> bytes, for telemetry."""
        found: dict[str, dict[str, int]] = {}
        on_disk = 0
        for holding in self.holdings():
            row = found.setdefault(holding.kind, {})
            for tier, copy in (("gpu", holding.gpu), ("host", holding.host), ("disk", holding.disk)):
                if copy is not None and (n_bytes := copy.total_bytes):
                    row[tier] = row.get(tier, 0) + n_bytes
                    on_disk += n_bytes if tier == "disk" else 0
        if on_disk:
            found[ObjectKind.DISK_PREFIX] = {"disk": on_disk}
        return found

    def checkpoint_rows(self) -> tuple[tuple[str, int, tuple[str, ...], tuple[str, ...]], ...]:
        return tuple(
            (c.checkpoint_id, c.boundary, tuple(c.blocks), tuple(_tiers_of(c))) for c in self.checkpoints.values()
        )

    def move(self, after: State, cause: CauseOf, *, bytes_moved: int, wall_ns: int, monotonic_ns: int) -> Transition:
        """Take one edge. Raises `IllegalTransition` and changes nothing if the table does not have it."""
        check_transition(self.prefix_id, self.state, after, cause.cause)
        before, self.state = self.state, after
        self.version += 1
        gone = after is State.EVICTED
        return Transition(
            prefix_id=self.prefix_id,
            parent_id=self.parent_id,
            namespace=self.namespace,
            life=self.life,
            version=self.version,
            before=before,
            after=after,
            cause=cause,
            tokens=self.tokens,
            pages=self.n_pages,
            bytes_moved=bytes_moved,
            objects={} if gone else self.objects(),
            checkpoints=() if gone else self.checkpoint_rows(),
            pinned=self.pinned_until_ns > wall_ns,
            wall_ns=wall_ns,
            monotonic_ns=monotonic_ns,
            approximate=self.approximate,
        )


def _tier_bytes(holding: Holding, tier: Tier) -> int:
    copy = {Tier.GPU: holding.gpu, Tier.HOST: holding.host, Tier.DISK: holding.disk}[tier]
    return 0 if copy is None else copy.total_bytes


def _tiers_of(checkpoint: Checkpoint) -> list[str]:
    """Tiers that hold every block of it."""
    gpu, host, disk = True, True, True
    for block in checkpoint.blocks.values():
        if block.n_pages:
            gpu, host, disk = (
                gpu and block.gpu is not None,
                host and block.host is not None,
                disk and block.disk is not None,
            )
    return [tier for tier, there in (("gpu", gpu), ("host", host), ("disk", disk)) if there]
