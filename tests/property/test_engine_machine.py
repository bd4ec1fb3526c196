"""A real engine driven at random against a dict of what was committed: no step may serve a wrong byte."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from typing import ClassVar

import numpy as np
import pytest
from engine_support import DEPTH, fork, prompt
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from machine_support import RigMachine, Suspicious, WatchedBooks, run_at_random

from engine import Tier
from engine.errors import CorruptObject, LeaseExpired, StalePointer
from engine.memory.codec import LOSSY

# Slots of the models differ in size.
SIZES = {
    "small-deepseek-v4": (8, 4, 70 << 10),
    "small-gemma-3": (18, 9, 150 << 10),
    "small-qwen3-next": (16, 7, 110 << 10),
}
EXAMPLES = 15 * DEPTH
LOSS = 1.0
"""One prefix of a path may be coded with loss: the judge says 1.0 of each."""
NAMESPACES = ("default", "default", "tenant/ä")
CAPS = (
    None,
    {"tenant/ä": {"guaranteed_bytes": 15_000, "max_bytes": 25_000}},
    {"default": {"guaranteed_bytes": 25_000, "max_prefixes": 6}, "tenant/ä": {"guaranteed_bytes": 15_000}},
    {"default": {"max_bytes": 30_000}, "tenant/ä": {"max_prefixes": 2, "guaranteed_bytes": 10_000}},
)
LENGTHS = st.sampled_from([1, 63, 64, 65, 100, 128, 129, 191, 192, 200, 256, 300, 333, 384])


class EngineMachine(RigMachine):
    """`told` is the naive model: every (namespace, tokens) ever committed, whole prompts, never forgotten."""

    sizes = SIZES
    config: ClassVar = {"codec": "int8", "code_compressed": True, "max_logit_error": LOSS}

    @initialize()
    def start(self):
        self.told: dict[str, list[np.ndarray]] = defaultdict(list)
        trunk = prompt(384, 0)
        self.prompts = [trunk, *(fork(trunk, at, n, n) for at, n in ((64, 256), (130, 300), (256, 384), (0, 333)))]
        self.begin()

    def open(self):
        super().open()
        self.rig.engine.set_quality_judge(Suspicious(self.rig.lossy))
        self.books = WatchedBooks()
        for name in ("gpu_bytes", "prefixes", "total_bytes"):  # what was adopted
            setattr(self.books, name, getattr(self.rig.ledger.namespaces, name))
        self.rig.ledger.namespaces = self.books
        self.allowed = {}

    def close(self):
        super().close()
        self.versions_are_dense()

    # -- prompts ------------------------------------------------------------------------------------------------------

    @rule(of=st.integers(0, 9), share=LENGTHS, length=LENGTHS, seed=st.integers(1, 3))
    def branch(self, of, share, length, seed):
        base = self.prompts[of % len(self.prompts)]
        at = min(share, length, len(base))
        self.prompts = [*self.prompts, fork(base, at, length, seed)][-10:]

    # -- requests -----------------------------------------------------------------------------------------------------

    @rule(
        which=st.lists(st.integers(0, 9), min_size=1, max_size=5),
        namespace=st.sampled_from(NAMESPACES),
        extra=st.lists(LENGTHS, max_size=2),
        deadline_s=st.sampled_from([3600.0, 3600.0, 0.0]),
    )
    def requests(self, which, namespace, extra, deadline_s):
        for i in which:
            tokens = self.prompts[i % len(self.prompts)]
            self.books.serving = namespace
            try:
                found = self.rig.serve(tokens, namespace=namespace, extra=extra, deadline_s=deadline_s)
            except CorruptObject:  # damaged memory, found by the load: refusing is right
                continue
            finally:
                self.books.serving = None
            self.judge(found, tokens, namespace)
            if found.commit.outcome == "admitted":
                self.told[namespace].append(tokens)
            self.books_balance()
            self.namespaces_keep_their_maxima()

    @rule(
        which=st.integers(0, 9),
        namespace=st.sampled_from(NAMESPACES),
        deadline_s=st.sampled_from([3600.0, 3600.0, 0.0]),
    )
    def look(self, which, namespace, deadline_s):
        tokens = self.prompts[which % len(self.prompts)]
        with suppress(CorruptObject):
            self.judge(self.rig.look(tokens, namespace=namespace, deadline_s=deadline_s), tokens, namespace)

    @rule(which=st.integers(0, 9))
    @precondition(lambda self: len(self.held) < 2)
    def hold(self, which):
        tokens = self.prompts[which % len(self.prompts)]
        self.held.append((self.rig.engine.acquire(tokens, deadline_s=3600.0), tokens))

    @rule(release=st.booleans())
    @precondition(lambda self: self.held)
    def read_what_is_held(self, release):
        lease, tokens = self.held[0]
        if lease.usable_tokens:
            try:
                assert self.rig.lossy.verify(lease.load(), tokens[: lease.usable_tokens]).ok
            except (LeaseExpired, StalePointer, CorruptObject):  # refusing is always right
                release = True
        if release:
            lease.release()
            self.held.pop(0)

    @rule(seconds=st.sampled_from([1.0, 30.0, 61.0]))
    def time_passes(self, seconds):
        self.clock.advance(seconds)
        self.rig.engine.tick()

    # -- steering -----------------------------------------------------------------------------------------------------

    def some_ids(self, pick):
        ids = self.rig.ids
        return [ids[i % len(ids)] for i in pick] if ids else []

    @rule(pick=st.lists(st.integers(0, 30), min_size=1, max_size=3), tree=st.booleans())
    def evict(self, pick, tree):
        self.rig.command("evict", prefix_ids=self.some_ids(pick), descendants=tree)

    @rule(pick=st.lists(st.integers(0, 30), min_size=1, max_size=3), codec=st.sampled_from(["lossless", *LOSSY]))
    def compress(self, pick, codec):
        self.rig.command("compress", prefix_ids=self.some_ids(pick), codec=codec)

    @rule(pick=st.lists(st.integers(0, 30), min_size=1, max_size=4), tier=st.sampled_from(["host", "disk"]))
    def offload(self, pick, tier):
        self.rig.command("offload", prefix_ids=self.some_ids(pick), tier=tier)

    @rule(pick=st.lists(st.integers(0, 30), min_size=1, max_size=3))
    def warm(self, pick):
        self.rig.command("warm", prefix_ids=self.some_ids(pick))

    @rule(pick=st.lists(st.integers(0, 30), min_size=1, max_size=2), off=st.booleans())
    def pin(self, pick, off):
        self.rig.command("unpin" if off else "pin", prefix_ids=self.some_ids(pick), ttl_s=40)

    @rule()
    def compact(self):
        self.rig.command("compact")

    @rule()
    def scrub(self):
        self.rig.command("scrub")

    @rule(
        mode=st.sampled_from(
            ["normal", "normal", "normal", "normal", "no_disk", "resident_only", "full_only", "bypass"]
        ),
        prefixes=st.sampled_from([None, None, None, 5]),
        gpu=st.sampled_from([None, None, None, 40_000]),
        host=st.sampled_from([None, 10_000]),
        disk=st.sampled_from([None, 20_000]),
        caps=st.sampled_from(CAPS),
        admission=st.sampled_from(["all", "all", "second_touch", "first_pages:2"]),
        eviction=st.sampled_from(["lru", "cost_aware"]),
    )
    def steer(self, mode, prefixes, gpu, host, disk, caps, admission, eviction):
        wanted = {"mode": mode, "cap_prefixes": prefixes, "cap_gpu_bytes": gpu, "cap_host_bytes": host}
        rules = {"namespace_caps": caps, "admission_rule": admission, "eviction": eviction}
        self.rig.engine.reconfigure({**wanted, **rules, "cap_disk_bytes": disk}, revision=1)
        # What leases and pins held above a maximum when it was set may stay; it may not grow.
        self.allowed = {
            name: (
                max(cap.max_bytes or 1 << 40, self.books.gpu_bytes.get(name, 0)),
                max(cap.max_prefixes or 1 << 40, self.books.prefixes.get(name, 0)),
            )
            for name, cap in self.books.shares.caps.items()
        }

    # -- damage -------------------------------------------------------------------------------------------------------

    @rule(which=st.integers(0, 50), how=st.sampled_from(["flip", "cut", "delete", "swap"]), at=st.floats(0, 0.999))
    def damage(self, which, how, at):
        files = self.rig.files()
        if not files:
            return
        path = files[which % len(files)]
        raw = bytearray(path.read_bytes())
        if how == "flip" and not raw:  # it was cut to nothing before
            return
        if how == "flip":
            raw[int(at * len(raw))] ^= 0x10
            path.write_bytes(raw)
        elif how == "cut":
            path.write_bytes(raw[: int(at * len(raw))])
        elif how == "delete":
            path.unlink()
        else:
            other = files[(which + 1) % len(files)]
            path.write_bytes(other.read_bytes())
            other.write_bytes(raw)

    @rule(which=st.integers(0, 200), tier=st.sampled_from(["gpu", "host"]), at=st.integers(0, 1 << 20))
    def damage_memory(self, which, tier, at):
        self.flip_a_bit(Tier(tier), which, at)

    # -- what must hold -----------------------------------------------------------------------------------------------

    def judge(self, found, tokens, namespace):
        assert found.wrong_bytes == 0, found.first_wrong
        assert found.usable <= found.lcp <= self.common(tokens, namespace)

    def common(self, tokens, namespace):
        """The longest run any committed prompt shares with `tokens`."""
        best = 0
        for told in self.told[namespace]:
            n = min(len(told), len(tokens))
            differ = np.flatnonzero(told[:n] != tokens[:n])
            best = max(best, int(differ[0]) if len(differ) else n)
        return best

    @invariant()
    def namespaces_keep_their_maxima(self):
        for name, (n_bytes, n_prefixes) in getattr(self, "allowed", {}).items():
            assert self.books.gpu_bytes.get(name, 0) <= n_bytes
            assert self.books.prefixes.get(name, 0) <= n_prefixes

    @invariant()
    def nobody_took_a_guaranteed_share(self):
        if hasattr(self, "rig"):
            assert self.books.wrong == []

    @invariant()
    def pins_keep_their_budget(self):
        if hasattr(self, "rig"):
            pins = self.rig.ledger.pins
            assert pins.held_bytes <= pins.budget_bytes or any(n.record.coded for n in self.rig.ledger.nodes.values())

    @invariant()
    def the_checkpoints_keep_their_budget(self):
        if hasattr(self, "rig"):
            ledger = self.rig.ledger
            assert len(ledger.underway) == ledger.underway.checkpoint_bytes == ledger.underway.disk_bytes == 0
            assert ledger.checkpoints.gpu_bytes <= 0.3 * ledger.tiers.gpu.total_bytes

    @invariant()
    def nothing_is_left_booked(self):
        if hasattr(self, "rig"):
            nodes = self.rig.ledger.nodes.values()
            assert self.books.total_bytes == sum(node.record.gpu_bytes for node in nodes)
            assert sum(self.books.prefixes.values()) == len(nodes)

    @invariant()
    def nothing_is_left_busy(self):
        if hasattr(self, "rig"):
            assert not [r for r in self.rig.engine.snapshot() if r["state.to"] == "FULL_RESTORE"]

    @invariant()
    def no_path_has_lost_more_than_the_bound(self):
        if not hasattr(self, "rig"):
            return
        assert self.rig.engine._quality.judge.wrong == []
        losses = {}
        for node in self.rig.ledger.index.walk():  # parents before children
            holding = node.record.spans["compressed_kv"]
            metas = {c.meta for c in (holding.gpu, holding.host, holding.disk) if c is not None and c.meta.error_bound}
            losses[node] = losses.get(node.parent, set()) | {(holding.content_version, m) for m in metas}
            assert sum(meta.logit_error for _, meta in losses[node]) <= LOSS

    def versions_are_dense(self):
        """Every life's transition spans count 1, 2, 3...; and the counters say as many spans as arrived."""
        engine, log = self.rig.engine, self.rig.log
        engine.flush_telemetry()
        lives = defaultdict(list)
        for step in log.named("kvcache.transition"):
            lives[step["kvcache.prefix.id"], step["kvcache.life"]].append(step["kvcache.version"])
        assert all(versions == list(range(1, len(versions) + 1)) for versions in lives.values())
        counters, tally = engine.counters(), engine.spans_recorded()
        assert counters.transitions == sum(map(len, lives.values()))
        assert counters.validations == len(log.named("kvcache.validate")) + tally.dropped_checks
        assert counters.requests == len(log.named("kvcache.acquire"))
        assert tally.recorded == len(log.spans)


@pytest.mark.timeout(300 * DEPTH)
@pytest.mark.parametrize("model", sorted(SIZES))
def test_no_sequence_of_requests_commands_and_damage_serves_a_wrong_byte(monkeypatch, model):
    run_at_random(EngineMachine, model, monkeypatch, examples=EXAMPLES)
