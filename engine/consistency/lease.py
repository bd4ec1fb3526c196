"""Leases: the only way to read KV. Validated, pinned, expiring, and bound to the generations of what they read."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from engine.clock import NS_PER_S, Clock
from engine.consistency.prefix import PrefixRecord
from engine.errors import LeaseExpired
from engine.index.node import Node
from engine.memory.holding import Bound
from engine.model.objects import ObjectKind

if TYPE_CHECKING:
    import torch

    from engine.consistency.graph import PageTable
    from engine.memory.state import LoadedState


class Cost(NamedTuple):
    """The arithmetic of a plan. A plan pays when `saving_s` is above 0; a miss has one when a replay would not."""

    saved_tokens: int
    replay_tokens: int
    restore_bytes: int
    restore_s: float
    prefill_tokens_per_s: float

    @property
    def saving_s(self) -> float:
        return (self.saved_tokens - self.replay_tokens) / self.prefill_tokens_per_s - self.restore_s

    @property
    def text(self) -> str:
        """One line for people."""
        pace = self.prefill_tokens_per_s
        found = f"saves {self.saved_tokens:,} tokens ({self.saved_tokens / pace:.3f} s at {pace:,.0f} tokens/s)"
        prices = []
        if self.replay_tokens:
            prices.append(f"{self.replay_tokens:,} replayed ({self.replay_tokens / pace:.3f} s)")
        if self.restore_bytes:
            prices.append(f"{_bytes_text(self.restore_bytes)} restored ({self.restore_s:.3f} s)")
        return found + (f" for {' and '.join(prices)}" if prices else "")


class Explanation(NamedTuple):
    """Why a lease is what it is. `reason` tells why the longest common prefix was not all usable ("none" if it was)."""

    outcome: str  # hit, partial, miss, bypass
    reason: str
    prefix_id: str
    state: str
    tier: str
    codec: str
    mode: str
    trace_id: str
    span_id: str
    sampled: bool = True  # these three as the caller's trace has them (W3C)
    tracestate: str = ""
    continued: bool = False  # the trace was begun by the caller
    cost: Cost | None = None
    lost: tuple[tuple[str, int], ...] = ()  # cause -> tokens; with the usable ones they are the prompt's
    lost_prefix_id: str = ""  # the prefix that would have continued the hit, had it not been evicted


class LeaseSource(Protocol):
    """What a lease asks of its engine."""

    def load(self, lease: Lease) -> LoadedState: ...

    def page_table(self, lease: Lease, kind: ObjectKind) -> torch.Tensor: ...

    def fill_page_table(self, lease: Lease, kind: ObjectKind, table: PageTable) -> int: ...

    def release(self, lease: Lease) -> None: ...


class Lease:
    """The right to read one boundary's objects until `expires_ns` (monotonic).

    `usable_tokens` is the hit. The model runs from `resume_tokens` (= usable - replay). `checkpoint_hints` are the
    positions past it at which capturing boundary objects pays: the branch point, the end of the prompt, every N tokens.
    """

    __slots__ = (
        "_source",
        "approximate",
        "blocks",
        "checkpoint_hints",
        "created_ns",
        "expires_ns",
        "explanation",
        "kept",
        "lcp_tokens",
        "lease_id",
        "namespace",
        "node",
        "pages",
        "prompt_tokens",
        "reading",
        "released",
        "replay_tokens",
        "spans",
        "usable_tokens",
    )

    def __init__(
        self,
        source: LeaseSource,
        *,
        namespace: str,
        prompt_tokens: int,
        lcp_tokens: int,
        usable_tokens: int,
        replay_tokens: int,
        checkpoint_hints: tuple[int, ...],
        explanation: Explanation,
        node: Node[PrefixRecord] | None,
        pages: int,
        spans: Mapping[ObjectKind, list[Bound]],
        blocks: Mapping[ObjectKind, Bound],
        approximate: bool = False,
    ) -> None:
        self._source = source
        self.lease_id = 0
        self.namespace = namespace
        self.prompt_tokens = prompt_tokens
        self.lcp_tokens = lcp_tokens
        self.usable_tokens = usable_tokens
        self.replay_tokens = replay_tokens
        self.checkpoint_hints = checkpoint_hints
        self.explanation = explanation
        self.node = node
        self.pages = pages
        self.spans = spans
        self.blocks = blocks
        self.approximate = approximate  # asked for: what is computed from it is kept apart from what is exact
        self.created_ns = 0
        self.expires_ns = 0
        self.reading = 0
        self.released = False
        self.kept: Node[PrefixRecord] | None = None  # where the last commit with this lease ended

    @property
    def resume_tokens(self) -> int:
        return self.usable_tokens - self.replay_tokens

    @property
    def lossy(self) -> bool:
        """Some page of the hit was coded with loss: what is computed from it is not exact."""
        return lossy(self.spans)

    def load(self) -> LoadedState:
        """Contiguous tensors a layer over [0, usable). Raises `LeaseExpired`, `StalePointer`, `NotMaterialised`."""
        return self._source.load(self)

    def page_table(self, kind: ObjectKind) -> torch.Tensor:
        """Byte offsets of the pages in the GPU buffer, int64 [pages]. Raises as `fill_page_table` does."""
        return self._source.page_table(self, kind)

    def fill_page_table(self, kind: ObjectKind, table: PageTable) -> int:
        """Put the same offsets into a table at a fixed address (`CacheEngine.new_page_table`); how many pages.

        The copy is made on the caller's current stream. Raises `LeaseExpired`, `StalePointer`, `CodecRefused` for pages
        in coded form, and `ConfigError` past the table's capacity or for a kind without pages; the table stays as it
        was, but after a `StalePointer` it may be empty.
        """
        return self._source.fill_page_table(self, kind, table)

    def release(self) -> None:
        """Give the right back. Twice is once."""
        self._source.release(self)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def lossy(spans: Mapping[ObjectKind, list[Bound]]) -> bool:
    return any(bound.meta.error_bound > 0 for bounds in spans.values() for bound in bounds)


class LeaseTable:
    """Knows every live lease and its expiry; pins and unpins paths. Guarded by the engine lock."""

    def __init__(self, clock: Clock, lease_s: float) -> None:
        self._clock = clock
        self._lease_ns = int(lease_s * NS_PER_S)
        self._live: dict[int, Lease] = {}
        self._serial = 0
        self.expired = 0

    def __len__(self) -> int:
        return len(self._live)

    def grant(self, lease: Lease, now_ns: int) -> Lease:
        """Pin the lease's path and start its time."""
        self._serial += 1
        lease.lease_id = self._serial
        lease.created_ns = now_ns
        lease.expires_ns = now_ns + self._lease_ns
        pin_path(lease.node)
        self._live[lease.lease_id] = lease
        return lease

    def release(self, lease: Lease) -> None:
        if lease.released:
            return
        lease.released = True
        del self._live[lease.lease_id]
        unpin_path(lease.node)

    def check(self, lease: Lease) -> None:
        """Raises `LeaseExpired` for a lease that is over."""
        if lease.released:
            raise LeaseExpired(f"lease {lease.lease_id} was released or has expired; acquire again")
        if self._clock.monotonic_ns() >= lease.expires_ns:
            held_s = (self._clock.monotonic_ns() - lease.created_ns) / NS_PER_S
            raise LeaseExpired(
                f"lease {lease.lease_id} is {held_s:.1f} s old of {self._lease_ns / NS_PER_S:.1f} s; acquire again"
            )

    def expire(self) -> int:
        """End every lease past its term that is not in the middle of a copy; how many."""
        now_ns = self._clock.monotonic_ns()
        over = [x for x in self._live.values() if x.expires_ns <= now_ns and not x.reading]
        for lease in over:
            self.release(lease)
        self.expired += len(over)
        return len(over)

    def oldest_s(self) -> float:
        # A copy: the metrics thread asks without the lock.
        oldest = min((x.created_ns for x in list(self._live.values())), default=None)
        return 0.0 if oldest is None else (self._clock.monotonic_ns() - oldest) / NS_PER_S

    def live(self) -> list[Lease]:
        return list(self._live.values())


def pin_path(node: Node[PrefixRecord] | None) -> None:
    """Count one more lease on every prefix from `node` up. A split copies the count to the new upper half."""
    _count_on_path(node, 1)


def unpin_path(node: Node[PrefixRecord] | None) -> None:
    _count_on_path(node, -1)


def _count_on_path(node: Node[PrefixRecord] | None, n: int) -> None:
    """Stretches may be others when it is counted off than when it was counted on: the sum with each prefix's own is
    right all the same."""
    while node is not None and node.parent is not None:
        stretch = node.stretch
        if stretch is not None and stretch.nodes[-1] is node:
            stretch.leases += n
            node = stretch.nodes[0].parent
        else:
            node.record.own_leases += n
            node = node.parent


def _bytes_text(n_bytes: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if n_bytes >= size:
            return f"{n_bytes / size:.3g} {unit}"
    return f"{n_bytes} B"
