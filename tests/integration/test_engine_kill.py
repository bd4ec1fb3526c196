"""Killed in the middle of writing: the next start finds each prefix whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from engine_support import prompt

from engine.clock import SystemClock

WRITER = """
import sys
from pathlib import Path
from engine.integrations.synthetic import use_one_thread
from engine.clock import SystemClock
from engine_support import Rig, prompt
use_one_thread()
rig = Rig(clock=SystemClock(), data_dir=Path(sys.argv[1]), gpu_bytes=256 << 10, disk_bytes=4 << 20)
print("ready", flush=True)
for seed in range(100_000):
    rig.serve(prompt(300, seed % 60))
    rig.command("offload", prefix_ids=rig.ids[:4], tier="disk")
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("after_files", [1, 9, 40])
def test_a_killed_writer_leaves_whole_objects_or_none(make_rig, tmp_path, after_files):
    paths = os.pathsep.join((str(Path(__file__).parents[1]), str(Path(__file__).parents[2])))
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
        text=True,
    )
    try:
        assert writer.stdout
        assert writer.stdout.readline().strip() == "ready"
        while len(list((tmp_path / "objects").iterdir())) < after_files:
            assert writer.poll() is None
            time.sleep(0.001)
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
    rig = make_rig(clock=SystemClock(), data_dir=tmp_path, gpu_bytes=1 << 20, disk_bytes=4 << 20)
    rig.assert_clean()
    assert rig.engine.adoption.damaged == 0
    assert not list((tmp_path / "objects").glob("*.tmp"))
    for seed in range(60):
        found = rig.look(prompt(300, seed))
        assert found.wrong_bytes == 0
        assert found.reason in ("none", "new_content", "no_checkpoint") or found.usable == 0
    rig.assert_clean()


def test_a_file_torn_by_a_power_cut_is_an_object_less_and_no_more(make_rig, tmp_path):
    config = {"data_dir": tmp_path, "gpu_bytes": 1 << 20, "disk_bytes": 4 << 20}
    rig = make_rig(**config)
    prompts = [prompt(300, seed) for seed in range(6)]
    for tokens in prompts:
        rig.serve(tokens)
    rig.engine.close()
    torn = rig.files()[::5]
    for path in torn:  # a rename that lasted and bytes that did not
        os.truncate(path, path.stat().st_size // 2)
    rig.clock.advance(1)
    again = make_rig(clock=rig.clock, **config)
    assert again.engine.adoption.damaged == len(torn)
    served = [again.look(tokens) for tokens in prompts]
    assert all(found.wrong_bytes == 0 for found in served)
    assert 0 < sum(found.usable == 300 for found in served) < 6
    again.assert_clean()
