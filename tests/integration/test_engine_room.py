"""Making room: every model keeps being served while its tiers overflow, and nobody who must stay is moved."""

from __future__ import annotations

import pytest
from engine_support import SMALL, fork, prompt


@pytest.mark.parametrize("name", SMALL)
def test_every_model_overflows_all_three_tiers_without_losing_its_way(make_rig, tmp_path, name):
    rig = make_rig(name, gpu_bytes=512 << 10, host_bytes=256 << 10, disk_bytes=1 << 20, data_dir=tmp_path)
    prompts = [prompt(4 * rig.page + i % 3 * 10, i) for i in range(24)]
    for tokens in prompts:
        assert rig.serve(tokens).commit.outcome == "admitted"
        rig.assert_clean()
    hits = 0
    for tokens in prompts:
        found = rig.look(tokens)
        assert found.wrong_bytes == 0
        hits += bool(found.usable)
        rig.assert_clean()
    assert hits
    # A search for room that goes round in circles shows as thousands of transitions.
    assert rig.engine.counters().transitions < 40 * len(prompts)


def test_a_tail_that_is_empty_by_layout_does_not_keep_a_prefix_in_the_gpu_order(make_rig):
    rig = make_rig("small-gemma-3", gpu_bytes=256 << 10, host_bytes=4 << 20)
    prefix_id = rig.commit(prompt(2 * rig.page)).prefix_id
    rig.command("offload", prefix_ids=[prefix_id], tier="host")
    version = rig.node(prefix_id).record.version
    for seed in range(1, 12):
        assert rig.serve(prompt(4 * rig.page, seed)).commit.outcome == "admitted"
    assert rig.node(prefix_id).record.version == version


@pytest.mark.parametrize("keep", ["lease", "pin"])
def test_what_is_leased_or_pinned_stays_where_it_is(make_rig, keep):
    rig = make_rig(gpu_bytes=256 << 10)
    tokens = prompt(4 * rig.page)
    prefix_id = rig.commit(tokens).prefix_id
    lease = rig.engine.acquire(tokens)
    if keep == "pin":
        lease.release()
        rig.command("pin", prefix_ids=[prefix_id], ttl_s=600)
    for seed in range(1, 40):
        rig.serve(prompt(6 * rig.page, seed))
        rig.assert_clean()
    assert prefix_id in rig.ids
    assert rig.look(tokens).wrong_bytes == 0
    lease.release()


def test_when_all_tiers_are_full_of_pinned_prefixes_a_commit_is_refused_and_acquire_still_answers(make_rig, tmp_path):
    rig = make_rig(gpu_bytes=128 << 10, host_bytes=64 << 10, disk_bytes=64 << 10, data_dir=tmp_path)
    rig.ledger.pins.budget_bytes = 1 << 40
    kept = []
    for seed in range(40):
        tokens = prompt(4 * rig.page, seed)
        done = rig.commit(tokens)
        if done.outcome == "admitted":
            rig.command("pin", prefix_ids=[done.prefix_id], ttl_s=600)
            kept.append(tokens)
        rig.assert_clean()
    assert rig.commit(prompt(4 * rig.page, 99)).reason == "out_of_memory"
    assert 1 <= len(kept) < 40
    for tokens in kept:
        assert rig.look(tokens).wrong_bytes == 0
    assert rig.look(prompt(4 * rig.page, 99)).usable == 0
    rig.assert_clean()


def test_tails_leave_before_heads(make_rig):
    rig = make_rig(gpu_bytes=256 << 10)
    trunk = prompt(4 * rig.page)
    head = rig.commit(trunk).prefix_id
    tails = [rig.commit(fork(trunk, len(trunk), 6 * rig.page, seed)).prefix_id for seed in range(1, 4)]
    seed = 10
    while all(tail in rig.ids for tail in tails):
        assert head in rig.ids
        rig.serve(prompt(4 * rig.page, seed))
        seed += 1
    assert head in rig.ids


def test_a_disk_quota_smaller_than_one_object_means_no_disk(make_rig, tmp_path):
    rig = make_rig(gpu_bytes=128 << 10, disk_bytes=600, data_dir=tmp_path)
    for seed in range(12):
        assert rig.serve(prompt(4 * rig.page, seed)).commit.outcome == "admitted"
        rig.assert_clean()
    assert rig.files() == []


def test_a_refresh_that_runs_out_of_room_halfway_keeps_no_slots(make_rig):
    rig = make_rig(gpu_bytes=3 * (32 << 10), host_bytes=1 << 20)
    gone, arena = prompt(16 * rig.page), rig.ledger.tiers.gpu
    rig.command("offload", prefix_ids=[rig.commit(gone, []).prefix_id], tier="host")
    held = [("compressed_kv", arena.take("compressed_kv", 1))]  # its slab keeps room for the history pages
    while (slots := arena.take("indexer_state", 1)) is not None:  # and the indexer's pages find none
        held.append(("indexer_state", slots))
    used = {name: usage.used_slots for name, usage in arena.usage().items()}
    assert rig.commit(gone, []).reason == "out_of_memory"
    assert {name: usage.used_slots for name, usage in arena.usage().items()} == used
    for page_class, slots in held:
        arena.give(page_class, slots)
    rig.assert_clean()
