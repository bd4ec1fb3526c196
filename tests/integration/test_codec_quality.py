"""Lossy codecs in a whole engine: what they cost is measured by a judge, kept with the pages, and held to bounds."""

from __future__ import annotations

import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_support import fork, prompt
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from engine import CacheEngine, EngineConfig, preset
from engine.errors import ConfigError
from engine.integrations.synthetic import SyntheticModel
from engine.memory.codec import LOSSY
from engine.model.objects import ObjectKind
from engine.schedule.quality import REASONS, BadQuality, Quality

KV = ObjectKind.COMPRESSED_KV
POSITIONS, VOCABULARY = 4, 24


class ReadOut:
    """A model reduced to its last step: fixed random projections of everything that was loaded, as logits."""

    def __init__(self):
        self.calls = []

    def judge(self, native, coded, tokens):
        self.calls.append((native, coded, tokens))
        right, wrong = self.logits(native), self.logits(coded)
        p, q = (torch.log_softmax(x, dim=1) for x in (right, wrong))
        kl = float((p.exp() * (p - q)).sum(1).mean())
        return Quality(logit_error=(right - wrong).abs().max(), kl=kl, positions=POSITIONS)

    def logits(self, state):
        luck = torch.Generator().manual_seed(7)
        found = torch.zeros(POSITIONS, VOCABULARY, dtype=torch.float64)
        for key in sorted(state.entries):
            values = state.entries[key].double().reshape(-1)
            weights = torch.randn(len(values), POSITIONS * VOCABULARY, generator=luck, dtype=torch.float64)
            found += (values @ weights).view(POSITIONS, VOCABULARY) / len(values) ** 0.5
        return found


class Fixed:
    """Says what it is told, and keeps what it was asked."""

    def __init__(self, logit_error=0.5, kl=0.01):
        self.quality = Quality(logit_error=logit_error, kl=kl, positions=1)
        self.calls = 0

    def judge(self, native, coded, tokens):
        self.calls += 1
        return self.quality


class Broken:
    def judge(self, native, coded, tokens):
        raise ValueError(f"the prompt was {tokens}")


def two_prefixes(rig, pages=(3, 2), tail=5):
    """Ids of a parent and its child, the tokens of the child with a tail, checkpoints at both ends."""
    tokens = prompt(sum(pages) * rig.page + tail)
    rig.commit(tokens, [pages[0] * rig.page, len(tokens)])
    parent, child = sorted(rig.ids, key=lambda key: rig.node(key).record.first_page)
    return parent, child, tokens


def compress(rig, prefix_id, codec="int8"):
    """The refusal's reason, or empty."""
    done = rig.command("compress", prefix_ids=[prefix_id], codec=codec).outcome
    return done["refused"][0]["reason"] if done["refused"] else ""


def meta_of(rig, prefix_id):
    holding = rig.node(prefix_id).record.spans[KV]
    return (holding.gpu or holding.host or holding.disk).meta


def judged(rig):
    return rig.engine._quality.tally.judged


# -- codecs -----------------------------------------------------------------------------------------------------------

WIDE = [("small-deepseek-v4", True), ("small-deepseek-v3.2", True)]
NARROW = [("small-llama", False), ("small-gpt-oss", False), ("small-qwen3-next", False)]


@pytest.mark.parametrize(("name", "wide"), [*NARROW, *WIDE])
@pytest.mark.parametrize("codec", LOSSY)
def test_a_prefix_is_served_from_every_codec_through_every_tier(make_rig, tmp_path, name, wide, codec):
    rig = make_rig(name, code_compressed=wide, host_bytes=1 << 20, disk_bytes=8 << 20, data_dir=tmp_path)
    parent, child, tokens = two_prefixes(rig)
    before = rig.node(child).record.spans[KV].gpu.total_bytes
    assert compress(rig, child, codec) == compress(rig, parent, codec) == ""
    assert rig.node(child).record.spans[KV].gpu.total_bytes < before
    with rig.engine.acquire(tokens, deadline_s=60) as lease:
        assert lease.explanation.codec == codec
        found = rig.lossy.verify(lease.load(), tokens[: lease.usable_tokens])
        assert (found.wrong_bytes, lease.usable_tokens) == (0, len(tokens))
        assert found.lossy_bytes > 0
    for tier in ("host", "disk"):
        rig.command("offload", prefix_ids=[child, parent], tier=tier)
        assert (rig.look(tokens).usable, rig.look(tokens).wrong_bytes) == (len(tokens), 0)
        rig.assert_clean()


@pytest.mark.parametrize("codec", LOSSY)
def test_layers_the_model_compresses_are_left_alone_unless_asked(make_rig, codec):
    rig = make_rig("small-deepseek-v4")  # nothing in it is native full attention
    parent, _, tokens = two_prefixes(rig)
    assert compress(rig, parent, codec) == "codec_refused"
    assert rig.states == {"FULL": 2}
    assert rig.look(tokens).wrong_bytes == 0


@pytest.mark.parametrize("codec", LOSSY)
@pytest.mark.parametrize("first", [True, False])
def test_files_are_read_by_an_engine_that_codes_other_layers(make_rig, tmp_path, codec, first):
    disk = {"disk_bytes": 8 << 20, "data_dir": tmp_path}
    spec = preset("small-deepseek-v4")
    rig = make_rig(spec.name, code_compressed=True, **disk)
    _, child, tokens = two_prefixes(rig)
    assert compress(rig, child, codec) == ""
    rig.engine.close()
    rig = make_rig(spec.name, code_compressed=first, **disk)
    rig.lossy = SyntheticModel(spec, codec=LOSSY, code_compressed=True)
    assert (rig.look(tokens).usable, rig.look(tokens).wrong_bytes) == (len(tokens), 0)
    assert meta_of(rig, child).compressed
    rig.assert_clean()


@pytest.mark.parametrize("codec", LOSSY)
def test_halves_of_a_coded_prefix_are_both_read(make_rig, codec):
    rig = make_rig("small-gpt-oss")
    tokens = prompt(4 * rig.page)
    prefix_id = rig.commit(tokens).prefix_id
    assert compress(rig, prefix_id, codec) == ""
    rig.commit(fork(tokens, 2 * rig.page, 3 * rig.page, 1))
    assert len(rig.ids) == 3
    found = rig.look(tokens)
    assert (found.usable, found.wrong_bytes) == (len(tokens), 0)
    rig.assert_clean()


# -- measuring --------------------------------------------------------------------------------------------------------


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
            assert engine._reformer.compress(ids[-1], "int8", _cause()).refused == ""
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


def _cause():
    from engine.consistency.prefix import CauseOf
    from engine.consistency.state import Cause

    return CauseOf(Cause.COMMAND)


# -- bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [{"max_logit_error": 0.49}, {"max_kl": 0.009}])
def test_a_codec_measured_worse_than_the_bound_is_refused_and_nothing_is_left_of_it(make_rig, bound):
    rig = make_rig("small-gpt-oss", **bound)
    rig.engine.set_quality_judge(Fixed(logit_error=0.5, kl=0.01))
    _, child, tokens = two_prefixes(rig)
    live = rig.ledger.tiers.gpu.live_bytes
    done = rig.command("compress", prefix_ids=[child], codec="int8")
    assert (done.status, done.outcome["reason"]) == ("refused", "1 quality_bound")
    assert rig.states == {"FULL": 2}
    assert rig.ledger.tiers.gpu.live_bytes == live
    assert judged(rig) == {("int8", "refused"): 1}
    assert (rig.look(tokens).usable, rig.look(tokens).wrong_bytes) == (len(tokens), 0)
    assert not rig.node(child).record.busy
    rig.assert_clean()


@pytest.mark.parametrize("bound", [{"max_logit_error": 0.5}, {"max_kl": 0.01}, {"max_logit_error": 1.0, "max_kl": 1.0}])
def test_a_codec_within_the_bound_is_taken(make_rig, bound):
    rig = make_rig("small-gpt-oss", **bound)
    rig.engine.set_quality_judge(Fixed(logit_error=0.5, kl=0.01))
    _, child, _ = two_prefixes(rig)
    assert compress(rig, child) == ""
    assert judged(rig) == {("int8", "measured"): 1}


@pytest.mark.parametrize("of", ["logit_error", "kl"])
@pytest.mark.parametrize("child_first", [True, False])
def test_what_a_path_has_lost_adds_up_from_either_end(make_rig, of, child_first):
    def order(rig):
        parent, child, _ = two_prefixes(rig)
        rig.engine.set_quality_judge(ReadOut())
        return (child, parent) if child_first else (parent, child)

    free = make_rig("small-gpt-oss")
    ids = order(free)
    assert [compress(free, i, "int4") for i in ids] == ["", ""]
    costs = [getattr(meta_of(free, i), of) for i in ids]
    tight = make_rig("small-gpt-oss", **{f"max_{of}": sum(costs) * 0.999})
    assert [compress(tight, i, "int4") for i in order(tight)] == ["", "quality_bound"]
    wide = make_rig("small-gpt-oss", **{f"max_{of}": sum(costs) * 1.001})
    assert [compress(wide, i, "int4") for i in order(wide)] == ["", ""]


def test_what_lies_on_another_branch_does_not_count(make_rig):
    rig = make_rig("small-gpt-oss", max_logit_error=1.2)
    rig.engine.set_quality_judge(Fixed(logit_error=0.5))
    tokens = prompt(4 * rig.page)
    for other in (tokens, fork(tokens, 2 * rig.page, 4 * rig.page, 1), fork(tokens, 2 * rig.page, 4 * rig.page, 2)):
        rig.commit(other, [2 * rig.page, 4 * rig.page])
    root, *leaves = sorted(rig.ids, key=lambda key: rig.node(key).record.first_page)
    assert [compress(rig, leaf) for leaf in leaves] == ["", "", ""]
    assert compress(rig, root) == ""  # 1.0 on each of three paths


def test_halves_of_one_measured_prefix_count_once(make_rig):
    rig = make_rig("small-gpt-oss", max_logit_error=1.2)
    rig.engine.set_quality_judge(Fixed(logit_error=0.5))
    tokens = prompt(6 * rig.page)
    prefix_id = rig.commit(tokens[: 4 * rig.page]).prefix_id
    assert compress(rig, prefix_id) == ""
    rig.commit(fork(tokens, 2 * rig.page, 3 * rig.page, 1))
    leaf = rig.commit(tokens).prefix_id
    path = sorted((rig.node(i).record for i in rig.ids if i in (prefix_id, leaf)), key=lambda r: r.first_page)
    assert [r.first_page for r in path] == [2, 4]
    assert all(a.last_page == b.first_page for a, b in pairwise(path))
    assert compress(rig, leaf) == ""  # 0.5 of the halves together and 0.5 of its own
    rig.assert_clean()


def test_what_a_prefix_lost_still_counts_while_it_lies_below_the_gpu(make_rig):
    rig = make_rig("small-gpt-oss", max_logit_error=0.8, host_bytes=1 << 20)
    rig.engine.set_quality_judge(Fixed(logit_error=0.5))
    parent, child, _ = two_prefixes(rig)
    assert compress(rig, child) == ""
    rig.command("offload", prefix_ids=[child], tier="host")
    assert compress(rig, parent) == "quality_bound"


def test_a_path_that_was_coded_unmeasured_stays_unknown(make_rig):
    rig = make_rig("small-gpt-oss", max_logit_error=10.0)
    parent, child, _ = two_prefixes(rig)
    rig.engine._quality._bounds = (None, None)
    assert compress(rig, parent) == ""
    rig.engine._quality._bounds = (10.0, None)
    rig.engine.set_quality_judge(Fixed())
    assert compress(rig, child) == "quality_unmeasured"


# -- when it cannot be measured ---------------------------------------------------------------------------------------


def without_a_judge(rig):
    return two_prefixes(rig)[1]


def with_a_broken_judge(rig):
    rig.engine.set_quality_judge(Broken())
    return two_prefixes(rig)[1]


def without_a_checkpoint(rig):
    rig.engine.set_quality_judge(Fixed())
    return rig.commit(prompt(4 * rig.page), []).prefix_id


def with_the_parent_off_the_gpu(rig):
    rig.engine.set_quality_judge(Fixed())
    parent, child, _ = two_prefixes(rig)
    rig.command("offload", prefix_ids=[parent], tier="host")
    return child


UNKNOWN = {
    without_a_judge: "unmeasured",
    with_a_broken_judge: "failed",
    without_a_checkpoint: "unmeasured",
    with_the_parent_off_the_gpu: "unmeasured",
}


@pytest.mark.parametrize("how", UNKNOWN)
def test_with_a_bound_what_cannot_be_measured_is_refused(make_rig, how):
    rig = make_rig("small-gpt-oss", max_kl=1.0, host_bytes=1 << 20)
    prefix_id = how(rig)
    live = rig.ledger.tiers.gpu.live_bytes
    assert compress(rig, prefix_id) == "quality_unmeasured"
    assert judged(rig) == {("int8", UNKNOWN[how]): 1}
    assert rig.node(prefix_id).record.state == "FULL"
    assert rig.ledger.tiers.gpu.live_bytes == live
    assert not any(node.record.busy or node.record.leases for node in rig.ledger.index.walk())
    rig.assert_clean()


@pytest.mark.parametrize("how", UNKNOWN)
def test_without_a_bound_what_cannot_be_measured_is_coded_and_says_nothing(make_rig, how):
    rig = make_rig("small-gpt-oss", host_bytes=1 << 20)
    prefix_id = how(rig)
    assert compress(rig, prefix_id) == ""
    meta = meta_of(rig, prefix_id)
    assert (meta.codec, meta.logit_error, meta.kl) == ("int8", None, None)
    rig.assert_clean()


def test_a_failing_judge_is_told_without_the_prompt(make_rig):
    rig = make_rig("small-gpt-oss")
    compress(rig, with_a_broken_judge(rig))
    rig.engine.flush_telemetry()
    (span,) = [s for s in rig.log.spans if s.name == "kvcache.judge"]
    assert span.status.description == "int8 was not measured: ValueError was raised"


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


def test_every_reason_is_explained_in_the_reference():
    wire = (Path(__file__).parents[2] / "docs" / "reference" / "wire.md").read_text(encoding="utf-8")
    assert [reason for reason in REASONS if f"`{reason}`" not in wire] == []


@pytest.mark.parametrize("name", ["max_logit_error", "max_kl"])
@pytest.mark.parametrize("bound", [0.0, -1.0, float("nan")])
def test_a_bound_that_nothing_can_keep_stops_the_start(name, bound):
    with pytest.raises(ConfigError, match=name):
        EngineConfig(**{name: bound})


# -- while requests go on ---------------------------------------------------------------------------------------------


class Meanwhile(Fixed):
    """Does something with the engine while it judges."""

    def __init__(self, act):
        super().__init__()
        self.act = act

    def judge(self, native, coded, tokens):
        thread = threading.Thread(target=self.act)
        thread.start()
        thread.join(30)
        assert not thread.is_alive()  # or the engine's lock is held
        return super().judge(native, coded, tokens)


def test_requests_are_served_from_the_native_pages_while_the_judge_is_at_work(make_rig):
    rig, found = make_rig("small-gpt-oss"), []
    _, child, tokens = two_prefixes(rig)
    rig.engine.set_quality_judge(Meanwhile(lambda: found.append(rig.look(tokens))))
    assert compress(rig, child) == ""
    assert [(f.usable, f.wrong_bytes, f.state) for f in found] == [(len(tokens), 0, "FULL")]
    rig.assert_clean()


def test_a_path_that_is_judged_stays(make_rig):
    rig, outcomes = make_rig("small-gpt-oss", host_bytes=1 << 20), []
    parent, child, _ = two_prefixes(rig)

    def disturb():
        outcomes.append(rig.command("evict", prefix_ids=[parent], descendants=True).status)
        outcomes.append(rig.command("offload", prefix_ids=[parent], tier="host").status)

    rig.engine.set_quality_judge(Meanwhile(disturb))
    assert compress(rig, child) == ""
    assert outcomes == ["refused", "refused"]
    assert not any(node.record.leases for node in rig.ledger.index.walk())
    rig.assert_clean()


def test_a_prefix_that_was_leased_meanwhile_stays_native(make_rig):
    rig, held = make_rig("small-gpt-oss"), []
    _, child, tokens = two_prefixes(rig)
    rig.engine.set_quality_judge(Meanwhile(lambda: held.append(rig.engine.acquire(tokens, deadline_s=60))))
    live = rig.ledger.tiers.gpu.live_bytes
    assert compress(rig, child) == "leased"
    assert rig.ledger.tiers.gpu.live_bytes == live
    assert rig.lossy.verify(held[0].load(), tokens).ok
    held[0].release()
    rig.assert_clean()
