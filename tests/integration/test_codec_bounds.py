"""What a lossy codec may cost: a prefix measured worse, or not measured, is refused and stays native."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from engine_support import fork, prompt
from quality_support import (
    Broken,
    Fixed,
    ReadOut,
    compress,
    judged,
    meta_of,
    two_prefixes,
)

from engine import EngineConfig
from engine.errors import ConfigError
from engine.schedule.quality import REASONS


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


def test_every_reason_is_explained_in_the_reference():
    wire = (Path(__file__).parents[2] / "docs" / "reference" / "wire.md").read_text(encoding="utf-8")
    assert [reason for reason in REASONS if f"`{reason}`" not in wire] == []


@pytest.mark.parametrize("name", ["max_logit_error", "max_kl"])
@pytest.mark.parametrize("bound", [0.0, -1.0, float("nan")])
def test_a_bound_that_nothing_can_keep_stops_the_start(name, bound):
    with pytest.raises(ConfigError, match=name):
        EngineConfig(**{name: bound})


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
