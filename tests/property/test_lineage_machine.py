"""Several runs of the same tokens, exact and approximate, at random: every hit is wholly of one run, of a kind the
request asked for."""

from __future__ import annotations

from contextlib import suppress

import pytest
from engine_support import DEPTH, fork, prompt
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from lineage_support import Run
from machine_support import RigMachine, run_at_random

from engine import Tier
from engine.errors import CorruptObject, LeaseExpired, StalePointer

SIZES = {"small-deepseek-v4": (12, 6, 90 << 10), "small-gemma-3": (24, 12, 200 << 10)}
WHICH = st.integers(0, 5)
RUNS = st.sampled_from("ab")


class LineageMachine(RigMachine):
    """Runs `a` and `b` are exact and part after page 2; `c`, other from the start, has an approximate basis."""

    sizes = SIZES

    @initialize()
    def start(self):
        self.begin()
        page = self.rig.page
        spec = self.rig.spec
        self.runs = {"a": Run(spec, 1 << 40), "b": Run(spec, 2 * page), "c": Run(spec, 0, 2)}
        trunk = prompt(6 * page, 0)
        self.prompts = [trunk, *(fork(trunk, at, n, at) for at, n in ((64, 256), (130, 300), (192, 384), (256, 333)))]
        self.prompts.append(fork(trunk, 384, 512, 9))

    def of(self, lease, tokens):
        """Which runs the bytes of a hit are of; they must be of one, and of an exact one unless the lease says so."""
        loaded = lease.load()
        found = [name for name, run in self.runs.items() if run.made(loaded, tokens)]
        assert found, f"{lease.usable_tokens} tokens of no run"
        assert lease.approximate or found != ["c"]
        return found

    @rule(which=WHICH, run=RUNS, approximate=st.booleans())
    def request(self, which, run, approximate):
        """A hit goes on as the run it is of; what follows a miss is any run."""
        tokens = self.prompts[which]
        with self.rig.engine.acquire(tokens, deadline_s=3600.0, approximate=approximate) as lease:
            try:
                found = self.of(lease, tokens) if lease.usable_tokens else ["a", "b"]
            except CorruptObject:  # damaged memory, found by the load: refusing is right
                return
            assert approximate or not lease.approximate
            start = 0 if lease.approximate else lease.resume_tokens // self.rig.page * self.rig.page
            name = "c" if lease.approximate else (run if run in found else found[0])
            at = [b for b in lease.checkpoint_hints if b >= start]
            done = self.rig.engine.commit(tokens, self.runs[name].prefill(tokens, start, at), lease=lease)
            assert done.reason != "approximate_needs_whole_state"

    @rule(which=WHICH, run=RUNS, at=st.lists(st.sampled_from([64, 100, 128, 192, 256]), max_size=2))
    def compute_all(self, which, run, at):
        """A whole run that looked at nothing: the newest of its tokens, or refused."""
        tokens = self.prompts[which]
        places = sorted({len(tokens), *(b for b in at if b < len(tokens))})
        self.rig.engine.commit(tokens, self.runs[run].prefill(tokens, 0, places))

    @rule(which=WHICH, approximate=st.booleans())
    def look(self, which, approximate):
        tokens = self.prompts[which]
        with (
            suppress(CorruptObject),
            self.rig.engine.acquire(tokens, deadline_s=3600.0, approximate=approximate) as lease,
        ):
            if lease.usable_tokens:
                self.of(lease, tokens)

    @rule(which=WHICH, approximate=st.booleans())
    def hold(self, which, approximate):
        if len(self.held) < 2:
            tokens = self.prompts[which]
            self.held.append((self.rig.engine.acquire(tokens, deadline_s=3600.0, approximate=approximate), tokens))

    @rule(goes_on=st.booleans())
    def let_go(self, goes_on):
        """A lease held for long, perhaps over: what was loaded from it is still of one run, or it cannot be loaded."""
        if not self.held:
            return
        lease, tokens = self.held.pop(0)
        with suppress(CorruptObject, LeaseExpired, StalePointer):
            if lease.usable_tokens:
                found = self.of(lease, tokens)
                if goes_on and not lease.approximate:
                    self.late(lease, tokens, found[0])
        lease.release()

    def late(self, lease, tokens, name):
        start = lease.resume_tokens // self.rig.page * self.rig.page
        state = self.runs[name].prefill(tokens, start, [len(tokens)])
        lease.release()
        tokens_now = self.prompts[0]
        self.rig.engine.commit(tokens_now, self.runs["b" if name == "a" else "a"].prefill(tokens_now))
        self.rig.engine.commit(tokens, state, lease=lease)

    @rule(seconds=st.sampled_from([1.0, 61.0]))
    def time_passes(self, seconds):
        self.clock.advance(seconds)
        self.rig.engine.tick()

    @rule(kind=st.sampled_from(["evict", "compress", "offload", "warm"]), pick=st.lists(st.integers(0, 20), max_size=3))
    def steer(self, kind, pick):
        ids = self.rig.ids
        chosen = [ids[i % len(ids)] for i in pick] if ids else []
        how = {"compress": {"codec": "lossless"}, "offload": {"tier": "disk" if len(pick) > 1 else "host"}}
        self.rig.command(kind, prefix_ids=chosen, **how.get(kind, {}))

    @rule(which=st.integers(0, 200), at=st.integers(0, 1 << 20))
    def damage_memory(self, which, at):
        self.flip_a_bit(Tier.GPU, which, at)

    @rule(which=st.integers(0, 50))
    def lose_a_file(self, which):
        if files := self.rig.files():
            files[which % len(files)].unlink()

    @invariant()
    def what_is_approximate_is_on_the_gpu_and_nowhere_else(self):
        if hasattr(self, "rig"):
            records = [n.record for n in self.rig.ledger.nodes.values() if n.record.approximate]
            assert not [h for r in records for h in r.holdings() if h.host or h.disk]


@pytest.mark.timeout(300 * DEPTH)
@pytest.mark.parametrize("model", sorted(SIZES))
def test_no_sequence_of_runs_makes_a_hit_of_two(monkeypatch, model):
    run_at_random(LineageMachine, model, monkeypatch, examples=12 * DEPTH)
