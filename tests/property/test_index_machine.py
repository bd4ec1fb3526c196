"""The index driven at random against a set of prefixes; ids follow from content alone, however the tree was split."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from engine.index import radix
from engine.index.node import Stretch, node_with, nodes_of, path_to, seed
from engine.index.radix import RadixIndex

PAGE = 2
TOKENS = st.lists(st.integers(0, 2), min_size=0, max_size=14)


def as_bytes(tokens):
    return np.asarray(tokens, dtype=np.int32).tobytes()


class IndexMachine(RuleBasedStateMachine):
    """`held` is every page-aligned prefix that is in the tree, as (namespace, tokens)."""

    def __init__(self):
        super().__init__()
        self.index = RadixIndex(PAGE, "model", lambda namespace: "root")
        self.held: set[tuple[str, tuple[int, ...]]] = set()

    @rule(namespace=st.sampled_from(["a", "b"]), tokens=TOKENS)
    def insert(self, namespace, tokens):
        tokens = tokens[: len(tokens) // PAGE * PAGE]
        data = as_bytes(tokens)
        match = self.index.match(namespace, data)
        if not match.last_is_whole:
            last = match.nodes[-1]
            self.index.split(last, match.pages - last.first_page, lambda *_: "upper")
            match = self.index.match(namespace, data)
        if match.pages * PAGE < len(tokens):
            parent = match.nodes[-1] if match.nodes else None
            self.index.append(namespace, parent, data[match.pages * PAGE * 4 :], lambda *_: "new")
        self.held |= {(namespace, tuple(tokens[:n])) for n in range(PAGE, len(tokens) + 1, PAGE)}

    @rule(pick=st.integers(0, 100))
    def remove_a_leaf(self, pick):
        leaves = [n for n in self.index.walk() if not n.children]
        if leaves:
            leaf = leaves[pick % len(leaves)]
            tokens = tuple(np.frombuffer(self.index.tokens_of(leaf), dtype=np.int32).tolist())
            namespace = next(n for n in ("a", "b") if leaf in self.index.match(n, as_bytes(tokens)).nodes)
            first = leaf.first_page * PAGE
            self.index.remove(leaf)
            self.held -= {(namespace, tokens[:n]) for n in range(first + PAGE, len(tokens) + 1, PAGE)}

    @rule(namespace=st.sampled_from(["a", "b", "never"]), tokens=TOKENS)
    def look(self, namespace, tokens):
        longest = max(
            (n for n in range(0, len(tokens) + 1, PAGE) if n == 0 or (namespace, tuple(tokens[:n])) in self.held),
            default=0,
        )
        match = self.index.match(namespace, as_bytes(tokens))
        assert match.pages * PAGE == longest
        assert b"".join(n.edge for n in match.nodes).startswith(as_bytes(tokens[:longest]))

    @invariant()
    def ids_follow_from_content_alone(self):
        for node in self.index.walk():
            tokens = self.index.tokens_of(node)
            roots = [seed(namespace, "model") for namespace in ("a", "b")]
            for root in roots:
                root.update(tokens)
            assert node.hasher.digest() in {root.digest() for root in roots}
            assert node.first_page == node.parent.last_page
            assert len(node.edge) == node.n_pages * PAGE * 4

    @invariant()
    def steps_along_a_path_are_its_nodes(self):
        for node in self.index.walk():
            path = [node]
            while path[0].parent.parent is not None:
                path.insert(0, path[0].parent)
            namespace = next(n for n in ("a", "b") if self.index._root(n) is path[0].parent)
            match = self.index.match(namespace, self.index.tokens_of(node))
            assert (match.nodes, match.last, match.last_is_whole) == (path, node, True)
            for step in match.path:
                if isinstance(step, Stretch):
                    assert all(each.stretch is step for each in step.nodes)
                    assert step.edge == b"".join(each.edge for each in step.nodes)
                    assert (step.first_page, step.last_page) == (step.nodes[0].first_page, step.nodes[-1].last_page)
            for page in range(node.last_page):
                assert node_with(match.path, page) is next(n for n in path if n.first_page <= page < n.last_page)
                assert nodes_of(path_to(match.path, page)) == [n for n in path if n.first_page < page]
            assert node_with(match.path, node.last_page) is None


@pytest.mark.parametrize("stretch_nodes", [2, 3, radix.STRETCH_NODES])
def test_the_tree_is_what_a_set_of_prefixes_says(monkeypatch, stretch_nodes):
    monkeypatch.setattr(radix, "STRETCH_NODES", stretch_nodes)
    run_state_machine_as_test(IndexMachine, settings=settings(max_examples=60, stateful_step_count=25, deadline=None))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 2**31 - 1), min_size=8, max_size=8), st.sets(st.integers(1, 3)))
def test_a_prefix_id_does_not_depend_on_how_the_tree_was_split(tokens, cuts):
    index = RadixIndex(PAGE, "model", lambda namespace: "root")
    ids = []
    node = index.append("n", None, as_bytes(tokens), lambda prefix_id, *_: ids.append(prefix_id))
    for cut in sorted(cuts, reverse=True):
        top = index.match("n", as_bytes(tokens[: cut * PAGE])).nodes[-1]
        index.split(top, cut, lambda prefix_id, *_: ids.append(prefix_id))
    expected = seed("n", "model")
    expected.update(as_bytes(tokens))
    assert ids[0] == expected.digest()[:16].hex()
    assert index.tokens_of(node) == as_bytes(tokens)
    for prefix_id, cut in zip(ids[1:], sorted(cuts, reverse=True), strict=True):
        fresh = seed("n", "model")
        fresh.update(as_bytes(tokens[: cut * PAGE]))
        assert prefix_id == fresh.digest()[:16].hex()


def test_no_namespace_can_be_made_to_end_in_another_ones_tokens():
    fingerprint = "f" * 32
    inside = b"\0" + fingerprint.encode() + b"\0"  # 34 bytes: two more make whole tokens
    crafted = "a" + inside.decode() + "xy"
    plain, odd = seed("a", fingerprint), seed(crafted, fingerprint)
    plain.update(b"xy" + inside + b"tail")
    odd.update(b"tail")
    assert plain.digest() != odd.digest()
