"""Clocks that jump, caused: the wall clock either way, the monotonic one ahead.

What each fault leads to is promised in docs/reference/faults.md, which names the tests here.
"""

from __future__ import annotations

from contextlib import suppress

import pytest
from engine_support import prompt
from fault_support import (
    DISK,
    whole,
)

from engine.errors import LeaseExpired
from engine.memory.faults import At, Fault, What


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
