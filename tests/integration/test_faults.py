"""Every fault that can be caused, caused: nothing wrong is served, nothing leaks, and it is over when the fault is.

What each one leads to is promised in docs/reference/faults.md, which names the tests here.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import fields

import pytest
from engine_support import Rig, SpanLog, do_not_wait_for_the_disk, fork, poison_freed_slots, prompt

from engine import CacheEngine, EngineConfig, preset
from engine.clock import ManualClock
from engine.errors import ConfigError, CorruptObject, FolderLocked, LeaseExpired, OutOfMemory, TierUnavailable
from engine.integrations.synthetic import use_one_thread
from engine.memory.faults import POSSIBLE, At, Fault, Faults, What
from engine.memory.lane import MOST_STUCK
from engine.memory.movers import copy_from
from engine.memory.quarantine import quarantined

DISK = {"gpu_bytes": 1 << 20, "disk_bytes": 8 << 20}
SHORTLY_S = 0.05
"""How long a call that hangs is waited for here; nothing else takes any real time."""


@pytest.fixture
def faulty(make_rig, tmp_path):
    """Builds a rig with these faults, and gives the tokens of a prefix of five pages that lies on disk alone."""

    def build(*plan, offload="disk", sleep=None, call_limit_s=None, **config):
        faults = Faults(*plan, **({"sleep": sleep} if sleep else {}))
        rig = make_rig(data_dir=tmp_path, faults=faults, **{**DISK, **config})
        tokens = prompt(5 * rig.page + 9)
        if offload:
            done = rig.command("offload", prefix_ids=[rig.commit(tokens).prefix_id], tier=offload)
            assert done.outcome["offloaded"] == 1, done
        if call_limit_s is not None:
            rig.ledger.tiers.io["disk"]._limit_s = call_limit_s
        return rig, tokens, faults

    return build


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


# -- bytes and files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        Fault(what=What.BIT_FLIP, at=At.READ, where="compressed_kv"),
        Fault(what=What.BIT_FLIP, at=At.WRITE, where="compressed_kv", nth=5),
        Fault(what=What.BIT_FLIP, at=At.WRITE, where="compressed_kv", nth=2),
        Fault(what=What.BIT_FLIP, at=At.WRITE, where="swa_window", nth=5),
        Fault(what=What.TRUNCATE, at=At.READ, where="compressed_kv"),
        Fault(what=What.MISSING, at=At.OPEN, where="compressed_kv", nth=2),
        Fault(what=What.FOREIGN, at=At.OPEN, where="compressed_kv", nth=2),
    ],
    ids=lambda fault: f"{fault.what}@{fault.at}-{fault.nth}",
)
def test_damage_on_the_way_is_found_set_aside_and_never_served(faulty, fault):
    rig, tokens, faults = faulty(fault)
    found = rig.look(tokens)
    assert sum(faults.fired.values()) == 1
    assert found.wrong_bytes == 0
    assert found.usable < len(tokens)
    assert rig.states == {"QUARANTINED": 1}
    rig.assert_clean()
    aside = quarantined(rig.engine.config.data_dir / "quarantine")
    if fault.what is not What.MISSING:
        assert [(q.kind, len(q.prefix_id)) for q in aside] == [(fault.where, 32)]
        assert aside[0].why not in ("", "damaged", "not recorded")
    assert rig.commit(tokens).outcome == "admitted"
    whole(rig, tokens)


def test_a_file_shorter_than_what_was_written_is_not_published(faulty):
    """The device said that all was written, and half was."""
    rig, tokens, faults = faulty(Fault(what=What.TRUNCATE, at=At.WRITE, nth=5, times=None), offload=None)
    prefix_id = rig.commit(tokens).prefix_id
    assert rig.command("offload", prefix_ids=[prefix_id], tier="disk").outcome["refused"]
    assert rig.files() == []
    whole(rig, tokens)
    faults.disarm()
    assert rig.command("offload", prefix_ids=[prefix_id], tier="disk").outcome["offloaded"] == 1
    whole(rig, tokens)


def test_short_reads_and_writes_are_nobodys_business(faulty):
    rig, tokens, faults = faulty(
        Fault(what=What.SHORT, at=At.READ, times=None), Fault(what=What.SHORT, at=At.WRITE, times=None)
    )
    whole(rig, tokens)
    assert faults.fired[What.SHORT, At.READ] > 1
    assert faults.fired[What.SHORT, At.WRITE] > 1


@pytest.mark.parametrize("tier", ["gpu", "host"])
def test_a_bit_that_flips_in_memory_is_found_and_never_served(faulty, tier):
    rig, tokens, _ = faulty(
        Fault(what=What.BIT_FLIP, at=At(f"{tier}_write"), where="compressed_kv"),
        offload="host" if tier == "host" else None,
        host_bytes=1 << 20,
    )
    if tier == "gpu":
        rig.commit(tokens)
        with pytest.raises(CorruptObject):
            rig.look(tokens)
    found = rig.look(tokens)
    assert found.wrong_bytes == 0
    assert found.usable < len(tokens)
    rig.assert_clean()
    assert rig.commit(tokens).outcome == "admitted"
    whole(rig, tokens)


def test_bytes_that_change_on_their_way_from_the_host_are_not_mapped_and_the_host_keeps_its_own(faulty, monkeypatch):
    rig, tokens, _ = faulty(offload="host", host_bytes=1 << 20)

    def changed(source):
        move = copy_from(source)

        def moved(piece, offset):
            move(piece, offset)
            piece[0] ^= 1

        return moved

    with monkeypatch.context() as patch:
        patch.setattr("engine.memory.tiers.copy_from", changed)
        assert rig.look(tokens).reason == "tier_unavailable"
    assert rig.states == {"PARTIAL_OFFLOAD": 1}
    assert rig.ledger.tiers.gpu.live_bytes == 0
    whole(rig, tokens)


# -- the device fails ------------------------------------------------------------------------------------------------


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


SYSTEM_CALLS = (At.OPEN, At.WRITE, At.SYNC, At.RENAME, At.SYNC_FOLDER, At.UNLINK, At.READ)


def scene(folder, faults, clock):
    """A fresh engine of the scenario; the quota is so small that files must make way for others."""
    return Rig(
        "small-gpt-oss", clock=clock, data_dir=folder, faults=faults, gpu_bytes=256 << 10, disk_bytes=64 << 10
    )  # fmt: skip


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


# -- time ------------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("seconds", [-86_400.0, -1e-6, 86_400.0])
def test_a_wall_clock_that_jumps_mixes_up_no_life_no_name_and_no_byte(faulty, make_rig, tmp_path, seconds):
    rig, tokens, _ = faulty(Fault(what=What.JUMP, at=At.WALL_CLOCK, nth=1, times=None, seconds=seconds))
    prompts = [tokens, *(prompt(3 * rig.page, seed) for seed in range(1, 5))]
    for _ in range(3):
        for each in prompts:
            rig.serve(each)
        rig.command("offload", prefix_ids=rig.ids, tier="disk")
        rig.command("evict", prefix_ids=rig.ids[:2])
        rig.assert_clean()
    rig.engine.flush_telemetry()
    births = [t["kvcache.life"] for t in rig.log.named("kvcache.transition") if t["kvcache.version"] == 1]
    assert births == sorted(set(births))  # a later life has a larger number, whatever the clock says
    rig.engine.close()
    again = make_rig(data_dir=tmp_path, clock=rig.clock, **DISK)
    for each in prompts:
        assert again.look(each).wrong_bytes == 0
    again.assert_clean()


def test_a_monotonic_clock_that_leaps_expires_leases_and_nothing_else(faulty):
    rig, tokens, _ = faulty(offload=None, lease_s=60.0)
    rig.commit(tokens)
    lease = rig.engine.acquire(tokens)
    rig.clock.advance(3600.0)  # a host that was suspended
    with pytest.raises(LeaseExpired):
        lease.load()
    lease.release()
    whole(rig, tokens)


def test_a_leap_in_the_middle_of_a_restore_makes_it_late_and_no_worse(faulty):
    rig, tokens, faults = faulty(Fault(what=What.JUMP, at=At.MONOTONIC_CLOCK, chance=0.1, times=None, seconds=10_000.0))
    for _ in range(30):
        with suppress(LeaseExpired):
            assert rig.look(tokens).wrong_bytes == 0
        rig.assert_clean()
    assert faults.fired[What.JUMP, At.MONOTONIC_CLOCK] > 3
    faults.disarm()
    whole(rig, tokens)


# -- memory and workers ----------------------------------------------------------------------------------------------


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


# -- torn publications -----------------------------------------------------------------------------------------------

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


# -- never by accident -----------------------------------------------------------------------------------------------


def test_only_an_argument_arms_faults_and_the_engine_says_so(tmp_path):
    assert not [f.name for f in fields(EngineConfig) if "fault" in f.name]
    log = SpanLog()
    faults = Faults(Fault(what=What.SLOW, at=At.READ), Fault(what=What.IO_ERROR, at=At.SCAN, nth=99))
    config = EngineConfig(gpu_bytes=1 << 20, slab_bytes=32 << 10, disk_bytes=1 << 20, data_dir=tmp_path)
    with CacheEngine(preset("small-deepseek-v4"), config, span_processors=[log], faults=faults) as engine:
        with pytest.raises(ConfigError):
            engine.reconfigure({"faults": "all"}, revision=1)
        assert engine.stats()["faults"] == {"armed": 2, "fired": {}}
        with engine.acquire(prompt(100)):
            pass
        engine.flush_telemetry()
        assert log.spans[0].resource.attributes["kvdeck.faults.armed"] == 2
    with CacheEngine(preset("small-deepseek-v4"), config) as engine:
        assert "faults" not in engine.stats()


def test_a_fault_that_cannot_happen_there_is_refused():
    for what, places in POSSIBLE.items():
        for at in At:
            if at in places:
                Fault(what=what, at=at)
            else:
                with pytest.raises(ConfigError, match="cannot happen"):
                    Fault(what=what, at=at)
    with pytest.raises(ConfigError, match="from 1"):
        Fault(what=What.HANG, at=At.READ, nth=0)
    with pytest.raises(ConfigError, match="never jumps back"):
        Fault(what=What.JUMP, at=At.MONOTONIC_CLOCK, seconds=-1.0)


def test_chance_is_the_same_for_the_same_seed():
    def struck(seed):
        faults = Faults(Fault(what=What.SHORT, at=At.READ, chance=0.2, times=None), seed=seed)
        return [faults.strike(At.READ, "x") is not None for _ in range(200)]

    assert struck(1) == struck(1) != struck(2)
    assert 20 < sum(struck(1)) < 60
