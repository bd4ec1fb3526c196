"""No memory on the GPU or the host, and workers that die, caused: a refusal or a detour, and nothing left behind.

What each fault leads to is promised in docs/reference/faults.md, which names the tests here.
"""

from __future__ import annotations

import pytest
from engine_support import prompt
from fault_support import (
    breaker,
    whole,
)

from engine.errors import OutOfMemory
from engine.memory.faults import At, Fault, What


def test_a_gpu_without_room_refuses_the_commit_and_keeps_nothing_of_it(faulty):
    rig, tokens, faults = faulty(Fault(what=What.OUT_OF_MEMORY, at=At.GPU_TAKE, times=None), offload=None)
    assert rig.commit(tokens, []).reason == "out_of_memory"
    assert rig.ids == []
    rig.assert_clean()
    faults.disarm()
    assert rig.commit(tokens).outcome == "admitted"
    whole(rig, tokens)


@pytest.mark.parametrize("nth", range(1, 5))
def test_a_gpu_without_memory_for_the_copy_refuses_the_commit_and_keeps_nothing_of_it(faulty, nth):
    rig, tokens, _ = faulty(Fault(what=What.OUT_OF_MEMORY, at=At.GPU_WRITE, nth=nth), offload=None)
    assert rig.commit(tokens).reason == "out_of_memory"
    assert rig.ids == []
    rig.assert_clean()
    assert rig.commit(tokens).outcome == "admitted"
    whole(rig, tokens)


def test_a_gpu_without_memory_for_a_load_raises_and_the_next_load_works(faulty):
    rig, tokens, _ = faulty(Fault(what=What.OUT_OF_MEMORY, at=At.GPU_READ), offload=None)
    rig.commit(tokens)
    with rig.engine.acquire(tokens) as lease:
        with pytest.raises(OutOfMemory):
            lease.load()
        assert rig.lossy.verify(lease.load(), tokens).ok
    rig.assert_clean()


@pytest.mark.parametrize("where", ["compressed_kv", "swa_window"])
def test_a_gpu_without_memory_for_a_restore_leaves_the_prefix_below(faulty, where):
    rig, tokens, faults = faulty(Fault(what=What.OUT_OF_MEMORY, at=At.GPU_WRITE, where=where, nth=2, times=None))
    found = rig.look(tokens)
    assert found.usable < len(tokens)
    assert (found.wrong_bytes, found.reason) == (0, "no_room")
    assert faults.fired
    rig.assert_clean()
    faults.disarm()
    whole(rig, tokens)


@pytest.mark.parametrize("at", [At.HOST_TAKE, At.HOST_WRITE, At.GPU_READ])
def test_a_host_without_memory_sends_what_must_leave_to_the_disk(faulty, at):
    rig, tokens, faults = faulty(
        Fault(what=What.OUT_OF_MEMORY, at=at, where="compressed_kv"), offload=None, host_bytes=1 << 20
    )
    prefix_id = rig.commit(tokens).prefix_id
    assert rig.command("offload", prefix_ids=[prefix_id], tier="host").outcome["refused"]
    assert faults.fired
    rig.assert_clean()
    assert rig.command("offload", prefix_ids=[prefix_id], tier="disk").outcome["offloaded"] == 1
    whole(rig, tokens)


@pytest.mark.parametrize("at", [At.READ, At.HOST_READ])
def test_a_host_without_memory_for_a_read_leaves_the_prefix_below_and_the_breaker_closed(faulty, at):
    tier = "disk" if at is At.READ else "host"
    rig, tokens, faults = faulty(Fault(what=What.OUT_OF_MEMORY, at=at, times=None), offload=tier, host_bytes=1 << 20)
    found = rig.look(tokens)
    assert (found.usable, found.reason) == (0, "no_room")
    assert faults.fired
    assert breaker(rig) == "closed"
    rig.assert_clean()
    faults.disarm()
    whole(rig, tokens)


def test_a_compaction_without_memory_moves_nothing_and_loses_nothing(faulty):
    rig, _, faults = faulty(offload=None, gpu_bytes=512 << 10)
    prompts = [prompt(8 * rig.page, seed) for seed in range(8)]
    ids = [rig.commit(tokens, []).prefix_id for tokens in prompts]
    rig.command("evict", prefix_ids=[ids[i] for i in (0, 1, 2, 4, 5)])
    faults.plan = (Fault(what=What.OUT_OF_MEMORY, at=At.GPU_WRITE, times=None),)
    faults._matched, faults._struck = [0], [0]
    assert rig.command("compact").outcome["pages"] == 0
    assert faults.fired
    faults.disarm()
    rig.assert_clean()
    assert rig.command("compact").outcome["pages"] > 0
    for tokens in prompts:
        assert rig.look(tokens).wrong_bytes == 0


def test_a_worker_that_dies_is_replaced_and_its_work_is_done(faulty):
    rig, tokens, faults = faulty(Fault(what=What.DEATH, at=At.WORKER, where="offloaded", times=3))
    whole(rig, tokens)
    queue = rig.engine._queues["offloaded"]
    assert queue.deaths == 3 == faults.fired[What.DEATH, At.WORKER]
    assert queue._worker().is_alive()


def test_an_error_nobody_expects_in_a_restore_is_raised_and_no_mark_stays(faulty, monkeypatch):
    rig, tokens, _ = faulty()
    with monkeypatch.context() as patch:
        patch.setattr(rig.ledger.tiers, "restore_disk", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            rig.look(tokens)
    rig.assert_clean()
    assert rig.states == {"PARTIAL_OFFLOAD": 1}
    assert rig.engine._queues["offloaded"].failures == 1
    whole(rig, tokens)
