"""A small real engine that a state machine drives at random: restarted, its memory damaged, its books balanced."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import pytest
from engine_support import Rig, do_not_wait_for_the_disk, poison_freed_slots
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from engine import Tier
from engine.clock import ManualClock
from engine.consistency.namespaces import NamespaceBooks
from engine.index import radix
from engine.integrations.synthetic import use_one_thread
from engine.schedule.quality import Quality

SLAB_BYTES = 10 << 10


class RigMachine(RuleBasedStateMachine):
    """What all machines over an engine do. Each begins with `begin`, and holds leases as (lease, tokens) in `held`."""

    model: ClassVar[str]
    sizes: ClassVar[dict[str, tuple[int, int, int]]]
    """By model: slabs of GPU and of host, and bytes of disk, that a few prompts overflow."""
    config: ClassVar[dict[str, Any]] = {}

    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="kvdeck-machine-"))
        self.clock = ManualClock()
        self.held: list[tuple[Any, Any]] = []
        self.open()

    def open(self) -> None:
        self.clock.advance(1.0)  # two starts within one nanosecond are not of this world
        gpu, host, disk_bytes = self.sizes[self.model]
        self.rig = Rig(
            self.model, clock=self.clock, data_dir=self.folder, lease_s=60.0, slab_bytes=SLAB_BYTES,
            gpu_bytes=gpu * SLAB_BYTES, host_bytes=host * SLAB_BYTES, disk_bytes=disk_bytes, **self.config,
        )  # fmt: skip

    def close(self) -> None:
        for lease, _ in self.held:
            lease.release()
        self.held = []
        self.rig.engine.close()

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    @rule()
    def restart(self) -> None:
        self.close()
        self.open()

    def flip_a_bit(self, tier: Tier, which: int, at: int) -> None:
        """In a page that somebody owns in this tier, if there is one."""
        arena = self.rig.ledger.tiers.arena(tier)
        copies = [
            copy
            for node in self.rig.ledger.index.walk()
            for holding in node.record.holdings()
            if (copy := getattr(holding, tier)) is not None and len(copy.slots)
        ]
        if copies:
            copy = copies[which % len(copies)]
            address = arena.addresses(copy.page_class, copy.slots)[at % len(copy.slots)]
            arena.buffer[int(address) + at % copy.page_bytes] ^= 0x20

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "rig"):
            assert self.rig.engine.check() == []


class Suspicious:
    """Compares what it is to judge with the truth; a wrong byte counts as a loss no bound allows."""

    def __init__(self, model):
        self.model = model
        self.wrong = []

    def judge(self, native, coded, tokens):
        found = [self.model.verify(state, tokens) for state in (native, coded)]
        self.wrong += [f.first_wrong for f in found if not f.ok]
        if found[1].lossy_bytes < found[0].lossy_bytes:
            self.wrong.append("less is lost once more is coded")
        return Quality(logit_error=1.0, kl=0.0, positions=1)


class WatchedBooks(NamespaceBooks):
    """Judges every byte that a namespace loses while another one is served, by the rule in words."""

    def __init__(self):
        super().__init__()
        self.serving = None
        self.wrong = []

    def add_bytes(self, namespace, n_bytes):
        others_above = self.above() - {namespace}
        super().add_bytes(namespace, n_bytes)
        share = self.shares.guaranteed(namespace)
        if n_bytes < 0 and self.serving not in (None, namespace) and self.gpu_bytes[namespace] < share and others_above:
            self.wrong.append(f"{self.serving} took {-n_bytes} of {namespace}, {others_above} are above their share")


def run_at_random(machine: type[RigMachine], model: str, patch: pytest.MonkeyPatch, *, examples: int) -> None:
    """`examples` random sequences of 40 steps over an engine of this model."""
    use_one_thread()
    poison_freed_slots(patch)
    do_not_wait_for_the_disk(patch)
    patch.setattr(radix, "STRETCH_NODES", 2)  # so that paths of few prefixes have some
    limits = settings(
        max_examples=examples,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    run_state_machine_as_test(type("Machine", (machine,), {"model": model}), settings=limits)
