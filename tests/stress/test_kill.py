"""kill -9 at random points, again and again on the same folders: what was published is served whole or set aside.

`KVDECK_KILL_ROUNDS=100` for more rounds (`make stress`).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kill_writer import PROMPTS, prompt_of

from engine.clock import SystemClock

ROUNDS = int(os.environ.get("KVDECK_KILL_ROUNDS", "12"))
ROOMY, TIGHT = 64 << 20, 400 << 10
"""Quotas: one that holds everything ever written, and one under which files come and go all the time."""


@pytest.fixture
def writer():
    script = Path(__file__).with_name("kill_writer.py")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, str(script)], text=True, **pipes)
    yield process
    process.kill()
    process.communicate()


def killed(writer, folder, log, quota, luck):
    """One life: from the fork to a SIGKILL at some moment, now and then before it has even begun to serve."""
    writer.stdin.write(f"{folder} {log} {quota} {luck.randrange(1 << 30)}\n")
    writer.stdin.flush()
    pid = int(writer.stdout.readline())
    time.sleep(luck.choice((luck.uniform(0.0, 0.1), luck.uniform(0.1, 0.6))))
    os.kill(pid, signal.SIGKILL)
    assert writer.stdout.readline() == "dead\n"


@pytest.mark.timeout(60 + 10 * ROUNDS)
@pytest.mark.parametrize("quota", [ROOMY, TIGHT], ids=["roomy", "tight"])
def test_after_a_kill_everything_published_is_whole_or_set_aside(make_rig, tmp_path, writer, quota):
    luck = random.Random(quota)
    folder, log = tmp_path / "engine", tmp_path / "published"
    files = adopted_files = lives = 0
    start_s = 0.0
    for _ in range(ROUNDS // 2):
        killed(writer, folder, log, quota, luck)
        objects = folder / "objects"
        there = [p.name for p in objects.iterdir()] if objects.is_dir() else []
        whole = {name for name in there if not name.endswith(".tmp")}
        started = time.perf_counter()
        rig = make_rig(clock=SystemClock(), data_dir=folder, gpu_bytes=1 << 20, disk_bytes=quota)
        start_s += time.perf_counter() - started
        adoption, disk = rig.engine.adoption, rig.ledger.tiers.disk
        # A kill tears nothing: what has its name was synced before. Each file is adopted, or is an orphan and deleted.
        assert adoption.damaged == 0
        assert disk.files.keys() <= whole
        if quota == ROOMY:  # else some more made way for the quota
            assert len(whole - disk.files.keys()) == adoption.orphans
        assert {p.name for p in objects.iterdir()} == disk.files.keys()
        rig.assert_clean()
        assert rig.command("scrub", bytes_per_s=1 << 40).outcome["damaged"] == 0
        published = {int(line) for line in log.read_text().split()} if log.exists() else set()
        for number in range(PROMPTS):
            found = rig.look(prompt_of(number))
            assert found.wrong_bytes == 0, (number, found.first_wrong)
            if quota == ROOMY and number in published:
                assert found.usable == len(prompt_of(number)), (number, found)
        rig.assert_clean()
        files, adopted_files, lives = files + len(whole), adopted_files + len(disk.files), lives + 1
        rig.engine._tiers.close()  # let go of the folder as it is: nothing is written at an end that never came
    assert adopted_files
    print(f"{lives} kills, {files} files found, {adopted_files} adopted, {start_s / max(1, files) * 1e6:.0f} us a file")  # noqa: T201
