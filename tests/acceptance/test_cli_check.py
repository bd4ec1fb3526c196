"""`kvdeck check` on what an engine left behind, whole and damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_support import kvdeck

from engine import CacheEngine, EngineConfig, preset
from engine.integrations.synthetic import SyntheticModel


@pytest.fixture
def left_behind(tmp_path: Path) -> Path:
    import numpy as np

    spec = preset("small-gpt-oss")
    config = EngineConfig(gpu_bytes=8 << 20, disk_bytes=64 << 20, data_dir=tmp_path / "engine")
    with CacheEngine(spec, config) as engine:
        model = SyntheticModel(spec)
        for seed in range(3):
            tokens = np.random.default_rng(seed).integers(0, 1000, 300).astype(np.int32)
            engine.commit(tokens, model.prefill(tokens, 0, [300]))
    return tmp_path


def test_a_whole_folder_has_nothing_wrong(left_behind: Path) -> None:
    done = kvdeck("check", "--data-dir", str(left_behind), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["objects"] == 9  # history, window and tail of three prefixes
    assert found["damaged"] == []


def test_a_flipped_bit_is_named_and_with_fix_moved_to_quarantine(left_behind: Path) -> None:
    path = sorted((left_behind / "engine" / "objects").iterdir())[0]
    raw = bytearray(path.read_bytes())
    raw[-7] ^= 1
    path.write_bytes(raw)
    done = kvdeck("check", "--data-dir", str(left_behind), "--json")
    assert done.returncode == 1
    assert [item["file"] for item in json.loads(done.stdout)["damaged"]] == [path.name]
    assert path.exists()
    assert kvdeck("check", "--data-dir", str(left_behind), "--fix").returncode == 1
    assert not path.exists()
    assert (left_behind / "engine" / "quarantine" / path.name).exists()
    assert kvdeck("check", "--data-dir", str(left_behind)).returncode == 0


def test_a_folder_in_use_is_not_touched(left_behind: Path) -> None:
    config = EngineConfig(gpu_bytes=8 << 20, disk_bytes=64 << 20, data_dir=left_behind / "engine")
    with CacheEngine(preset("small-gpt-oss"), config):
        done = kvdeck("check", "--data-dir", str(left_behind))
    assert done.returncode == 1
    assert "scrub" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    done = kvdeck("check", "--data-dir", str(tmp_path / "nowhere"))
    assert done.returncode == 5
    assert "nowhere" in done.stderr
