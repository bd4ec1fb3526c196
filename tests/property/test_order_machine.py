"""The order of tails first driven at random against one that touches every key of a path."""

from __future__ import annotations

from itertools import islice

from engine_support import DEPTH
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from engine.consistency.orders import TailsFirst


class Twig:
    """A key of an order of tails first."""

    def __init__(self, parent, lane):
        self.parent, self.lane, self.children = parent, lane, []
        self.touched = 0  # as a touch of each key above would have it


class TailsMachine(RuleBasedStateMachine):
    """An order that touches one key of a path, against one that touches all of them."""

    def __init__(self):
        super().__init__()
        self.order = TailsFirst(lambda key: key.parent, lambda key: key.children, lambda key: key.lane)
        self.held: list[Twig] = []
        self.now = 0

    def pick(self, number):
        return self.held[number % len(self.held)] if self.held else None

    @rule(below=st.integers(0, 99), root=st.booleans(), lane=st.sampled_from("abc"))
    def grow(self, below, root, lane):
        parent = None if root else self.pick(below)
        twig = Twig(parent, lane if parent is None else parent.lane)
        if parent is not None:
            parent.children.append(twig)
        self.held.append(twig)
        self.order.touch(twig)
        self.use(twig)

    @rule(number=st.integers(0, 99))
    def touch(self, number):
        if (twig := self.pick(number)) is not None:
            self.order.touch_path(twig)
            self.use(twig)

    def use(self, twig):
        self.now += 1
        while twig is not None:
            twig.touched, twig = self.now, twig.parent

    @rule(number=st.integers(0, 99))
    def cut(self, number):
        """A split: the new key above is as old as what it was cut from."""
        if (twig := self.pick(number)) is not None:
            upper = Twig(twig.parent, twig.lane)
            if upper.parent is not None:
                upper.parent.children[upper.parent.children.index(twig)] = upper
            twig.parent, upper.children, upper.touched = upper, [twig], twig.touched
            self.held.append(upper)
            self.order.insert_above(upper, twig)

    @rule(number=st.integers(0, 99), oldest=st.booleans())
    def leave(self, number, oldest):
        tails = self.tails()
        if tails:
            twig = tails[0 if oldest else number % len(tails)]
            self.order.discard(twig)
            self.held.remove(twig)
            if twig.parent is not None:
                twig.parent.children.remove(twig)

    @rule(names=st.sets(st.sampled_from("abc")))
    def separate(self, names):
        self.order.separate(sorted(names))

    def tails(self, lane=None):
        found = [twig for twig in self.held if not twig.children and lane in (None, twig.lane)]
        return sorted(found, key=lambda twig: twig.touched)

    @invariant()
    def tails_stand_in_the_order_of_their_last_use(self):
        assert self.order.violations() == []
        assert len(self.order) == len(self.held)
        tails = self.tails()
        assert list(islice(self.order.oldest(lambda key: True), len(tails))) == tails
        assert list(self.order.oldest(lambda key: not key.children)) == tails
        assert set(self.order.oldest(lambda key: True)) == set(self.held)
        for lane in self.order.lanes[1:]:
            assert list(self.order.oldest(lambda key: not key.children, lane=lane)) == self.tails(lane)


TestTailsMachine = TailsMachine.TestCase
TestTailsMachine.settings = settings(max_examples=60 * DEPTH, stateful_step_count=40, deadline=None)
