"""Each edge of the state machine, with each of its causes, taken by what an embedder or an operator can do."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import product
from typing import Any

import pytest
from engine_support import checkpoint_at, fork, prompt
from lineage_support import Run
from test_engine_approximate import Ward

from engine.consistency.prefix import CauseOf
from engine.consistency.state import TRANSITIONS, Cause, State, check_transition
from engine.errors import CorruptObject, IllegalTransition, StalePointer, TierUnavailable
from engine.model.objects import ObjectKind

EDGES = sorted((before, after, cause) for (before, after), causes in TRANSITIONS.items() for cause in causes)
ACTORS = {Cause.COMMAND: "somebody", Cause.POLICY: "policy:p"}


class Life:
    """One engine with one prefix, and what can happen to it."""

    def __init__(self, make_rig: Any, folder: Any, cause: Cause) -> None:
        self.make_rig, self.folder, self.actor = make_rig, folder, ACTORS.get(cause, "somebody")
        self.rigs: list[Any] = []
        self.pages = 4

    def start(self, **config: Any) -> Any:
        settings = {"gpu_bytes": 1 << 20, "host_bytes": 256 << 10, "disk_bytes": 4 << 20, "data_dir": self.folder}
        clock = {"clock": self.rig.clock} if self.rigs else {}
        self.rigs.append(self.make_rig(**{**settings, **clock, **config}))
        self.tokens = prompt(self.pages * self.rig.page)
        return self.rig

    @property
    def rig(self) -> Any:
        return self.rigs[-1]

    @property
    def record(self) -> Any:
        return self.rig.node(self.id).record

    def full(self, **config: Any) -> Life:
        self.start(**config)
        self.id = self.rig.commit(self.tokens).prefix_id
        return self

    def bare(self, **config: Any) -> Life:
        """Without a checkpoint."""
        self.start(**config)
        self.id = self.rig.commit(self.tokens, []).prefix_id
        return self

    def command(self, kind: str, **arguments: Any) -> Life:
        done = self.rig.command(kind, actor=self.actor, prefix_ids=[self.id], **arguments)
        assert done.status == "succeeded", done
        return self

    def coded(self) -> Life:
        return self.command("compress", codec="lossless")

    def offloaded(self, tier: str = "host") -> Life:
        return self.command("offload", tier=tier)

    def half_restored(self) -> Life:
        """Its pages and its checkpoint's tail are on the GPU alone, the window on the host alone."""
        self.offloaded()
        ledger, read = self.rig.ledger, self.rig.ledger.tiers.restore_host

        def reading(copy: Any, **how: Any) -> Any:
            return read(copy, **how) if copy.page_class != "swa_window" else _out_of_order()

        ledger.tiers.restore_host = reading
        self.rig.look(self.tokens)
        ledger.tiers.restore_host = read
        assert self.record.resident
        assert self.record.state is State.PARTIAL_OFFLOAD
        return self

    def split(self) -> Life:
        self.rig.commit(fork(self.tokens, 2 * self.rig.page, 5 * self.rig.page, 2))
        return self

    def again(self, run: Any = None) -> Life:
        state = (run or self.rig.model).prefill(self.tokens, 0, [len(self.tokens)])
        assert self.rig.engine.commit(self.tokens, state).outcome == "admitted"
        return self

    def another_run(self) -> Life:
        return self.again(Run(self.rig.spec, self.rig.page // 2))

    def crowd(self) -> Life:
        """Other prompts until the prefix has gone somewhere."""
        before = self.record.version
        node = self.rig.node(self.id)
        for seed in range(10, 200):
            self.rig.commit(prompt(6 * self.rig.page, seed))
            if node.record.version != before:
                return self
        raise AssertionError("it stays whatever comes")

    def cap(self, **caps: Any) -> Life:
        self.rig.engine.reconfigure(caps, revision=1)
        return self

    def pin_runs_out(self) -> Life:
        self.command("pin", ttl_s=5)
        self.rig.clock.advance(6)
        self.rig.engine.tick()
        return self

    def damage_gpu(self) -> Life:
        copy, gpu = self.record.spans["compressed_kv"].gpu, self.rig.ledger.tiers.gpu
        gpu.buffer[gpu.addresses(copy.page_class, copy.slots)[-1]] ^= 1
        return self

    def damage_files(self, kind: str = "compressed_kv") -> Life:
        for path in self.rig.files():
            if f"-{kind}-" in path.name:
                raw = bytearray(path.read_bytes())
                raw[-1] ^= 1
                path.write_bytes(raw)
        return self

    def read(self, **how: Any) -> Life:
        with self.rig.engine.acquire(self.tokens, deadline_s=3600.0, **how) as lease:
            if lease.usable_tokens:
                with suppress(CorruptObject, StalePointer):
                    lease.load()
        return self

    def restart(self) -> Life:
        self.rig.engine.close()
        self.start()
        return self

    def quarantined(self, **config: Any) -> Life:
        return self.full(**config).offloaded("disk").damage_files().read()

    def approximate(self, **config: Any) -> Life:
        self.start(**{"host_bytes": 0, "disk_bytes": 0, "data_dir": None, **config})
        self.ward = Ward(self.rig)
        self.id, self.tokens = self.ward.keep(), self.ward.longer
        return self

    def split_approximate(self) -> Life:
        other = fork(self.tokens, len(self.tokens) - 2 * self.rig.page, len(self.tokens) + self.rig.page, 7)
        with self.ward.ask(other) as lease:
            assert lease.approximate
            self.ward.put(self.ward.b, other, lease=lease)
        return self

    def another_approximate_run(self) -> Life:
        with self.ward.ask(self.tokens) as lease:
            pass
        self.ward.put(Run(self.rig.spec, self.rig.page // 2), self.tokens, lease=lease)
        return self

    def approximate_again(self) -> Life:
        with self.ward.ask(self.tokens) as lease:
            assert lease.approximate
            self.ward.put(self.ward.b, self.tokens, lease=lease)
        return self

    def scrub(self) -> Life:
        assert self.rig.command("scrub").outcome["damaged"]
        return self

    def offload_what_is_damaged(self) -> Life:
        assert self.rig.command("offload", prefix_ids=[self.id], tier="disk").status == "refused"
        return self

    def another(self) -> Life:
        self.rig.commit(prompt(2 * self.rig.page, 99))
        return self

    def fail_a_restore_by_command(self) -> Life:
        self.rig.ledger.tiers.restore_host = lambda *_, **__: _out_of_order()
        done = self.rig.command("restore", actor=self.actor, prefix_ids=[self.id])
        assert done.status == "failed", done
        return self

    def two_checkpoints_one_lost(self) -> Life:
        """A second checkpoint inside the last page; its window's file is damaged, the first one's is not."""
        longer = fork(self.tokens, len(self.tokens), len(self.tokens) + 5, 3)
        self.rig.commit(longer)
        self.offloaded("disk")
        block = checkpoint_at(self.record, len(longer)).blocks[ObjectKind.SWA_WINDOW]
        path = self.rig.ledger.tiers.disk.path(block.disk.file)
        path.write_bytes(path.read_bytes()[:-1] + b"\0")
        self.scrub()
        assert self.record.state is State.QUARANTINED
        return self

    def taken(self) -> set[tuple[str, str, str]]:
        found = set()
        for rig in self.rigs:
            rig.engine.flush_telemetry()
            found |= {
                (step["kvcache.state.from"], step["kvcache.state.to"], step["kvcache.cause"])
                for step in rig.log.named("kvcache.transition")
            }
        return found


def _out_of_order() -> None:
    raise TierUnavailable("host: out of order")


S, C = State, Cause
STEERED = (C.COMMAND, C.POLICY)
SMALL = {"gpu_bytes": 256 << 10}
ON_HOST = {"disk_bytes": 0, "data_dir": None}
ALONE = {"host_bytes": 0, "disk_bytes": 0, "data_dir": None}  # what has no room on the GPU is evicted
How = Callable[[Life], Any]
HOW: dict[tuple[State, State], dict[Cause, How]] = {
    (S.NEW, S.FULL): {C.COMMIT: lambda a: a.full(), C.SPLIT: lambda a: a.full().split()},
    (S.NEW, S.COMPRESSED): {C.SPLIT: lambda a: a.full().coded().split()},
    (S.NEW, S.PARTIAL_OFFLOAD): {
        C.SPLIT: lambda a: a.full().offloaded().split(),
        C.ADOPT: lambda a: a.full().restart(),
    },
    (S.NEW, S.APPROXIMATE): {
        C.COMMIT: lambda a: a.approximate(),
        C.SPLIT: lambda a: a.approximate().split_approximate(),
    },
    (S.NEW, S.QUARANTINED): {C.SPLIT: lambda a: a.quarantined().split()},
    (S.FULL, S.FULL): {C.UNPIN: lambda a: a.full().pin_runs_out()},
    (S.FULL, S.COMPRESSED): dict.fromkeys(STEERED, lambda a: a.full().coded()),
    (S.FULL, S.PARTIAL_OFFLOAD): {
        **dict.fromkeys(STEERED, lambda a: a.full().offloaded()),
        C.PRESSURE: lambda a: a.full(**SMALL).crowd(),
        C.CAP: lambda a: a.full().cap(cap_gpu_bytes=5_000),
        C.CORRUPTION: lambda a: a.bare().offloaded("disk").command("restore").damage_gpu().read(),
    },
    (S.FULL, S.QUARANTINED): {C.CORRUPTION: lambda a: a.full().damage_gpu().read()},
    (S.FULL, S.EVICTED): {
        **dict.fromkeys(STEERED, lambda a: a.full().command("evict")),
        C.PRESSURE: lambda a: a.full(**SMALL, **ALONE).crowd(),
        C.CAP: lambda a: a.full(**ALONE).cap(cap_gpu_bytes=5_000),
        C.COMMIT: lambda a: a.full().another_run(),
    },
    (S.COMPRESSED, S.COMPRESSED): {C.UNPIN: lambda a: a.full().coded().pin_runs_out()},
    (S.COMPRESSED, S.PARTIAL_OFFLOAD): {
        **dict.fromkeys(STEERED, lambda a: a.full().coded().offloaded()),
        C.PRESSURE: lambda a: a.full(**SMALL).coded().crowd(),
        C.CAP: lambda a: a.full().coded().cap(cap_gpu_bytes=5_000),
        C.CORRUPTION: lambda a: a.bare().coded().offloaded("disk").command("restore").damage_gpu().read(),
    },
    (S.COMPRESSED, S.QUARANTINED): {C.CORRUPTION: lambda a: a.full().coded().damage_gpu().read()},
    (S.COMPRESSED, S.EVICTED): {
        **dict.fromkeys(STEERED, lambda a: a.full().coded().command("evict")),
        C.PRESSURE: lambda a: a.full(**SMALL, **ALONE).coded().crowd(),
        C.CAP: lambda a: a.full(**ALONE).coded().cap(cap_gpu_bytes=5_000),
        C.COMMIT: lambda a: a.full().coded().another_run(),
    },
    (S.PARTIAL_OFFLOAD, S.FULL_RESTORE): {
        **dict.fromkeys(STEERED, lambda a: a.full().offloaded().command("restore")),
        C.RESTORE: lambda a: a.full().offloaded().read(),
    },
    (S.PARTIAL_OFFLOAD, S.FULL): {
        C.COMMIT: lambda a: a.full().offloaded().again(),
        C.PRESSURE: lambda a: a.full(gpu_bytes=512 << 10).half_restored().crowd(),
        C.CAP: lambda a: a.full().half_restored().cap(checkpoint_budget_ratio=0.001),
    },
    (S.PARTIAL_OFFLOAD, S.COMPRESSED): {
        C.COMMIT: lambda a: a.full().coded().half_restored().again(),
        C.PRESSURE: lambda a: a.full(gpu_bytes=512 << 10).coded().half_restored().crowd(),
        C.CAP: lambda a: a.full().coded().half_restored().cap(checkpoint_budget_ratio=0.001),
    },
    (S.PARTIAL_OFFLOAD, S.PARTIAL_OFFLOAD): {
        **dict.fromkeys(STEERED, lambda a: a.full().half_restored().offloaded()),
        C.UNPIN: lambda a: a.full().offloaded().pin_runs_out(),
        C.PRESSURE: lambda a: a.full().offloaded().cap(cap_host_bytes=1),
        C.CAP: lambda a: a.full().half_restored().cap(cap_gpu_bytes=5_000),
    },
    (S.PARTIAL_OFFLOAD, S.QUARANTINED): {
        C.CORRUPTION: lambda a: a.full().half_restored().damage_gpu().offload_what_is_damaged(),
        C.SCRUB: lambda a: a.full().offloaded("disk").damage_files().scrub(),
    },
    (S.PARTIAL_OFFLOAD, S.EVICTED): {
        **dict.fromkeys(STEERED, lambda a: a.full().offloaded().command("evict")),
        C.PRESSURE: lambda a: a.full(**ON_HOST).offloaded().cap(cap_host_bytes=1),
        C.CAP: lambda a: a.full().offloaded().cap(cap_prefixes=1).another(),
        C.COMMIT: lambda a: a.full().offloaded().another_run(),
    },
    (S.FULL_RESTORE, S.FULL): {
        **dict.fromkeys(STEERED, lambda a: a.full().offloaded().command("restore")),
        C.RESTORE: lambda a: a.full().offloaded().read(),
    },
    (S.FULL_RESTORE, S.COMPRESSED): {
        **dict.fromkeys(STEERED, lambda a: a.full().coded().offloaded().command("restore")),
        C.RESTORE: lambda a: a.full().coded().offloaded().read(),
    },
    (S.FULL_RESTORE, S.PARTIAL_OFFLOAD): {
        **dict.fromkeys(STEERED, lambda a: a.full().offloaded().fail_a_restore_by_command()),
        C.RESTORE: lambda a: a.full().half_restored(),
    },
    (S.FULL_RESTORE, S.QUARANTINED): {C.CORRUPTION: lambda a: a.quarantined()},
    (S.APPROXIMATE, S.APPROXIMATE): {C.UNPIN: lambda a: a.approximate().pin_runs_out()},
    (S.APPROXIMATE, S.QUARANTINED): {C.CORRUPTION: lambda a: a.approximate().damage_gpu().read(approximate=True)},
    (S.APPROXIMATE, S.EVICTED): {
        **dict.fromkeys(STEERED, lambda a: a.approximate().command("evict")),
        C.PRESSURE: lambda a: a.approximate(gpu_bytes=512 << 10).crowd(),
        C.CAP: lambda a: a.approximate().cap(cap_prefixes=1).another(),
        C.COMMIT: lambda a: a.approximate().another_approximate_run(),
    },
    (S.QUARANTINED, S.QUARANTINED): {C.UNPIN: lambda a: a.quarantined().pin_runs_out()},
    (S.QUARANTINED, S.FULL): {C.COMMIT: lambda a: a.bare().offloaded("disk").damage_files().scrub().again()},
    (S.QUARANTINED, S.COMPRESSED): {
        C.COMMIT: lambda a: a.full().coded().offloaded("disk").damage_files("swa_window").read().again()
    },
    (S.QUARANTINED, S.PARTIAL_OFFLOAD): {C.COMMIT: lambda a: a.full().two_checkpoints_one_lost().again()},
    (S.QUARANTINED, S.APPROXIMATE): {
        C.COMMIT: lambda a: a.approximate().damage_gpu().read(approximate=True).approximate_again()
    },
    (S.QUARANTINED, S.EVICTED): {
        **dict.fromkeys(STEERED, lambda a: a.quarantined().command("evict")),
        C.PRESSURE: lambda a: a.quarantined(**SMALL).cap(cap_disk_bytes=1),
        C.CAP: lambda a: a.quarantined().cap(cap_prefixes=1).another(),
        C.COMMIT: lambda a: a.quarantined().another_run(),
    },
}
"""How each edge is taken, from the start of an engine."""


@pytest.mark.parametrize(("before", "after", "cause"), EDGES)
def test_every_edge_is_taken_by_each_of_its_causes(make_rig, tmp_path, before, after, cause):
    life = Life(make_rig, tmp_path, cause)
    HOW[before, after][cause](life)
    assert (str(before), str(after), str(cause)) in life.taken(), sorted(life.taken())
    life.rig.assert_clean()


def test_every_way_that_is_tested_is_in_the_table():
    assert {(a, b, cause) for (a, b), causes in HOW.items() for cause in causes} == set(EDGES)


def test_every_other_step_is_refused_and_changes_nothing(make_rig, tmp_path):
    life = Life(make_rig, tmp_path, Cause.COMMAND).full()
    ledger, node = life.rig.ledger, life.rig.node(life.id)
    for before, after, cause in product(State, State, Cause):
        if cause in TRANSITIONS.get((before, after), ()):
            continue
        with pytest.raises(IllegalTransition):
            check_transition(life.id, before, after, cause)
        if before is node.record.state:
            was, counted, version = life.rig.states, ledger.counters.transitions, node.record.version
            with pytest.raises(IllegalTransition):
                ledger.move(node, after, CauseOf(cause))
            assert (life.rig.states, ledger.counters.transitions, node.record.version) == (was, counted, version)
    life.rig.assert_clean()
