"""Calls that are slow or hang, caused: who waits, for how long, and what comes back too late harms nobody.

What each fault leads to is promised in docs/reference/faults.md, which names the tests here.
"""

from __future__ import annotations

import threading

import pytest
from engine_support import Rig, prompt
from fault_support import (
    DISK,
    SHORTLY_S,
    be_patient,
    breaker,
    lane,
    wait_until,
    whole,
)

from engine.clock import ManualClock
from engine.errors import FolderLocked
from engine.memory.faults import At, Fault, What
from engine.memory.lane import MOST_STUCK


def test_a_slow_read_is_waited_for_within_the_deadline(faulty):
    clock = ManualClock()
    rig, tokens, _ = faulty(Fault(what=What.SLOW, at=At.READ, seconds=2.0), clock=clock, sleep=clock.advance)
    whole(rig, tokens)


def test_a_read_slower_than_the_deadline_ends_the_restore_and_the_prefix_stays_below(faulty):
    clock = ManualClock()
    rig, tokens, _ = faulty(Fault(what=What.SLOW, at=At.READ, seconds=60.0), clock=clock, sleep=clock.advance)
    found = rig.look(tokens, deadline_s=5.0)
    assert (found.usable, found.wrong_bytes, found.reason) == (0, 0, "restore_late")
    rig.assert_clean()
    assert rig.states == {"PARTIAL_OFFLOAD": 1}
    whole(rig, tokens)


def test_a_hanging_read_holds_neither_its_request_nor_its_worker_and_its_bytes_are_thrown_away(faulty):
    rig, tokens, faults = faulty(Fault(what=What.HANG, at=At.READ), call_limit_s=SHORTLY_S)
    found = rig.look(tokens)
    assert (found.usable, found.wrong_bytes, found.reason) == (0, 0, "tier_unavailable")
    assert (lane(rig).stuck, lane(rig).overdue) == (1, 1)
    assert breaker(rig) == "open"
    assert rig.states == {"PARTIAL_OFFLOAD": 1}
    rig.assert_clean()
    assert rig.engine.counters().recoveries == {("disk", "failed"): 1}
    assert rig.command("compact").status == "succeeded"  # other work goes on
    rig.clock.advance(6)
    be_patient(rig)
    whole(rig, tokens)  # the trial takes another thread, while the first call is still out
    assert (breaker(rig), lane(rig).stuck) == ("closed", 1)
    be_patient(rig)
    faults.release()
    wait_until(lambda: lane(rig).stuck == 0)
    whole(rig, tokens)


def test_a_read_that_hangs_in_the_middle_of_the_pages_never_writes_to_slots_of_others(faulty):
    """It reads straight into GPU slots: they are nobody else's until it is back, however long that takes."""
    hang = Fault(what=What.HANG, at=At.READ, where="compressed_kv", nth=4)  # after two of the header, one of checksums
    rig, tokens, faults = faulty(hang, call_limit_s=SHORTLY_S)
    gpu = rig.ledger.tiers.gpu
    assert rig.look(tokens).usable == 0
    assert faults.hanging == 1
    kept = gpu.live_bytes
    assert kept >= 5 * gpu.slot_bytes("compressed_kv")  # of an object that no prefix has on the GPU
    rig.assert_clean()
    others = [prompt(4 * rig.page, 100 + seed) for seed in range(3)]
    for other in others:
        assert rig.commit(other).outcome == "admitted"
    be_patient(rig)
    faults.release()
    wait_until(lambda: lane(rig).stuck == 0)
    for other in others:
        assert rig.look(other, deadline_s=0).wrong_bytes == 0
        rig.command("evict", prefix_ids=[rig.commit(other).prefix_id])
    assert gpu.live_bytes == 0
    rig.assert_clean()
    rig.clock.advance(6)
    whole(rig, tokens)


def test_a_request_leaves_a_hanging_read_at_its_own_deadline(faulty):
    rig, tokens, faults = faulty(Fault(what=What.HANG, at=At.READ), restore_timeout_s=3600.0)
    found = rig.look(tokens, deadline_s=SHORTLY_S)
    assert (found.usable, found.reason) == (0, "restore_late")
    assert faults.hanging == 1
    faults.release()  # it comes back in its time: late for the request, good for the next one
    wait_until(lambda: rig.states == {"FULL": 1})
    whole(rig, tokens)


def test_a_device_that_never_answers_costs_a_bounded_number_of_threads(faulty):
    rig, tokens, faults = faulty(Fault(what=What.HANG, at=At.READ, times=None), call_limit_s=SHORTLY_S)
    for _ in range(MOST_STUCK + 3):
        assert rig.look(tokens).usable == 0
        rig.clock.advance(6)
    assert lane(rig).stuck == MOST_STUCK
    assert faults.hanging == MOST_STUCK
    assert rig.look(tokens).reason == "tier_unavailable"
    rig.assert_clean()
    be_patient(rig)
    faults.disarm()
    wait_until(lambda: lane(rig).stuck == 0)
    rig.clock.advance(6)
    whole(rig, tokens)


@pytest.mark.parametrize("at", [At.OPEN, At.WRITE, At.SYNC, At.RENAME])
def test_a_hanging_write_lets_the_commit_go_on_and_leaves_no_file_when_it_comes_back(faulty, at):
    rig, tokens, faults = faulty(Fault(what=What.HANG, at=at), offload=None, call_limit_s=SHORTLY_S)
    prefix_id = rig.commit(tokens).prefix_id
    assert rig.command("offload", prefix_ids=[prefix_id], tier="disk").outcome["refused"]
    rig.assert_clean()
    whole(rig, tokens)  # it stayed on the GPU
    be_patient(rig)
    faults.release()
    wait_until(lambda: lane(rig).stuck == 0)
    assert list((rig.engine.config.data_dir / "objects").iterdir()) == []
    rig.assert_clean()
    rig.clock.advance(6)
    assert rig.command("offload", prefix_ids=[prefix_id], tier="disk").outcome["offloaded"] == 1
    whole(rig, tokens)


def test_a_hanging_delete_stops_no_request_and_is_counted_once(faulty):
    rig, _, faults = faulty(Fault(what=What.HANG, at=At.UNLINK), call_limit_s=SHORTLY_S)
    rig.command("evict", prefix_ids=rig.ids)
    assert rig.commit(prompt(3 * rig.page, 1)).outcome == "admitted"
    assert rig.ledger.tiers.disk.leaving_bytes > 0
    rig.assert_clean()
    be_patient(rig)
    faults.release()
    wait_until(lambda: lane(rig).stuck == 0)
    rig.clock.advance(6)
    rig.engine.tick()
    assert (rig.ledger.tiers.disk.leaving_bytes, rig.files()) == (0, [])
    rig.assert_clean()


def test_a_hanging_delete_holds_only_the_thread_that_met_it(faulty):
    rig, _, faults = faulty(Fault(what=What.HANG, at=At.UNLINK), restore_timeout_s=3600.0)
    deleting = threading.Thread(target=lambda: rig.command("evict", prefix_ids=rig.ids))
    deleting.start()
    wait_until(lambda: faults.hanging)
    tokens = prompt(3 * rig.page, 1)
    assert rig.commit(tokens).outcome == "admitted"
    assert rig.look(tokens).usable == len(tokens)
    rig.engine.tick()
    be_patient(rig)
    faults.release()
    deleting.join()
    assert rig.files() == []
    rig.assert_clean()


def test_a_folder_is_given_to_others_only_when_the_last_call_is_back(faulty, make_rig, tmp_path):
    rig, tokens, faults = faulty(Fault(what=What.HANG, at=At.RENAME), offload=None, call_limit_s=SHORTLY_S)
    rig.command("offload", prefix_ids=[rig.commit(tokens).prefix_id], tier="disk")
    rig.engine.close()
    with pytest.raises(FolderLocked, match="another engine uses this folder"):
        Rig(data_dir=tmp_path, **DISK)
    be_patient(rig)
    faults.release()
    wait_until(lambda: lane(rig).stuck == 0)
    wait_until(lambda: _opens(make_rig, tmp_path))


def _opens(make_rig, folder):
    try:
        rig = make_rig(data_dir=folder, clock=ManualClock(wall_ns=1_900_000_000_000_000_000), **DISK)
    except FolderLocked:
        return False
    rig.assert_clean()
    assert rig.files() == []
    return True
