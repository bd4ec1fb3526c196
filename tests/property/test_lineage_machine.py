"""Several runs of the same tokens, exact and approximate, at random: every hit is wholly of one run, of a kind the
request asked for."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from engine_support import DEPTH, Rig, do_not_wait_for_the_disk, fork, poison_freed_slots, prompt
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from lineage_support import Run

from engine.clock import ManualClock
from engine.errors import CorruptObject, LeaseExpired, StalePointer
from engine.index import radix
from engine.integrations.synthetic import use_one_thread

SLAB_BYTES = 10 << 10
SIZES = {"small-deepseek-v4": (12, 6, 90 << 10), "small-gemma-3": (24, 12, 200 << 10)}
WHICH = st.integers(0, 5)
RUNS = st.sampled_from("ab")


class LineageMachine(RuleBasedStateMachine):
    """Runs `a` and `b` are exact and part after page 2; `c`, other from the start, has an approximate basis."""

    model = "small-deepseek-v4"

    @initialize()
    def start(self):
        self.folder = Path(tempfile.mkdtemp(prefix="kvdeck-lineage-"))
        self.clock = ManualClock()
        self.held: list = []
        self.open()
        page = self.rig.page
        spec = self.rig.spec
        self.runs = {"a": Run(spec, 1 << 40), "b": Run(spec, 2 * page), "c": Run(spec, 0, 2)}
        trunk = prompt(6 * page, 0)
        self.prompts = [trunk, *(fork(trunk, at, n, at) for at, n in ((64, 256), (130, 300), (192, 384), (256, 333)))]
        self.prompts.append(fork(trunk, 384, 512, 9))

    def open(self):
        self.clock.advance(1.0)
        gpu, host, disk_bytes = SIZES[self.model]
        self.rig = Rig(
            self.model, clock=self.clock, data_dir=self.folder, lease_s=60.0, slab_bytes=SLAB_BYTES,
            gpu_bytes=gpu * SLAB_BYTES, host_bytes=host * SLAB_BYTES, disk_bytes=disk_bytes,
        )  # fmt: skip

    def teardown(self):
        if hasattr(self, "rig"):
            self.rig.engine.close()
            shutil.rmtree(self.folder, ignore_errors=True)

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
        arena = self.rig.ledger.tiers.gpu
        holdings = [h for node in self.rig.ledger.index.walk() for h in node.record.holdings()]
        copies = [h.gpu for h in holdings if h.gpu is not None and len(h.gpu.slots)]
        if copies:
            copy = copies[which % len(copies)]
            address = arena.addresses(copy.page_class, copy.slots)[at % len(copy.slots)]
            arena.buffer[int(address) + at % copy.page_bytes] ^= 0x20

    @rule(which=st.integers(0, 50))
    def lose_a_file(self, which):
        if files := self.rig.files():
            files[which % len(files)].unlink()

    @rule()
    def restart(self):
        for lease, _ in self.held:
            lease.release()
        self.held = []
        self.rig.engine.close()
        self.open()

    @invariant()
    def books_balance(self):
        if hasattr(self, "rig"):
            assert self.rig.engine.check() == []

    @invariant()
    def what_is_approximate_is_on_the_gpu_and_nowhere_else(self):
        if hasattr(self, "rig"):
            records = [n.record for n in self.rig.ledger.nodes.values() if n.record.approximate]
            assert not [h for r in records for h in r.holdings() if h.host or h.disk]


@pytest.mark.timeout(300 * DEPTH)
@pytest.mark.parametrize("model", sorted(SIZES))
def test_no_sequence_of_runs_makes_a_hit_of_two(monkeypatch, model):
    use_one_thread()
    poison_freed_slots(monkeypatch)
    do_not_wait_for_the_disk(monkeypatch)
    monkeypatch.setattr(radix, "STRETCH_NODES", 2)  # so that paths of few prefixes have some
    machine = type("Machine", (LineageMachine,), {"model": model})
    limits = settings(
        max_examples=12 * DEPTH,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    run_state_machine_as_test(machine, settings=limits)
