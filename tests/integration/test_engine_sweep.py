"""Files that were let go of are removed beside the requests, by whichever thread comes by, and never at their cost."""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from engine_support import prompt

from engine.errors import TierUnavailable
from engine.memory.disk import DiskTier
from engine.memory.diskfile import DiskFile
from engine.memory.diskreads import DiskReads
from engine.memory.quarantine import QUARANTINE_FILES, quarantined


def leave(rig, folder: Path, queue, n: int, name: str) -> None:
    for i in range(n):
        (folder / "objects" / f"{name}-{i}.safetensors").write_bytes(b"damaged")
        queue.append(DiskFile(name=f"{name}-{i}.safetensors", file_bytes=7, n_pages=1, live_pages=0))


def test_many_threads_sweep_at_once_and_none_fails(make_rig, tmp_path):
    rig = make_rig(disk_bytes=8 << 20, data_dir=tmp_path)
    sweeper = rig.engine._tiers.sweeper
    for round_ in range(10):
        leave(rig, tmp_path, sweeper.damaged, 120, f"damaged{round_}")
        leave(rig, tmp_path, sweeper.doomed, 120, f"doomed{round_}")
        with ThreadPoolExecutor(8) as pool:
            for done in [pool.submit(sweeper.sweep) for _ in range(16)]:
                done.result()
    assert list((tmp_path / "objects").iterdir()) == []
    assert len(quarantined(tmp_path / "quarantine")) == QUARANTINE_FILES
    assert sweeper.failures == 0
    rig.assert_clean()


def test_a_device_that_cannot_delete_costs_a_request_nothing_and_is_asked_again(make_rig, tmp_path, monkeypatch):
    rig = make_rig(disk_bytes=8 << 20, data_dir=tmp_path)
    sweeper = rig.engine._tiers.sweeper
    leave(rig, tmp_path, sweeper.doomed, 3, "doomed")

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(DiskTier, "unlink", fails)
        assert rig.commit(prompt(3 * rig.page)).outcome == "admitted"
        assert sweeper.failures > 0
        assert rig.engine.check() == []
    rig.engine.tick()
    assert list((tmp_path / "objects").iterdir()) == []


def test_a_file_that_cannot_be_read_at_start_is_named_and_nothing_is_left_running(make_rig, tmp_path, monkeypatch):
    first = make_rig(gpu_bytes=1 << 20, disk_bytes=8 << 20, data_dir=tmp_path)
    first.commit(prompt(3 * first.page))
    first.engine.close()

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(DiskReads, "identity", fails)
        with pytest.raises(TierUnavailable, match="check the device"):
            make_rig(gpu_bytes=1 << 20, disk_bytes=8 << 20, data_dir=tmp_path)
    again = make_rig(gpu_bytes=1 << 20, disk_bytes=8 << 20, data_dir=tmp_path, clock=first.clock)
    assert again.look(prompt(3 * again.page)).wrong_bytes == 0
