"""What a lossy codec costs is measured by a judge, kept with the pages, and told."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_support import fork, prompt
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from quality_support import (
    NARROW,
    POSITIONS,
    WIDE,
    Broken,
    Fixed,
    ReadOut,
    compress,
    judged,
    meta_of,
    two_prefixes,
)

from engine import CacheEngine, EngineConfig, preset
from engine.consistency.prefix import CauseOf
from engine.consistency.state import Cause
from engine.integrations.synthetic import SyntheticModel
from engine.memory.codec import LOSSY
from engine.schedule.quality import BadQuality, Quality


@pytest.mark.parametrize("codec", LOSSY)
@pytest.mark.parametrize(("name", "wide"), [*NARROW, *WIDE])
def test_the_judge_gets_two_states_that_differ_in_the_pages_of_that_prefix_alone(make_rig, name, wide, codec):
    rig, judge = make_rig(name, code_compressed=wide), ReadOut()
    _, child, tokens = two_prefixes(rig)
    rig.engine.set_quality_judge(judge)
    assert compress(rig, child, codec) == ""
    ((native, coded, asked),) = judge.calls
    whole = 5 * rig.page
    end = native.boundary_tokens
    assert end == coded.boundary_tokens == len(asked) == len(tokens)
    assert (asked.dtype, asked.flags.writeable) == (np.int32, True)  # or torch warns when it takes the array
    assert np.array_equal(asked, tokens[:end])
    assert rig.model.verify(native, tokens[:end]).ok
    assert rig.lossy.verify(coded, tokens[:end]).ok
    touched = 0
    for key, right in native.entries.items():
        ratio = max(1, round(end / max(1, len(right))))
        first, last = 3 * rig.page // ratio, whole // ratio
        assert torch.equal(right[:first], coded.entries[key][:first])
        assert torch.equal(right[last:], coded.entries[key][last:])
        touched += not torch.equal(right[first:last], coded.entries[key][first:last])
    assert touched > 0
    assert native.boundary.keys() == coded.boundary.keys()
    assert all(torch.equal(native.boundary[key], coded.boundary[key]) for key in native.boundary)


def test_the_second_prefix_of_a_path_is_judged_over_the_first_as_it_is_then(make_rig):
    rig, judge = make_rig("small-gpt-oss"), ReadOut()
    rig.engine.set_quality_judge(judge)
    parent, child, _ = two_prefixes(rig)
    assert compress(rig, parent, "int4") == compress(rig, child, "fp8") == ""
    (_, once, short), (base, twice, _) = judge.calls
    assert len(short) == once.boundary_tokens == 3 * rig.page
    for key, rows in once.entries.items():
        assert torch.equal(rows, base.entries[key][: len(rows)])
        assert torch.equal(rows, twice.entries[key][: len(rows)])


def test_what_was_measured_is_kept_with_the_pages_and_told(make_rig):
    rig, judge = make_rig("small-gpt-oss"), ReadOut()
    rig.engine.set_quality_judge(judge)
    _, child, _ = two_prefixes(rig)
    assert compress(rig, child, "int4") == ""
    meta = meta_of(rig, child)
    native, coded, tokens = judge.calls[0]
    right = ReadOut().judge(native, coded, tokens)
    assert (meta.logit_error, meta.kl) == (right.logit_error, right.kl)
    assert 0 < meta.kl < meta.logit_error
    row = next(r for r in rig.engine.snapshot() if r["prefix.id"] == child)
    assert (row["codec"], row["codec.logit_error"], row["codec.kl"]) == ("int4", meta.logit_error, meta.kl)
    rig.engine.flush_telemetry()
    (span,) = rig.log.named("kvcache.judge")
    assert (span["kvcache.prefix.id"], span["kvcache.codec"], span["kvcache.outcome"]) == (child, "int4", "measured")
    assert (span["kvcache.codec.logit_error"], span["kvcache.codec.kl"]) == (meta.logit_error, meta.kl)
    assert span["kvcache.positions"] == POSITIONS
    assert span["kvcache.boundary"] == len(tokens)


def test_a_shorter_code_is_measured_worse(make_rig):
    rig, judge = make_rig("small-gpt-oss"), ReadOut()
    rig.engine.set_quality_judge(judge)
    errors = {}
    for seed, codec in enumerate(LOSSY):
        prefix_id = rig.commit(prompt(4 * rig.page, 0), namespace=f"tenant-{seed}").prefix_id
        assert compress(rig, prefix_id, codec) == ""
        errors[codec] = meta_of(rig, prefix_id).logit_error
    assert errors["int8"] < errors["fp8"] < errors["int4"]


def test_native_and_lossless_pages_are_never_judged_and_have_no_figures(make_rig):
    rig, judge = make_rig("small-gpt-oss", max_logit_error=1e-9), Fixed()
    rig.engine.set_quality_judge(judge)
    parent, child, _ = two_prefixes(rig)
    assert compress(rig, child, "lossless") == ""
    rows = {r["prefix.id"]: r for r in rig.engine.snapshot()}
    assert (rows[parent]["codec"], rows[child]["codec"]) == ("native", "lossless")
    assert not any(key.startswith("codec.") for row in rows.values() for key in row)
    assert (judge.calls, judged(rig)) == (0, {})


def test_figures_survive_tiers_splits_and_a_restart(make_rig, tmp_path):
    disk = {"host_bytes": 1 << 20, "disk_bytes": 8 << 20, "data_dir": tmp_path}
    rig = make_rig("small-gpt-oss", **disk)
    rig.engine.set_quality_judge(ReadOut())
    tokens = prompt(4 * rig.page)
    prefix_id = rig.commit(tokens).prefix_id
    assert compress(rig, prefix_id, "fp8") == ""
    meta = meta_of(rig, prefix_id)
    assert meta.logit_error
    rig.command("offload", prefix_ids=[prefix_id], tier="host")
    assert meta_of(rig, prefix_id) == meta
    rig.commit(fork(tokens, 2 * rig.page, 3 * rig.page, 1))
    halves = [i for i in rig.ids if meta_of(rig, i).codec == "fp8"]
    assert len(halves) == 2
    rig.engine.close()
    rig = make_rig("small-gpt-oss", **disk)
    assert [meta_of(rig, i) for i in halves] == [meta, meta]
    assert (rig.look(tokens).usable, rig.look(tokens).wrong_bytes) == (len(tokens), 0)
    rows = [r for r in rig.engine.snapshot() if r["prefix.id"] in halves]
    assert [(r["codec.logit_error"], r["codec.kl"]) for r in rows] == [(meta.logit_error, meta.kl)] * 2
    rig.assert_clean()


def test_metrics_tell_the_last_and_the_largest_measurement():
    reader = InMemoryMetricReader()
    engine = CacheEngine(
        preset("small-gpt-oss"), EngineConfig(gpu_bytes=4 << 20), meter_provider=MeterProvider([reader])
    )
    with engine:
        model = SyntheticModel(engine.spec)
        ids = []
        for seed, judge in enumerate((Fixed(0.5, 0.02), Fixed(0.25, 0.04), Broken())):
            tokens = prompt(4 * 64, seed)
            ids.append(engine.commit(tokens, model.prefill(tokens, 0, [len(tokens)])).prefix_id)
            engine.set_quality_judge(judge)
            assert engine._commands._reach.reformer.compress(ids[-1], "int8", CauseOf(Cause.COMMAND)).refused == ""
        points = {
            (metric.name, *sorted(point.attributes.values())): point.value
            for scope in reader.get_metrics_data().resource_metrics[0].scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
            if metric.name.startswith("kvcache.codec.")
        }
    assert points == {
        ("kvcache.codec.judged", "int8", "measured"): 2,
        ("kvcache.codec.judged", "failed", "int8"): 1,
        ("kvcache.codec.logit_error", "int8", "last"): 0.25,
        ("kvcache.codec.logit_error", "int8", "largest"): 0.5,
        ("kvcache.codec.kl", "int8", "last"): 0.04,
        ("kvcache.codec.kl", "int8", "largest"): 0.04,
    }


def test_a_model_without_boundary_objects_is_judged_at_the_end_of_its_pages(make_rig):
    rig, judge = make_rig("small-llama", max_kl=1.0), ReadOut()
    rig.engine.set_quality_judge(judge)
    prefix_id = rig.commit(prompt(4 * rig.page + 3), []).prefix_id
    assert compress(rig, prefix_id) == ""
    assert judge.calls[0][0].boundary_tokens == 4 * rig.page


@pytest.mark.parametrize(("logit_error", "kl"), [(float("nan"), 0.0), (0.1, float("nan")), (-0.1, 0), (0.1, np.inf)])
def test_figures_that_cannot_be_are_no_measurement(logit_error, kl):
    with pytest.raises(BadQuality):
        Quality(logit_error=logit_error, kl=kl, positions=1)


def test_a_divergence_below_zero_is_rounding():
    assert Quality(logit_error=np.float32(0.5), kl=-1e-9, positions=1).kl == 0
