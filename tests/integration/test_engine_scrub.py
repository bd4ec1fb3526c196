"""A scrub reads at a rate, step by step, beside everything else; what it finds is set aside with its reason."""

from __future__ import annotations

import pytest
from engine_support import prompt

from engine.commands.ticket import BadCommand
from engine.memory.device import SystemDevice
from engine.memory.faults import At, Fault, Faults, What
from engine.memory.quarantine import QUARANTINE_FILES, Quarantine, quarantined

DISK = {"gpu_bytes": 1 << 20, "disk_bytes": 8 << 20}


class Pauses:
    """Stands where a scrub waits between two steps: remembers for how long, and does something else meanwhile."""

    def __init__(self, meanwhile=lambda: False):
        self.seconds: list[float] = []
        self.meanwhile = meanwhile
        self._set = False

    def wait(self, seconds):
        self.seconds.append(seconds)
        self._set = self.meanwhile()
        return self._set

    def is_set(self):
        return self._set

    def set(self):
        pass


def on_disk(make_rig, folder, n=4, **more):
    rig = make_rig(data_dir=folder, **DISK, **more)
    prompts = [prompt(3 * rig.page, seed) for seed in range(n)]
    rig.command("offload", prefix_ids=[rig.commit(tokens).prefix_id for tokens in prompts], tier="disk")
    return rig, prompts


@pytest.mark.parametrize("rate", [10_000, 100_000])
def test_a_scrub_keeps_its_rate(make_rig, tmp_path, rate):
    rig, _ = on_disk(make_rig, tmp_path)
    pauses = rig.engine._commands._closing = Pauses()
    done = rig.command("scrub", bytes_per_s=rate).outcome
    total = sum(path.stat().st_size for path in rig.files())
    assert done["bytes"] == total
    last_step = total - rate * sum(pauses.seconds)
    assert 0 <= last_step < total
    assert max(pauses.seconds) * rate <= rate / 4 + max(path.stat().st_size for path in rig.files())
    assert pauses.seconds


def test_its_rate_is_the_configured_one_unless_the_command_says_otherwise(make_rig, tmp_path):
    rig, _ = on_disk(make_rig, tmp_path, scrub_bytes_per_s=20_000.0)
    pauses = rig.engine._commands._closing = Pauses()
    rig.command("scrub")
    slow = sum(pauses.seconds)
    rig.command("scrub", bytes_per_s=1 << 40)
    assert sum(pauses.seconds) == slow > 0  # at full speed there is one step and no pause
    with pytest.raises(BadCommand, match="above 0"):
        rig.command("scrub", bytes_per_s=-1)


def test_restores_are_served_between_the_steps_of_a_scrub(make_rig, tmp_path):
    rig, prompts = on_disk(make_rig, tmp_path)
    served = []

    def meanwhile():
        if len(served) < len(prompts):
            served.append(rig.look(prompts[len(served)]))
        return False

    rig.engine._commands._closing = Pauses(meanwhile)
    assert rig.command("scrub", bytes_per_s=10_000).outcome["damaged"] == 0
    assert [(found.usable, found.wrong_bytes, found.tier) for found in served] == [(3 * rig.page, 0, "disk")] * 4
    rig.assert_clean()


def test_closing_the_engine_ends_a_slow_scrub(make_rig, tmp_path):
    rig, _ = on_disk(make_rig, tmp_path)
    rig.engine._commands._closing = Pauses(lambda: True)
    done = rig.command("scrub", bytes_per_s=1)
    assert done.outcome["reason"] == "1 closed"
    assert done.outcome["objects"] == 1


def test_a_scrub_on_a_device_that_fails_says_so_and_quarantines_nothing(make_rig, tmp_path):
    faults = Faults(Fault(what=What.IO_ERROR, at=At.READ, nth=4, times=None))
    rig, prompts = on_disk(make_rig, tmp_path, faults=faults)
    done = rig.command("scrub")
    assert (done.status, done.outcome["reason"]) == ("succeeded", "1 tier_unavailable")
    assert (done.outcome["objects"], done.outcome["damaged"]) == (3, 0)
    faults.disarm()
    rig.clock.advance(10)
    for tokens in prompts:
        assert rig.look(tokens).usable == len(tokens)
    rig.assert_clean()


# -- quarantine ------------------------------------------------------------------------------------------------------


def name(number):
    return f"{number:032x}-compressed_kv-64-1-{number}.safetensors"


def test_a_quarantine_keeps_the_newest_within_its_number_and_its_bytes(tmp_path):
    folder, objects = tmp_path / "quarantine", tmp_path / "objects"
    folder.mkdir()
    objects.mkdir()
    place = Quarantine(folder, 1000, SystemDevice())
    for number in range(20):
        (objects / name(number)).write_bytes(b"x" * 100)
        place.take(objects / name(number), f"reason {number}", number)
    kept = quarantined(folder)
    assert [(q.at_ns, q.why) for q in kept] == [(n, f"reason {n}") for n in range(19, 9, -1)]
    assert {q.kind for q in kept} == {"compressed_kv"}
    assert len(list(folder.iterdir())) == 2 * len(kept)  # no reason outlives its file
    (objects / name(99)).write_bytes(b"x" * 5000)
    place.take(objects / name(99), "larger than all of it", 99)
    assert [q.why for q in quarantined(folder)] == ["larger than all of it"]
    large = Quarantine(folder, 1 << 30, SystemDevice())
    for number in range(100, 100 + QUARANTINE_FILES + 9):
        (objects / name(number)).write_bytes(b"x")
        large.take(objects / name(number), "many", number)
    assert len(quarantined(folder)) == QUARANTINE_FILES


def test_a_reason_that_cannot_be_written_costs_the_reason_alone(make_rig, tmp_path):
    faults = Faults(
        Fault(what=What.BIT_FLIP, at=At.READ, where="compressed_kv"),
        Fault(what=What.NO_SPACE, at=At.OPEN, where=".why.json", times=None),
    )
    rig, _ = on_disk(make_rig, tmp_path, n=1, faults=faults)
    assert rig.command("scrub").outcome["damaged"] == 1
    rig.engine.tick()
    assert [q.why for q in quarantined(tmp_path / "quarantine")] == ["not recorded"]
    assert rig.ledger.tiers.disk.leaving_bytes == 0
    rig.assert_clean()


def test_a_file_found_damaged_at_start_is_set_aside_with_its_reason(make_rig, tmp_path):
    rig, _ = on_disk(make_rig, tmp_path, n=1)
    rig.engine.close()
    path = rig.files()[0]
    path.write_bytes(path.read_bytes()[:-7])
    rig.clock.advance(1)
    again = make_rig(data_dir=tmp_path, clock=rig.clock, **DISK)
    (found,) = quarantined(tmp_path / "quarantine")
    assert found.file == path.name
    assert "truncated or torn" in found.why
    assert found.at_ns == again.clock.wall_ns()
