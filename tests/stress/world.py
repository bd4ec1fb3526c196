"""What operations are interleaved in: one engine with one scene, what is done to it, and what must hold of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support import Rig, fork, prompt
from lineage_support import Run

from engine import NewState, preset
from engine.errors import CodecRefused, LeaseExpired, StalePointer
from engine.integrations.verification import compare_all
from engine.memory.holding import Tier
from engine.memory.layout import pack_pages
from engine.model.objects import ObjectKind

MODEL = "small-deepseek-v4"
LEASE_S = 60.0
SPEC = preset(MODEL)
PAGE = SPEC.page_tokens
RUN = Run(SPEC, 0)  # the model; the others compute the same tokens with other last bits from some page on
OTHER = Run(SPEC, 3 * PAGE)
LATE = Run(SPEC, 5 * PAGE)
RUNS = (RUN.model, OTHER, LATE)
TRUNK = prompt(4 * PAGE)
LONG = fork(TRUNK, 4 * PAGE, 6 * PAGE, 1)  # its last two pages are `cold`: below the GPU when a scene begins
IN_TRUNK = fork(TRUNK, 2 * PAGE, 5 * PAGE, 2)  # a commit of these cuts the trunk
IN_COLD = fork(LONG, 5 * PAGE, 7 * PAGE, 3)  # and of these `cold`
KEPT, PASSING = prompt(8 * PAGE, 4), prompt(7 * PAGE, 5)  # leave holes in the slabs, so that a compaction has work
AGAIN = prompt(6 * PAGE, 6)  # takes the slots that others freed
BEGUN = IN_COLD[: 6 * PAGE]
PROMPTS = {
    "begun": BEGUN,
    "trunk": TRUNK,
    "long": LONG,
    "in_trunk": IN_TRUNK,
    "in_cold": IN_COLD,
    "kept": KEPT,
    "again": AGAIN,
}


@cache
def _state(run: int, name: str) -> NewState:
    """What a run computes for a prompt, with a checkpoint at its end: the same for every engine."""
    tokens = PROMPTS[name]
    return RUNS[run].prefill(tokens, 0, [len(tokens)])


@cache
def _truth(run: int, name: str, boundary: int, replay: int) -> Any:
    return RUNS[run].truth(PROMPTS[name][:boundary], boundary, replay)


class World:
    """One engine in one scene, and what must hold of everything that is read from it."""

    def __init__(self, make_rig: Any, scene: str, folder: Path | None, *, checksums: bool = True) -> None:
        self.folder, self.rig = folder, None
        self._make = make_rig
        self.open()
        self.engine, self.tiers = self.rig.engine, self.rig.ledger.tiers
        self.tiers.sealed_on_commit = self.engine._server._planner._validator._sealed_on_commit = checksums
        self.allowed: tuple[type[Exception], ...] = ()  # what a load may raise, because somebody ended its lease
        self.closed_too = False
        self.refused: dict[str, int] = {}
        self.table = self.engine.new_page_table(8)
        self.set_up(scene)

    def open(self) -> None:
        below = {} if self.folder is None else {"disk_bytes": 1 << 20, "data_dir": self.folder}
        clock = None if self.rig is None else self.rig.clock
        self.rig: Rig = self._make(
            MODEL, clock=clock, gpu_bytes=512 << 10, host_bytes=128 << 10, slab_bytes=16 << 10, lease_s=LEASE_S,
            restore_timeout_s=600.0, checkpoint_budget_ratio=0.5, spans=False, **below,
        )  # fmt: skip

    def set_up(self, scene: str) -> None:
        self.commit("kept", checkpoints=False)
        passing = self.engine.commit(PASSING, RUN.model.prefill(PASSING, 0, [])).prefix_id
        self.trunk_id = self.commit("trunk").prefix_id
        self.cold_id = self.commit("long").prefix_id
        self.rig.command("evict", prefix_ids=[passing])
        self.rig.command("offload", prefix_ids=[self.cold_id], tier="disk" if scene == "disk" else "host")
        if scene == "coded":
            self.rig.command("compress", prefix_ids=[self.trunk_id], codec="lossless")
        self.old_lease = self.engine.acquire(TRUNK) if scene == "leased" else None

    # -- doing --------------------------------------------------------------------------------------------------------

    def commit(self, name: str, run: int = 0, *, checkpoints: bool = True) -> Any:
        state = _state(run, name)
        if not checkpoints:
            state = NewState(start_tokens=0, end_tokens=state.end_tokens, entries=state.entries, checkpoints={})
        return self.engine.commit(PROMPTS[name], state)

    def command(self, kind: str, **arguments: Any) -> None:
        done = self.rig.command(kind, **arguments)
        for item in (*done.outcome.get("refused", ()), *(done.outcome.get("failed") or ())):
            self.refused[item["reason"]] = self.refused.get(item["reason"], 0) + 1

    def compress(self, codec: str) -> None:
        self.command("compress", prefix_ids=self.both(), codec=codec)

    def both(self) -> list[str]:
        return [self.cold_id, self.trunk_id]

    def acquire(self, name: str) -> Any:
        return self.engine.acquire(PROMPTS[name], deadline_s=3600.0)

    def read(self, name: str) -> None:
        with self.acquire(name) as lease:
            self.load(lease, name)

    def load(self, lease: Any, name: str) -> None:
        """Right bytes, of one run, or a refusal that somebody gave a reason for."""
        if not lease.usable_tokens:
            return
        try:
            loaded = lease.load()
        except self.allowed:
            return
        wrong = []
        for run in range(len(RUNS)):
            wrong.append(self._wrong(loaded, run, name))
            if not wrong[-1]:
                return
        raise AssertionError(f"{name} at {loaded.boundary_tokens} tokens is of no run: {'; '.join(wrong)}")

    def _wrong(self, loaded: Any, run: int, name: str) -> str:
        truth = _truth(run, name, loaded.boundary_tokens, loaded.replay_tokens)
        results = (
            *compare_all(truth.entries, loaded.entries, self.rig.lossy._lossy),
            *compare_all(truth.boundary, loaded.boundary, {}),
        )
        return next((r.first_wrong for r in results if r.first_wrong), "")

    def end_leases(self) -> None:
        """Another thread ends every lease, whoever reads; then what they read leaves and its slots are used again."""
        self.allowed = (StalePointer, LeaseExpired)
        for lease in self.rig.ledger.leases.live():
            lease.release()
        self._use_again()

    def let_leases_run_out(self, reading: bool) -> None:
        """The clock ends every lease, but not one in the middle of a copy."""
        self.let_time_pass(reading)
        self._use_again()

    def let_time_pass(self, reading: bool) -> None:
        if not reading:
            self.allowed = (LeaseExpired,)
        self.rig.clock.advance(LEASE_S + 1)
        self.engine.tick()

    def _use_again(self) -> None:
        self.command("evict", prefix_ids=self.both(), descendants=True)
        self.commit("again")

    def page_table(self) -> None:
        """Offsets of the trunk's pages: those of its bytes, as long as nothing was raised."""
        table = self.table
        with self.acquire("trunk") as lease:
            if not lease.usable_tokens:
                return
            try:
                lease.fill_page_table(ObjectKind.COMPRESSED_KV, table)
            except LeaseExpired as error:
                if not isinstance(error, self.allowed):
                    raise
            except StalePointer as error:
                if table.length or not isinstance(error, self.allowed):
                    raise
            except CodecRefused:
                if lease.explanation.codec == "native":
                    raise
            else:
                self._compare_pages(table.offsets[: table.length], table.length)

    def _compare_pages(self, offsets: Any, n: int) -> None:
        layout = self.tiers.layouts.history
        pages = torch.stack([self.tiers.gpu.buffer[at : at + layout.slot_bytes] for at in offsets.tolist()])
        made = [pack_pages(layout, _state(run, "trunk").entries, 0, range(n), PAGE) for run in range(len(RUNS))]
        assert any(torch.equal(pages, page) for page in made), "a page table names pages of other bytes"

    def window(self) -> None:
        """A replay of a graph over the trunk's pages, without a lease: inside the window none is moved or freed."""
        gpu, ledger = self.tiers.gpu, self.rig.ledger
        with self.engine.graph.window():
            with ledger.lock:
                node = ledger.nodes.get(self.trunk_id)
                copy = node.record.spans[ObjectKind.COMPRESSED_KV].gpu if node is not None else None
                pointer = gpu.point(copy.page_class, copy.slots.copy()) if copy is not None else None
            before = gpu.read(pointer.page_class, pointer.slots) if pointer is not None else None
            self.inside()
            if pointer is not None:
                assert gpu.is_current(pointer), "a page was freed or moved inside a graph window"
                assert torch.equal(before, gpu.read(pointer.page_class, pointer.slots))

    def inside(self) -> None:
        """A point: the graph is being replayed."""

    def open_window(self) -> Callable[[], None]:
        window = self.engine.graph.window()
        window.__enter__()
        return lambda: window.__exit__(None, None, None)

    def hold(self) -> Callable[[], None]:
        """A lease that is granted now and read when the other operation is over."""
        lease = self.acquire("trunk")

        def read() -> None:
            with lease:
                self.load(lease, "trunk")

        return read

    def shrink(self, **caps: Any) -> Callable[[], None]:
        self.engine.reconfigure(caps, revision=1)
        return lambda: None if self.engine._closed else self.engine.reconfigure({}, revision=2)

    def balanced(self) -> None:
        """The books balance in the middle of whatever the other operation does."""
        found = self.engine.check()
        assert not found, f"unbalanced on the way: {found}"

    def close(self) -> None:
        self.allowed = (StalePointer, LeaseExpired)
        self.closed_too = True
        self.engine.close()

    # -- what must hold afterwards ------------------------------------------------------------------------------------

    def judge(self) -> None:
        """Nothing wrong is served, the books balance and nothing is left over; and the engine still works."""
        self._nothing_left()
        if self.engine._closed:
            if self.folder is None:
                return
            self.allowed = ()
            self.open()
            self.engine, self.tiers = self.rig.engine, self.rig.ledger.tiers
        self.allowed = ()
        for name in ("trunk", "long", "in_trunk", "in_cold", "kept"):
            self.read(name)
        for name in ("long", "in_cold"):
            assert (done := self.commit(name)).outcome == "admitted", f"{name} is not kept any more: {done}"
            with self.acquire(name) as lease:
                assert lease.usable_tokens == len(PROMPTS[name]), f"{name} is not served: {lease.explanation}"
                self.load(lease, name)
        self._nothing_left()

    def _nothing_left(self) -> None:
        if self.old_lease is not None:
            with pytest.raises(LeaseExpired):
                self.old_lease.load()
        ledger = self.rig.ledger
        found = self.engine.check()
        if self.engine._closed:  # the folder may be another engine's by now: what went after that is the next start's
            found = [line for line in found if "files nobody refers to" not in line]
        records = [node.record for node in ledger.nodes.values()]
        leftovers = {
            "check": found,
            "damaged": ledger.damages,
            "busy or leased": [(r.prefix_id, r.busy, r.leases) for r in records if r.busy or r.leases],
            "in a restore": [r.prefix_id for r in records if r.state == "FULL_RESTORE" or r.arriving_bytes],
            "leases": len(ledger.leases),
            "windows": int(ledger.graph.in_window) + len(ledger.graph._deferred),
            "on its way": len(ledger.underway) or ledger.underway.checkpoint_bytes or ledger.underway.disk_bytes,
            "bytes in the books too many": ledger.namespaces.total_bytes - sum(r.held_bytes(Tier.GPU) for r in records),
            "prefixes in the books too many": sum(ledger.namespaces.prefixes.values()) - len(records),
            "work in queues": [q.form for q in self.engine._queues.all() if q.depth or q.failures or q.deaths],
        }
        if self.folder is not None and not self.engine._closed:
            leftovers |= {
                "files": {path.name for path in (self.folder / "objects").iterdir()} ^ set(self.tiers.disk.files),
                "bytes that do not leave the disk": self.tiers.disk.leaving_bytes,
                "stuck calls": self.tiers.stuck_calls,
            }
        left = {what: found for what, found in leftovers.items() if found}
        assert not left, f"left over: {left}"
