"""The arena driven at random against a list of owned slots, each with the bytes its owner wrote."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from engine.errors import StalePointer
from engine.memory.arena import Arena

CLASSES = {"wide": 96, "middle": 64, "thin": 24}


class ArenaMachine(RuleBasedStateMachine):
    """A set of owned slots a class, each with the bytes its owner wrote: no two may ever share an address."""

    def __init__(self):
        super().__init__()
        self.arena = Arena("test", 4 * 256, 256, CLASSES)
        self.owned: list[tuple[str, np.ndarray, int, object]] = []
        self.stale: list[object] = []
        self.stamp = 0

    @rule(name=st.sampled_from(sorted(CLASSES)), n=st.integers(0, 6))
    def take(self, name, n):
        slots = self.arena.take(name, n)
        if slots is not None:
            assert len(slots) == n
            self.own(name, slots)

    def own(self, name, slots):
        self.stamp = (self.stamp + 1) % 256
        self.arena.write(name, slots, torch.full((len(slots), CLASSES[name]), self.stamp, dtype=torch.uint8))
        self.owned.append((name, slots, self.stamp, self.arena.point(name, slots)))

    @rule(pick=st.integers(0, 50))
    def give(self, pick):
        if self.owned:
            name, slots, _, pointer = self.owned.pop(pick % len(self.owned))
            self.arena.give(name, slots)
            if len(slots):
                self.stale.append(pointer)

    @rule(name=st.sampled_from(sorted(CLASSES)), n=st.integers(1, 3))
    def take_outside_sparse_slabs(self, name, n):
        sparse = self.arena.sparse_slabs(name, 0.5)
        slots = self.arena.take_outside(name, n, sparse)
        if slots is not None:
            assert len(slots) == n
            assert not np.isin(self.arena.slab_of(name, slots), sparse).any()
            self.own(name, slots)

    @rule()
    def release_empty_slabs(self):
        self.arena.release_empty_slabs()

    @invariant()
    def every_owner_reads_what_it_wrote(self):
        for name, slots, stamp, pointer in self.owned:
            assert (self.arena.read(name, slots) == stamp).all()
            self.arena.check_current(pointer)
        for pointer in self.stale:
            with pytest.raises(StalePointer):
                self.arena.check_current(pointer)

    @invariant()
    def it_balances(self):
        assert self.arena.violations() == []
        assert self.arena.live_bytes == sum(len(s) * CLASSES[n] for n, s, _, _ in self.owned)
        ranges = sorted(
            (int(at), int(at) + CLASSES[name])
            for name, slots, _, _ in self.owned
            for at in self.arena.addresses(name, slots)
        )
        assert all(end <= start for (_, end), (start, _) in pairwise(ranges))
        assert not ranges or ranges[-1][1] <= self.arena.total_bytes


TestArenaMachine = ArenaMachine.TestCase
TestArenaMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
