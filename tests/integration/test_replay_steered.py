"""The driver against an engine that an operator steers meanwhile: coded, offloaded and damaged prefixes stay right."""

from __future__ import annotations

import itertools

import pytest

from controlplane.workload.driver import Driver, DriverConfig
from controlplane.workload.generator import Generator
from engine import CacheEngine, CommandRequest, EngineConfig, preset
from engine.integrations.synthetic import SyntheticModel

MIB = 1 << 20


def engine_of(tmp_path, codec="none", **sizes):
    config = EngineConfig(
        **({"gpu_bytes": 64 * MIB, "host_bytes": 32 * MIB, "disk_bytes": 256 * MIB} | sizes),
        data_dir=tmp_path,
        codec=codec,
    )
    return CacheEngine(preset("small-gpt-oss"), config)


def drive(engine, codec, first, count, **options):
    """Requests `first` to `first + count` of the built-in workload; later ones go on with earlier sessions."""
    model = SyntheticModel(engine.spec, codec=codec)
    driver = Driver(engine, model, DriverConfig(restore_deadline_s=10.0, **options))
    return driver.run(itertools.islice(Generator(), first, first + count))


def steer(engine, kind, **arguments):
    prefixes = [row["prefix.id"] for row in engine.snapshot()]
    outcome = engine.execute(CommandRequest(id=kind, kind=kind, arguments={"prefix_ids": prefixes} | arguments))
    assert outcome.status == "succeeded", outcome
    return outcome.outcome


@pytest.mark.parametrize("codec", ["lossless", "int8"])
def test_compressed_prefixes_serve_what_the_codec_promises(tmp_path, codec):
    with engine_of(tmp_path, codec) as engine:
        drive(engine, codec, 0, 60)
        steer(engine, "compress")
        report = drive(engine, codec, 60, 60)
        assert report.hit_tokens_by_state["COMPRESSED"] > 0
        assert report.wrong_bytes == 0
        assert (report.lossy_bytes > 0) == (codec == "int8")
        assert engine.check() == []


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_offloaded_prefixes_come_back_right(tmp_path, tier):
    with engine_of(tmp_path) as engine:
        drive(engine, "none", 0, 60)
        steer(engine, "offload", tier=tier)
        report = drive(engine, "none", 60, 60, inflight=4)
        assert report.hit_tokens_by_tier[tier] > 0
        assert report.wrong_bytes == 0
        assert engine.check() == []


def test_damaged_files_cost_hits_and_never_a_byte(tmp_path):
    with engine_of(tmp_path) as engine:
        drive(engine, "none", 0, 60)
        steer(engine, "offload", tier="disk")
        files = sorted(path for path in (tmp_path / "objects").rglob("*") if path.is_file())
        assert files
        for path in files[::3]:
            content = bytearray(path.read_bytes())
            content[-1] ^= 0x40
            path.write_bytes(content)
        report = drive(engine, "none", 60, 60)
        assert report.wrong_bytes == 0
        assert report.committed == 60
        assert engine.counters().recoveries[("disk", "failed")] > 0
        assert engine.check() == []
