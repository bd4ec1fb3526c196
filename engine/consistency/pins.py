"""Pins: what an operator keeps from eviction, for a while and within a budget. Guarded by the engine lock."""

from __future__ import annotations

from collections.abc import Iterable

from engine.consistency.prefix import PrefixRecord


class PinBooks:
    """Knows every pinned prefix and how many bytes are pinned.

    A prefix counts with the bytes of its objects wherever they are: one that leaves the GPU, or comes back from below,
    takes no more of the budget than before.
    """

    def __init__(self, tier_bytes: int, budget_ratio: float) -> None:
        self._tier_bytes = tier_bytes
        self.set_budget(budget_ratio)
        self.held_bytes = 0
        self._records: dict[PrefixRecord, int] = {}

    def set_budget(self, ratio: float) -> None:
        """The share of the GPU tier that pins may hold, from now on. What is pinned already stays so."""
        self.budget_ratio = ratio
        self.budget_bytes = int(self._tier_bytes * ratio)

    def __len__(self) -> int:
        return len(self._records)

    def refuses(self, records: Iterable[PrefixRecord]) -> bool:
        """Whether pinning these as well would be over the budget."""
        more = sum(pinned_size(record) for record in records if record not in self._records)
        return more > 0 and self.held_bytes + more > self.budget_bytes

    def room_for(self, record: PrefixRecord, n_bytes: int) -> bool:
        """Whether this prefix may grow by so many bytes: always, unless it is pinned and the budget is spent."""
        return record not in self._records or self.held_bytes + n_bytes <= self.budget_bytes

    def mark(self, record: PrefixRecord, until_ns: int) -> None:
        """Pin until then (wall clock); 0 unpins."""
        record.pinned_until_ns = until_ns
        self.recount(record)

    def recount(self, record: PrefixRecord) -> None:
        """Bring the books in line with a prefix that was marked, grew, shrank or was cut in two."""
        before = self._records.pop(record, 0)
        now = pinned_size(record) if record.pinned_until_ns else 0
        if record.pinned_until_ns:
            self._records[record] = now
        self.held_bytes += now - before

    def leave(self, record: PrefixRecord) -> None:
        """The prefix was evicted."""
        self.held_bytes -= self._records.pop(record, 0)

    def run_out(self, wall_ns: int) -> list[PrefixRecord]:
        """Unpin what is past its time; returns it."""
        over = [record for record in self._records if record.pinned_until_ns <= wall_ns]
        for record in over:
            self.mark(record, 0)
        return over

    def violations(self, records: Iterable[PrefixRecord]) -> list[str]:
        """How the books differ from what is pinned."""
        pinned = {record: pinned_size(record) for record in records if record.pinned_until_ns}
        if pinned == self._records and self.held_bytes == sum(pinned.values()):
            return []
        return [
            f"pins: {len(self._records)} prefixes of {self.held_bytes} bytes are in the books, "
            f"{len(pinned)} of {sum(pinned.values())} are pinned"
        ]


def pinned_size(record: PrefixRecord) -> int:
    """Bytes of its objects, each in the widest form that some tier has it in."""
    return sum(
        max((copy.total_bytes for copy in (h.gpu, h.host, h.disk) if copy is not None), default=0)
        for h in record.holdings()
    )
