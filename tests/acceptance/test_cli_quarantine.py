"""`kvdeck quarantine` beside a running engine and a stopped one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from cli_support import kvdeck

from engine import CacheEngine, CommandRequest, EngineConfig, preset
from engine.integrations.synthetic import SyntheticModel
from engine.memory.faults import At, Fault, Faults, What


def test_what_was_set_aside_is_listed_with_its_reason_while_the_engine_runs_and_after(tmp_path: Path) -> None:
    spec = preset("small-gpt-oss")
    config = EngineConfig(gpu_bytes=8 << 20, disk_bytes=64 << 20, data_dir=tmp_path / "engine")
    faults = Faults(Fault(what=What.BIT_FLIP, at=At.WRITE, where="compressed_kv", nth=5))
    tokens = np.random.default_rng(1).integers(0, 1000, 300).astype(np.int32)
    with CacheEngine(spec, config, faults=faults) as engine:
        done = engine.commit(tokens, SyntheticModel(spec).prefill(tokens, 0, [300]))
        assert json.loads(kvdeck("quarantine", "--data-dir", str(tmp_path), "--json").stdout) == []
        for kind, arguments in (("offload", {"prefix_ids": [done.prefix_id], "tier": "disk"}), ("scrub", {})):
            engine.execute(CommandRequest(id=kind, kind=kind, arguments=arguments))
        running = kvdeck("quarantine", "--data-dir", str(tmp_path), "--json")
    (item,) = json.loads(running.stdout)
    assert (item["kind"], item["prefix_id"]) == ("compressed_kv", done.prefix_id)
    assert item["file"].startswith(done.prefix_id)
    assert "checksum" in item["why"]
    assert item["at"].endswith("+00:00")
    (tmp_path / "engine" / "quarantine" / "a-strangers-file").write_text("hello")
    stopped = kvdeck("quarantine", "--data-dir", str(tmp_path))
    assert stopped.returncode == 0, stopped.stderr
    assert "checksum" in stopped.stdout
    assert "not recorded" in stopped.stdout


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    done = kvdeck("quarantine", "--data-dir", str(tmp_path / "nowhere"))
    assert done.returncode == 5
    assert "nowhere" in done.stderr
