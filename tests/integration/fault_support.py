"""What the tests of faults share: an engine with a disk under it, what its device does, and that a fault is over."""

from __future__ import annotations

import threading

from engine_support import Rig, fork, prompt

from engine.memory.faults import At

DISK = {"gpu_bytes": 1 << 20, "disk_bytes": 8 << 20}
SHORTLY_S = 0.05
"""How long a call that hangs is waited for here; nothing else takes any real time."""
SYSTEM_CALLS = (At.OPEN, At.WRITE, At.SYNC, At.RENAME, At.SYNC_FOLDER, At.UNLINK, At.READ)


def breaker(rig):
    return rig.ledger.tiers.io["disk"].breaker.state


def lane(rig):
    return rig.ledger.tiers.io["disk"].lane


def be_patient(rig):
    """From now on nothing hangs, and a busy machine may take its time."""
    rig.ledger.tiers.io["disk"]._limit_s = 600.0


def wait_until(condition):
    """pytest's own time limit is the bound."""
    while not condition():
        threading.Event().wait(0.002)


def whole(rig, tokens):
    found = rig.look(tokens)
    assert (found.usable, found.wrong_bytes) == (len(tokens), 0), found
    rig.assert_clean()


def scenario(rig):
    """Writes, reads and deletes files, with a split in between; small, as it runs once for each point of failure."""
    trunk = prompt(2 * rig.page + 3)
    first = rig.commit(trunk)
    rig.command("offload", prefix_ids=[first.prefix_id], tier="disk")
    rig.look(trunk)
    other = fork(trunk, rig.page, 2 * rig.page, 1)
    rig.serve(other)
    rig.command("offload", prefix_ids=rig.ids, tier="disk")
    rig.command("evict", prefix_ids=rig.ids[:1], descendants=True)
    rig.look(other)
    return trunk, other


def scene(folder, faults, clock):
    """A fresh engine of the scenario; the quota is so small that files must make way for others."""
    return Rig(
        "small-gpt-oss", clock=clock, data_dir=folder, faults=faults, gpu_bytes=256 << 10, disk_bytes=64 << 10
    )  # fmt: skip


def nothing_leaks(rig, prompts, point):
    rig.engine.tick()
    assert rig.engine.check() == [], point
    on_disk = {p.name: p.stat().st_size for p in (rig.engine.config.data_dir / "objects").iterdir()}
    assert not [name for name in on_disk if name.endswith(".tmp")], point
    disk = rig.ledger.tiers.disk
    assert (sum(on_disk.values()), disk.leaving_bytes) == (disk.used_bytes, 0), point
    assert not rig.ledger.tiers.sweeper.doomed, point
    for tokens in prompts:
        assert rig.look(tokens).wrong_bytes == 0, point
    assert rig.engine.check() == [], point
    assert not [n for n in rig.ledger.nodes.values() if n.record.busy or n.record.leases], point
