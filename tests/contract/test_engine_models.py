"""One suite for every model: whatever kinds of objects a prefix is made of, they leave, come back and are right."""

from __future__ import annotations

import pytest
from engine_support import SMALL, fork, prompt

from engine.model.presets import preset
from engine.model.spec import Compressed, Field, Layer, ModelSpec, Sliding


def tail_of_buffers_only():
    """Compressed history whose tail is nothing but buffers, and empty at a page boundary: no preset has that."""
    entry, buffers = (Field(name="e", dtype="bfloat16", width=8),), (Field(name="b", dtype="float32", width=4),)
    layer = Layer(parts=(Compressed(ratio=8, fields=entry, buffers=buffers),))
    return ModelSpec(name="buffers", revision="1", page_tokens=32, layers=(layer,))


def windows_only():
    """No history at all: every prefix lives in its windows."""
    entry = (Field(name="kv", dtype="float16", width=8),)
    return ModelSpec(
        name="windows", revision="1", page_tokens=32, layers=(Layer(parts=(Sliding(window=9, fields=entry),)),)
    )


MODELS = {**{name: lambda name=name: preset(name) for name in SMALL}, "buffers": tail_of_buffers_only}
LENGTHS = (1, 2, 2.5, 3.03)  # pages


@pytest.fixture(params=sorted(MODELS))
def rig(request, make_rig, tmp_path):
    spec = MODELS[request.param]()
    return make_rig(spec=spec, gpu_bytes=2 << 20, host_bytes=1 << 20, disk_bytes=8 << 20, data_dir=tmp_path)


def prompts_of(rig):
    """A trunk, branches inside and at the end of pages, a prefix of the trunk, and a stranger."""
    page = rig.page
    trunk = prompt(5 * page + 3)
    return [
        trunk, fork(trunk, 3 * page, 5 * page, 1), fork(trunk, 2 * page + 7, 4 * page + 1, 2), trunk[: 4 * page],
        fork(trunk, len(trunk) - 1, len(trunk) + 2, 3), prompt(page + 1, 4),
    ]  # fmt: skip


def assert_all_served(rig, prompts, tier=None):
    for tokens in prompts:
        found = rig.look(tokens)
        assert (found.usable, found.wrong_bytes) == (len(tokens), 0), found
        assert tier is None or found.tier == tier
        rig.assert_clean()


def test_what_was_committed_is_served_whole(rig):
    for tokens in prompts_of(rig):
        assert rig.serve(tokens).wrong_bytes == 0
    assert_all_served(rig, prompts_of(rig), "gpu")


@pytest.mark.parametrize("pages", LENGTHS)
def test_checkpoints_at_and_between_page_boundaries_are_right(rig, pages):
    tokens = prompt(5 * rig.page)
    at = int(pages * rig.page)
    rig.commit(tokens, [at])
    found = rig.look(tokens[:at])
    assert (found.usable, found.wrong_bytes) == (at, 0)


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_everything_offloaded_comes_back_whole(rig, tier):
    for tokens in prompts_of(rig):
        rig.serve(tokens)
    rig.command("offload", prefix_ids=rig.ids, tier=tier)
    assert rig.engine.stats()["tiers"]["gpu"]["live_bytes"] == 0
    rig.assert_clean()
    assert rig.look(prompts_of(rig)[0]).tier == tier
    assert_all_served(rig, prompts_of(rig))


def test_a_prefix_goes_down_step_by_step_and_is_warmed_again(rig):
    for tokens in prompts_of(rig):
        rig.serve(tokens)
    rig.command("compress", prefix_ids=rig.ids, codec="lossless")
    rig.command("offload", prefix_ids=rig.ids, tier="host")
    assert_all_served(rig, prompts_of(rig))
    rig.command("offload", prefix_ids=rig.ids, tier="disk")
    warmed = rig.command("warm", prefix_ids=rig.ids)
    assert warmed.status == "succeeded"
    assert_all_served(rig, prompts_of(rig), "gpu")


def test_a_restart_serves_the_same_bytes_from_disk(rig, make_rig):
    for tokens in prompts_of(rig):
        rig.serve(tokens)
    rig.command("compress", prefix_ids=rig.ids[::2], codec="lossless")
    rig.engine.close()
    rig.clock.advance(1)
    config = rig.engine.config
    again = make_rig(
        spec=rig.spec, clock=rig.clock, gpu_bytes=config.gpu_bytes, host_bytes=config.host_bytes,
        disk_bytes=config.disk_bytes, data_dir=config.data_dir,
    )  # fmt: skip
    assert again.engine.adoption.damaged == 0
    assert again.engine.adoption.orphans == 0
    assert_all_served(again, prompts_of(rig))


def test_evicting_a_subtree_leaves_the_rest_right(rig):
    for tokens in prompts_of(rig):
        rig.serve(tokens)
    root = min(rig.ledger.nodes.values(), key=lambda n: (n.first_page, -len(n.children)))
    rig.command("evict", prefix_ids=[root.record.prefix_id], descendants=True)
    rig.assert_clean()
    assert rig.look(prompts_of(rig)[0]).usable == 0
    assert_all_served(rig, [prompts_of(rig)[-1]])
    rig.command("evict", prefix_ids=rig.ids)
    assert rig.ids == []
    assert rig.engine.stats()["tiers"]["gpu"]["live_bytes"] == 0
    assert rig.files() == []


@pytest.mark.parametrize("mode", ["no_disk", "resident_only", "full_only", "bypass"])
def test_each_mode_gives_up_a_way_of_reuse_and_never_rightness(rig, mode):
    on_gpu, on_host, on_disk, coded = (prompt(4 * rig.page, seed) for seed in range(4))
    ids = [rig.commit(tokens).prefix_id for tokens in (on_gpu, on_host, on_disk, coded)]
    rig.command("offload", prefix_ids=[ids[1]], tier="host")
    rig.command("offload", prefix_ids=[ids[2]], tier="disk")
    squeezed = rig.command("compress", prefix_ids=[ids[3]], codec="lossless").status == "succeeded"
    rig.engine.reconfigure({"mode": mode}, revision=1)
    rung = ("normal", "no_disk", "resident_only", "full_only", "bypass").index(mode)
    wanted = [rung < 4, rung < 2, rung < 1, rung < (3 if squeezed else 4)]
    got = []
    for tokens in (on_gpu, on_host, on_disk, coded):
        found = rig.look(tokens)
        assert found.wrong_bytes == 0
        got.append(found.usable == len(tokens))
    assert got == wanted
    rig.assert_clean()


def test_a_model_of_windows_alone_is_refused_or_right(make_rig):
    rig = make_rig(spec=windows_only())
    tokens = prompt(100)
    rig.serve(tokens)
    found = rig.look(tokens)
    assert found.wrong_bytes == 0
    rig.assert_clean()
