"""Faults of the device, caused at every call it gets: nothing leaks, and what is published is whole.

What each fault leads to is promised in docs/reference/faults.md, which names the tests here.
"""

from __future__ import annotations

import threading

import pytest
from engine_support import Rig, do_not_wait_for_the_disk, poison_freed_slots, prompt
from fault_support import (
    DISK,
    SHORTLY_S,
    SYSTEM_CALLS,
    breaker,
    nothing_leaks,
    scenario,
    scene,
    wait_until,
    whole,
)

from engine.clock import ManualClock
from engine.errors import TierUnavailable
from engine.integrations.synthetic import use_one_thread
from engine.memory.faults import At, Fault, Faults, What


def test_an_error_at_any_single_call_of_the_device_leaks_nothing(tmp_path, monkeypatch):
    """Every open, write, fsync, rename, unlink and read of the scenario fails once with ENOSPC, and from there on
    with EIO."""
    use_one_thread()
    poison_freed_slots(monkeypatch)
    do_not_wait_for_the_disk(monkeypatch)
    counted = Faults()
    rig = scene(tmp_path / "counted", counted, ManualClock())
    scenario(rig)
    rig.engine.close()
    points = [(at, nth) for at in SYSTEM_CALLS for nth in range(1, counted.seen[at] + 1)]
    assert len(points) > 60
    assert all(counted.seen[at] for at in SYSTEM_CALLS)
    for at, nth in points:
        for what, times in ((What.NO_SPACE, 1), (What.IO_ERROR, None)):
            folder = tmp_path / f"{at}-{nth}-{what}"
            clock = ManualClock()
            faults = Faults(Fault(what=what, at=at, nth=nth, times=times))
            rig = scene(folder, faults, clock)
            try:
                prompts = scenario(rig)
                assert faults.fired, (at, nth, what)
                faults.disarm()
                clock.advance(10)  # the breaker may try again
                nothing_leaks(rig, prompts, (at, nth, what))
            finally:
                rig.engine.close()
            clock.advance(1)
            again = scene(folder, None, clock)
            try:
                assert again.engine.adoption.damaged == 0, (at, nth, what)
                nothing_leaks(again, prompts, (at, nth, what))
            finally:
                again.engine.close()


PUBLICATION = (At.OPEN, At.WRITE, At.SYNC, At.RENAME, At.SYNC_FOLDER, At.UNLINK)


@pytest.mark.parametrize("what", [What.CRASH, What.POWER_CUT])
def test_a_crash_before_any_single_call_leaves_whole_objects_or_none(tmp_path, monkeypatch, what):
    """The process dies before each open, write, fsync, rename, folder fsync and unlink; the next start finds a folder
    in which each object is whole or not there. After a power cut too: what was not synced is lost."""
    use_one_thread()
    poison_freed_slots(monkeypatch)
    do_not_wait_for_the_disk(monkeypatch)
    counted = Faults()
    rig = scene(tmp_path / "counted", counted, ManualClock())
    scenario(rig)
    rig.engine.close()
    for at in PUBLICATION:
        for nth in range(1, counted.seen[at] + 1):
            folder, clock = tmp_path / f"{at}-{nth}", ManualClock()
            dying = scene(folder, Faults(Fault(what=what, at=at, nth=nth)), clock)
            prompts = scenario(dying)
            dying.engine.close()  # nothing it does reaches the device any more
            clock.advance(1)
            again = scene(folder, None, clock)
            try:
                assert again.engine.adoption.damaged == 0, (at, nth)
                nothing_leaks(again, prompts, (at, nth))
            finally:
                again.engine.close()


def test_files_that_cannot_be_deleted_count_against_the_quota_and_evict_nobody_else(faulty):
    rig, _, faults = faulty(Fault(what=What.IO_ERROR, at=At.UNLINK, times=None), disk_bytes=128 << 10)
    rig.command("evict", prefix_ids=rig.ids)
    disk = rig.ledger.tiers.disk
    assert disk.used_bytes == 0 < disk.leaving_bytes
    kept = [rig.commit(prompt(5 * rig.page, seed)).prefix_id for seed in range(1, 12)]
    refused = rig.command("offload", prefix_ids=kept, tier="disk").outcome["refused"]
    assert {item["reason"] for item in refused} == {"no_room_below"}
    assert disk.used_bytes + disk.leaving_bytes <= disk.quota_bytes
    assert len(rig.ids) >= len(kept) - 1  # at most one try to make room, and not the whole disk
    faults.disarm()
    rig.engine.tick()
    assert disk.leaving_bytes == 0
    assert rig.command("offload", prefix_ids=[refused[-1]["prefix_id"]], tier="disk").outcome["offloaded"] == 1
    rig.assert_clean()


@pytest.mark.parametrize("what", [What.IO_ERROR, What.NO_FILES])
def test_an_error_that_passes_is_tried_again_and_the_request_is_served(faulty, what):
    rig, tokens, faults = faulty(Fault(what=what, at=At.OPEN, where="compressed_kv", nth=2, times=2))
    whole(rig, tokens)
    assert faults.fired[what, At.OPEN] == 2
    assert rig.ledger.tiers.io["disk"].retries == 2


def test_reads_that_go_on_failing_open_the_breaker_and_one_trial_closes_it(faulty):
    rig, tokens, faults = faulty(Fault(what=What.IO_ERROR, at=At.READ, times=None))
    reasons = [rig.look(tokens).reason for _ in range(4)]
    assert set(reasons) == {"tier_unavailable"}
    assert breaker(rig) == "open"
    tried = faults.seen[At.READ]
    assert rig.look(tokens).usable == 0
    assert faults.seen[At.READ] == tried  # open: the device is left alone
    rig.clock.advance(6)
    assert breaker(rig) == "half_open"
    assert rig.look(tokens).usable == 0
    assert breaker(rig) == "open"  # the trial failed
    assert faults.seen[At.READ] == tried + 1  # and was one: no retries
    rig.clock.advance(6)
    faults.disarm()
    whole(rig, tokens)
    assert breaker(rig) == "closed"


@pytest.mark.parametrize("at", [At.SCAN, At.OPEN, At.READ])
@pytest.mark.parametrize("what", [What.IO_ERROR, What.HANG])
def test_a_start_on_a_device_that_fails_or_hangs_ends_in_a_sentence(make_rig, tmp_path, what, at):
    first = make_rig(data_dir=tmp_path, **DISK)
    tokens = prompt(3 * first.page)
    first.commit(tokens)
    first.engine.close()
    first.clock.advance(1)
    before = threading.active_count()
    faults = Faults(Fault(what=what, at=at, times=None))
    with pytest.raises(TierUnavailable, match="check the device"):
        Rig(data_dir=tmp_path, faults=faults, clock=first.clock, restore_timeout_s=SHORTLY_S, **DISK)
    faults.disarm()
    wait_until(lambda: threading.active_count() <= before)
    again = make_rig(data_dir=tmp_path, clock=first.clock, **DISK)
    whole(again, tokens)
