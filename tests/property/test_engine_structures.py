"""The index, the arena, the codecs and the file format against naive models."""

from __future__ import annotations

from itertools import islice, pairwise

import numpy as np
import pytest
import torch
from engine_support import DEPTH
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from engine.consistency.orders import TailsFirst
from engine.errors import CodecRefused, CorruptObject, StalePointer
from engine.index import radix
from engine.index.node import Stretch, node_with, nodes_of, path_to, seed
from engine.index.radix import RadixIndex
from engine.memory import diskfile
from engine.memory.arena import Arena
from engine.memory.checksum import page_sums
from engine.memory.codec import NATIVE_META, PageCodec
from engine.memory.diskfile import ObjectHeader
from engine.memory.layout import torch_dtype
from engine.model.objects import layouts_of
from engine.model.presets import preset
from engine.model.spec import Field, Full, Layer, ModelSpec

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


# -- codecs -----------------------------------------------------------------------------------------------------------


def history_of(dtype, width=41, lossy_allowed=True):
    field = Field(name="kv", dtype=dtype, width=width)
    part = Full(fields=(field,), lossy_allowed=lossy_allowed)
    return layouts_of(ModelSpec(name="m", revision="1", page_tokens=8, layers=(Layer(parts=(part,)),))).history


@st.composite
def pages(draw, layout, exponents):
    """Pages whose bits are anything, or (easier to code) floats around one magnitude."""
    n = draw(st.integers(1, 3))
    luck = np.random.default_rng(draw(st.integers(0, 2**32)))
    out = torch.zeros((n, layout.slot_bytes), dtype=torch.uint8)
    segment = layout.segments[0]
    if draw(st.booleans()):
        raw = torch.from_numpy(luck.integers(0, 256, (n, segment.segment_bytes), dtype=np.uint8))
    else:
        values = luck.standard_normal((n, segment.rows * segment.width)) * 2.0 ** draw(exponents)
        values[luck.random(values.shape) < draw(st.sampled_from([0.0, 0.02, 0.3]))] = 0
        raw = torch.from_numpy(values).to(torch_dtype(segment.dtype)).view(torch.uint8).view(n, -1)
    out[:, : segment.segment_bytes] = raw
    return out


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_lossless_gives_every_bit_back_or_refuses(dtype, data):
    layout = history_of(dtype)
    codec = PageCodec("lossless", layout)
    native = data.draw(pages(layout, st.integers(-130, 120)))
    try:
        coded, meta = codec.encode(native)
    except CodecRefused:
        return
    assert meta.error_bound == 0
    assert torch.equal(codec.decode(coded, meta), native)
    assert coded.shape[1] < native.shape[1]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float16"])
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_int8_is_within_the_error_it_recorded_or_refuses(dtype, data):
    layout = history_of(dtype)
    codec = PageCodec("int8", layout)
    native = data.draw(pages(layout, st.integers(-20, 10)))
    try:
        coded, meta = codec.encode(native)
    except CodecRefused:
        return
    size = layout.segments[0].segment_bytes

    def values(raw):
        return raw[:, :size].contiguous().view(torch_dtype(dtype)).double()

    back = codec.decode(coded, meta)
    assert float((values(back) - values(native)).abs().max()) <= meta.error_bound
    assert torch.equal(codec.roundtrip(native), back)


def test_a_codec_that_saves_nothing_and_one_from_another_version_are_refused():
    fp8 = PageCodec("lossless", history_of("float8_e4m3fn"))
    with pytest.raises(CodecRefused):
        fp8.encode(torch.zeros((1, fp8.layout.slot_bytes), dtype=torch.uint8))
    mla = PageCodec("int8", history_of("bfloat16", lossy_allowed=False))
    assert not mla.useful
    codec = PageCodec("lossless", history_of("bfloat16"))
    coded, _ = codec.encode(torch.zeros((1, codec.layout.slot_bytes), dtype=torch.uint8))
    with pytest.raises(CodecRefused):
        codec.decode(coded, NATIVE_META)


@pytest.mark.parametrize("name", ["small-deepseek-v4", "small-gemma-3", "small-llama", "small-qwen3-next"])
@pytest.mark.parametrize("n", [1, 2])
def test_pages_of_every_model_survive_lossless_one_at_a_time_and_together(name, n):
    layout = layouts_of(preset(name)).history
    codec = PageCodec("lossless", layout)
    native = torch.zeros((n, layout.slot_bytes), dtype=torch.uint8)
    for segment in layout.segments:
        values = torch.randn(n, segment.rows * segment.width).to(torch_dtype(segment.dtype))
        native[:, segment.offset_bytes : segment.offset_bytes + segment.segment_bytes] = values.view(torch.uint8).view(
            n, -1
        )
    assert torch.equal(codec.roundtrip(native), native)


# -- files ------------------------------------------------------------------------------------------------------------


def a_file(n_pages=2, slot_bytes=48, n_tokens=6):
    luck = np.random.default_rng(n_pages)
    data = torch.from_numpy(luck.integers(0, 256, (n_pages, slot_bytes), dtype=np.uint8))
    header = ObjectHeader(
        fingerprint="f" * 32, namespace="tenant ü", kind="swa_window", prefix_id="a" * 32, boundary=6, first_page=0,
        n_pages=n_pages, page_class="swa_window", content_version=5, built_from=0, codec=NATIVE_META, written_ns=1,
    )  # fmt: skip
    tokens = luck.integers(0, 1 << 31, n_tokens, dtype=np.int32)
    return header, data, tokens, b"".join(diskfile.encode(header, data, page_sums(data), tokens))


def test_a_file_reads_back_as_it_was_written():
    header, data, tokens, raw = a_file()
    stored = diskfile.decode(np.frombuffer(bytearray(raw), dtype=np.uint8), "x")
    assert stored.header == header
    assert torch.equal(stored.pages, data)
    assert np.array_equal(stored.tokens, tokens)
    assert np.array_equal(stored.sums, page_sums(data))


def test_any_single_byte_changed_anywhere_is_found():
    raw = a_file()[3]
    for at in range(len(raw)):
        for flip in (0x01, 0x29, 0x80):  # 0x29 turns the header's padding into a tab, which is no content
            changed = bytearray(raw)
            changed[at] ^= flip
            with pytest.raises(CorruptObject):
                diskfile.decode(np.frombuffer(changed, dtype=np.uint8), "x")


def test_a_file_cut_anywhere_is_found():
    raw = a_file()[3]
    for size in range(len(raw)):
        with pytest.raises(CorruptObject):
            diskfile.decode(np.frombuffer(bytearray(raw[:size]), dtype=np.uint8), "x")


@settings(max_examples=100 * DEPTH, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 400))
def test_bytes_that_are_no_file_are_refused_and_nothing_else_happens(junk, at):
    raw = bytearray(a_file()[3])
    raw[at : at + len(junk)] = junk
    if bytes(raw) == a_file()[3]:
        return
    with pytest.raises(CorruptObject):
        diskfile.decode(np.frombuffer(raw, dtype=np.uint8), "x")


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
