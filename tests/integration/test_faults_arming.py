"""Faults are armed by an argument and by nothing else; what cannot happen is refused, and chance repeats."""

from __future__ import annotations

from dataclasses import fields

import pytest
from engine_support import SpanLog, prompt

from engine import CacheEngine, EngineConfig, preset
from engine.errors import ConfigError
from engine.memory.faults import POSSIBLE, At, Fault, Faults, What


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
