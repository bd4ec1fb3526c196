"""Faults by command: only where they were allowed, only for a time, and only by an admin."""

from __future__ import annotations

import threading

import pytest
from engine_support import prompt

from engine.commands.ticket import BadCommand
from engine.memory.drill import Drill

DISK = {"gpu_bytes": 1 << 20, "disk_bytes": 8 << 20}
FLIP = {"what": "bit_flip", "at": "read", "times": None}


@pytest.fixture
def allowed(make_rig, tmp_path):
    """A rig whose engine was handed a drill, and the tokens of a prefix that lies on disk alone."""
    drill = Drill()
    rig = make_rig(data_dir=tmp_path, faults=drill, **DISK)
    tokens = prompt(5 * rig.page + 9)
    rig.command("offload", prefix_ids=[rig.commit(tokens).prefix_id], tier="disk")
    yield rig, tokens, drill
    drill.end()


def test_an_engine_that_was_handed_no_drill_refuses_and_says_how_to_start_one(make_rig):
    done = make_rig().command("fault", plan=[FLIP])
    assert done.status == "refused"
    assert "--allow-faults" in done.outcome["reason"]


def test_nothing_goes_wrong_until_a_command_says_so(allowed):
    rig, tokens, _ = allowed
    assert rig.engine.stats()["faults"] == {"armed": 0, "fired": {}, "allowed": True, "left_s": 0.0}
    assert rig.look(tokens).usable == len(tokens)
    rig.assert_clean()


def test_a_fault_begins_with_its_command_and_shows_in_the_stats(allowed):
    rig, tokens, _ = allowed
    done = rig.command("fault", plan=[FLIP], lasts_s=60)
    assert done.status == "succeeded"
    found = rig.look(tokens)
    assert (found.wrong_bytes, found.usable < len(tokens)) == (0, True)
    stats = rig.engine.stats()
    assert stats["faults"]["armed"] == 1
    assert 0 < stats["faults"]["left_s"] <= 60
    assert stats["io"]["disk"]["quarantined_files"] == 1
    assert stats["io"]["disk"]["quarantined_bytes"] > 0


def test_an_empty_plan_ends_what_goes_wrong(allowed):
    rig, tokens, drill = allowed
    rig.command("fault", plan=[FLIP], lasts_s=60)
    assert rig.command("fault", plan=[]).status == "succeeded"
    assert rig.engine.stats()["faults"]["armed"] == 0
    assert rig.look(tokens).usable == len(tokens)
    assert not drill.fired


def test_a_fault_is_over_by_itself_and_what_hangs_goes_on(allowed):
    rig, tokens, drill = allowed
    rig.command("fault", plan=[{"what": "hang", "at": "read", "times": None}], lasts_s=0.5)
    looking = threading.Thread(target=rig.look, args=(tokens,))
    looking.start()
    looking.join(60)
    assert not looking.is_alive()
    assert (drill.armed, drill.hanging) == (False, 0)
    assert rig.look(tokens).wrong_bytes == 0
    rig.assert_clean()


def test_the_end_of_a_fault_is_its_time_and_not_its_timer() -> None:
    now = [0.0]
    drill = Drill(now=lambda: now[0])
    from engine.memory.drill import read_plan
    from engine.memory.faults import At

    drill.begin(read_plan([{"what": "short", "at": "read", "times": None}]), 30)
    try:
        assert drill.strike(At.READ) is not None
        now[0] = 30.0  # the timer has not run: a machine that slept, say
        assert drill.strike(At.READ) is None
    finally:
        drill.end()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"plan": [{"what": "crash", "at": "write"}]}, "would not end"),
        ({"plan": [{"what": "power_cut", "at": "write"}]}, "would not end"),
        ({"plan": [{"what": "jump", "at": "wall_clock", "seconds": 5}]}, "would not end"),
        ({"plan": [{"what": "bit_flip", "at": "unlink"}]}, "cannot happen at unlink"),
        ({"plan": [{"what": "mischief", "at": "read"}]}, "mischief"),
        ({"plan": [{"what": "slow", "at": "read", "seconds": 3600}]}, "0 to 10"),
        ({"plan": [{"what": "slow", "at": "read", "seconds": "long"}]}, "no fault"),
        ({"plan": [{"what": "slow"}]}, "has what and at"),
        ({"plan": [{**FLIP, "unless": 1}]}, "has what and at"),
        ({"plan": FLIP}, "list"),
        ({"plan": [FLIP] * 17}, "at most 16"),
        ({"plan": [FLIP], "lasts_s": 3601}, "at most 600"),
        ({}, "list"),
    ],
)
def test_a_plan_that_cannot_be_run_is_refused_in_a_sentence(allowed, arguments, says):
    rig, *_ = allowed
    with pytest.raises(BadCommand, match=says):
        rig.command("fault", **arguments)
    assert rig.engine.stats()["faults"]["armed"] == 0
