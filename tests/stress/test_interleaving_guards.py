"""Each guard carries weight: without it some interleaving fails. This is also what tests the harness."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
from operations import OPERATIONS
from test_interleavings import interleave, quick  # noqa: F401  (a fixture)

from engine.consistency.graph import GraphGuard
from engine.consistency.lease import LeaseTable
from engine.memory.arena import _PageClass
from engine.schedule.ledger import Ledger
from engine.schedule.lineage import Hold, Lineage
from engine.schedule.publish import Publisher
from engine.schedule.reads import LeaseReads
from engine.schedule.serve import Server


@dataclass(frozen=True)
class Guard:
    """`remove` takes it away; then one of these pairs must fail with `shows` in what it says."""

    name: str
    remove: Callable[[pytest.MonkeyPatch], None]
    first: tuple[str, ...]
    second: tuple[str, ...]
    shows: str
    checksums: bool = True


def _keep_generations(patch):
    def give(self: Any, slots: Any) -> None:
        n = len(slots)
        self.stack[self.top : self.top + n] = slots[::-1]
        self.top += n
        self.used_slots -= n

    patch.setattr(_PageClass, "give", give)


def _pin_nothing(patch):
    patch.setattr("engine.consistency.lease.pin_path", lambda _: None)
    patch.setattr("engine.consistency.lease.unpin_path", lambda _: None)


def _pin_later(patch):
    """The engine lock is let go between the last validation and the pin."""
    lease, grant, saved = Server._lease, LeaseTable.grant, {}

    def unlocking(self: Any, *args: Any) -> Any:
        made = lease(self, *args)
        saved[made] = self._ledger.lock, self._ledger.lock._release_save()
        return made

    def locking(self: Any, made: Any, now_ns: int) -> Any:
        lock, state = saved.pop(made)
        lock._acquire_restore(state)
        return grant(self, made, now_ns)

    patch.setattr(Server, "_lease", unlocking)
    patch.setattr(LeaseTable, "grant", locking)


def _compare_once(patch):
    """Pointers are compared before the copy and never again."""
    compare, seen = LeaseReads._check_pointers, set()

    def first_time(self: Any, lease: Any) -> None:
        if lease not in seen:
            seen.add(lease)
            compare(self, lease)

    patch.setattr(LeaseReads, "_check_pointers", first_time)


def _expire_readers(patch):
    def expire(self: Any) -> int:
        over = [x for x in self._live.values() if x.expires_ns <= self._clock.monotonic_ns()]
        for lease in over:
            self.release(lease)
        return len(over)

    patch.setattr(LeaseTable, "expire", expire)


def _may_leave_but(patch, *ignored):
    def may_leave(self: Any, node: Any) -> bool:
        record = node.record
        holds = {"leases": record.leases, "busy": record.busy, "window": self.graph.in_window}
        return not any(value for name, value in holds.items() if name not in ignored)

    patch.setattr(Ledger, "may_leave", may_leave)


def _hold_nothing(patch):
    patch.setattr(Hold, "pin", lambda _: None)
    patch.setattr(Hold, "let_go", lambda _: None)


MOVES = ("compact", "offload to host", "compress losslessly", "smaller GPU cap")
GUARDS = (
    Guard(
        "generations move when a slot is freed",
        _keep_generations,
        ("acquire and load",),
        ("end leases",),
        "of no run",
        checksums=False,
    ),
    Guard("a lease pins its path", _pin_nothing, ("acquire and load",), ("evict", "smaller GPU cap"), "StalePointer"),
    Guard("validated and pinned in one step", _pin_later, ("acquire and load",), ("evict",), "KeyError"),
    Guard(
        "pointers are compared after the copy",
        _compare_once,
        ("acquire and load",),
        ("end leases",),
        "of no run",
        checksums=False,
    ),
    Guard(
        "pointers are compared after a table is filled",
        _compare_once,
        ("page table",),
        ("end leases",),
        "other bytes",
        checksums=False,
    ),
    Guard(
        "no lease expires in the middle of a copy",
        _expire_readers,
        ("acquire and load",),
        ("tick past the leases' time",),
        "StalePointer",
    ),
    Guard(
        "what is leased is not moved or freed",
        lambda p: _may_leave_but(p, "leases"),
        MOVES,
        ("acquire, load later",),
        "StalePointer",
    ),
    Guard(
        "what is being copied is not moved or freed",
        lambda p: _may_leave_but(p, "busy"),
        MOVES,
        MOVES,
        "a slot is free twice",
    ),
    Guard(
        "nothing moves in a graph window",
        lambda p: p.setattr(GraphGuard, "in_window", property(lambda _: False)),
        ("graph window",),
        ("smaller GPU cap", "commit of another run"),
        "inside a graph window",
    ),
    Guard(
        "a commit holds what it hangs on",
        _hold_nothing,
        ("split of the cold end", "commit of the same"),
        ("evict", "commit of another run"),
        "slots",
    ),
    Guard(
        "pages that two commits publish at once are compared",
        lambda p: p.setattr(Lineage, "agrees", lambda *_: True),
        ("split of the cold end",),
        ("another run of the branch",),
        "of no run",
    ),
    Guard(
        "what a commit computed again is compared with what is there",
        lambda p: p.setattr(Lineage, "first_other_page", lambda *_: None),
        ("commit of another run",),
        ("split of the cold end", "smaller prefix cap"),
        "of no run",
    ),
    Guard(
        "pages that another commit published are given back",
        lambda p: p.setattr(Publisher, "_trim", lambda *_: None),
        ("split of the trunk",),
        ("split of the trunk",),
        "objects own",
    ),
)


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_without_a_guard_some_interleaving_fails(make_rig, tmp_path, monkeypatch, guard):
    guard.remove(monkeypatch)
    said = []
    for number, (one, other) in enumerate(product(guard.first, guard.second)):
        for point in OPERATIONS[one].points:
            folder = tmp_path / f"{number}-{point.name}"
            try:
                interleave(make_rig, folder, OPERATIONS[one], point, OPERATIONS[other], checksums=guard.checksums)
            except Exception as error:
                said.append(f"{type(error).__name__}: {error}")
                if guard.shows in said[-1]:
                    return
    pytest.fail(f"nobody misses it; what was said: {said}")
