"""Caps, pins and graph windows: limits that hold whatever is asked."""

from __future__ import annotations

from threading import Thread

import pytest
from engine_support import fork, prompt

from engine.errors import ConfigError, GraphStale
from engine.schedule.publish import CHECKPOINTS_A_PREFIX

# -- caps, pins, eviction --------------------------------------------------------------------------------------------


def test_caps_hold_after_every_commit_with_splits_and_checkpoints(make_rig):
    rig = make_rig(cap_prefixes=5, cap_gpu_bytes=60_000)
    trunk = prompt(6 * rig.page)
    for seed in range(25):
        tokens = fork(trunk, 64 * (seed % 5) + 10, 6 * rig.page + seed, seed)
        rig.serve(tokens, extra=[130, 200])
        usage = rig.ledger.usage()
        assert usage.prefixes <= 5
        assert usage.gpu_bytes <= 60_000
        rig.assert_clean()


def test_a_restore_stays_within_the_gpu_cap(make_rig):
    rig = make_rig(host_bytes=2 << 20)
    prompts = [prompt(5 * rig.page, seed) for seed in range(6)]
    for tokens in prompts:
        rig.commit(tokens)
    rig.engine.reconfigure({"cap_gpu_bytes": 40_000}, revision=1)
    for tokens in prompts * 2:
        found = rig.look(tokens)
        assert (found.usable, found.wrong_bytes) == (len(tokens), 0)
        assert rig.ledger.usage().gpu_bytes <= 40_000
        rig.assert_clean()


def test_shrinking_a_cap_evicts_at_once_in_every_tier(make_rig, tmp_path):
    rig = make_rig(host_bytes=1 << 20, disk_bytes=1 << 20, data_dir=tmp_path)
    prompts = [prompt(4 * rig.page, seed) for seed in range(9)]
    ids = [rig.commit(tokens).prefix_id for tokens in prompts]
    rig.command("offload", prefix_ids=ids[:3], tier="host")
    rig.command("offload", prefix_ids=ids[3:6], tier="disk")
    caps = {"cap_gpu_bytes": 20_000, "cap_host_bytes": 20_000, "cap_disk_bytes": 30_000}
    rig.engine.reconfigure(caps, revision=1)
    usage = rig.ledger.usage()
    assert usage.gpu_bytes <= 20_000
    assert usage.host_bytes <= 20_000
    assert usage.disk_bytes <= 30_000
    for tokens in prompts:
        assert rig.look(tokens).wrong_bytes == 0
    rig.assert_clean()


def test_prompts_of_one_length_that_part_in_their_last_page_both_keep_their_end(make_rig):
    rig = make_rig()
    one = prompt(300)
    two = fork(one, 290, 300, 1)
    for tokens in (one, two):
        rig.serve(tokens)
    assert [rig.look(tokens).usable for tokens in (one, two)] == [300, 300]


def test_a_prefix_keeps_a_bounded_number_of_tails_and_the_newest_are_served(make_rig):
    rig = make_rig(checkpoint_budget_ratio=0.9, gpu_bytes=4 << 20)
    trunk = prompt(256)
    many = [fork(trunk, 256, 280, number) for number in range(1, 90)]
    for tokens in many:
        rig.serve(tokens)
    assert len(rig.node(rig.commit(trunk, []).prefix_id).record.checkpoints) == CHECKPOINTS_A_PREFIX
    assert [rig.look(tokens).usable for tokens in many[-60:]] == [280] * 60
    assert rig.look(many[0]).wrong_bytes == 0


def test_a_pinned_prefix_is_evicted_by_nobody_until_it_is_unpinned(make_rig):
    rig = make_rig()
    prefix_id = rig.commit(prompt(3 * rig.page)).prefix_id
    rig.command("pin", prefix_ids=[prefix_id], ttl_s=60)
    refused = rig.command("evict", prefix_ids=[prefix_id])
    assert (refused.status, refused.outcome["reason"]) == ("refused", "1 pinned")
    rig.command("unpin", prefix_ids=[prefix_id])
    assert rig.command("evict", prefix_ids=[prefix_id]).outcome["evicted"] == 1


def test_what_could_never_fit_a_cap_is_refused_before_anything_is_evicted(make_rig):
    rig = make_rig(cap_gpu_bytes=30_000, cap_prefixes=2)
    rig.commit(prompt(2 * rig.page))
    assert rig.commit(prompt(40 * rig.page, 1), []).reason == "over_gpu_cap"
    assert rig.commit(prompt(6 * rig.page, 2), [64, 128, 192, 256]).reason == "over_prefix_cap"
    assert len(rig.ids) == 1


def test_caps_held_by_leases_refuse_and_say_so(make_rig):
    rig = make_rig(cap_prefixes=1)
    tokens = prompt(3 * rig.page)
    rig.commit(tokens)
    with rig.engine.acquire(tokens):
        assert rig.commit(prompt(3 * rig.page, 1)).reason == "cap_held_by_leases_and_pins"
    assert rig.commit(prompt(3 * rig.page, 1)).outcome == "admitted"
    rig.assert_clean()


def test_a_pin_on_a_child_does_not_shorten_its_parents_own(make_rig):
    rig = make_rig(gpu_bytes=256 << 10)
    trunk = prompt(3 * rig.page)
    parent = rig.commit(trunk).prefix_id
    child = rig.commit(fork(trunk, len(trunk), 5 * rig.page, 1)).prefix_id
    rig.command("pin", prefix_ids=[parent], ttl_s=1000)
    rig.command("pin", prefix_ids=[child], ttl_s=10)
    rig.clock.advance(20)
    assert not rig.ledger.may_leave(rig.node(parent))
    assert rig.ledger.may_leave(rig.node(child))


def test_a_policy_does_not_evict_what_an_operator_pinned(make_rig):
    rig = make_rig()
    prefix_id = rig.commit(prompt(3 * rig.page)).prefix_id
    rig.command("pin", prefix_ids=[prefix_id], ttl_s=1000)
    done = rig.command("evict", prefix_ids=[prefix_id], actor="policy:tidy")
    assert done.outcome["refused"][0]["reason"] == "pinned"
    assert prefix_id in rig.ids


def test_a_desired_state_is_applied_whole_or_not_at_all(make_rig):
    rig = make_rig()
    before = rig.engine.observed()
    for bad in ({"mode": "no_disk", "codec": "zip"}, {"mode": "no_disk", "cap_prefixes": 0}, {"colour": 1}):
        with pytest.raises(ConfigError):
            rig.engine.reconfigure(bad, revision=1)
        assert rig.engine.observed() == before


# -- graph windows ---------------------------------------------------------------------------------------------------


def test_nothing_moves_or_leaves_while_a_graph_window_is_open(make_rig):
    rig = make_rig(gpu_bytes=512 << 10, host_bytes=1 << 20, restore_timeout_s=0.05)
    prompts = [prompt(8 * rig.page, seed) for seed in range(8)]
    ids = [rig.commit(tokens, []).prefix_id for tokens in prompts]
    rig.command("evict", prefix_ids=[ids[i] for i in (0, 1, 2, 4, 5)])
    held = [rig.node(i).record.spans["compressed_kv"].gpu.slots.tolist() for i in (ids[3], ids[6])]
    with rig.engine.graph.window():
        rig.command("compact")
        rig.command("offload", prefix_ids=[ids[3]], tier="host")
        rig.command("compress", prefix_ids=[ids[6]], codec="lossless")
        rig.command("evict", prefix_ids=[ids[7]])
        now = [rig.node(i).record.spans["compressed_kv"].gpu for i in (ids[3], ids[6])]
        assert [copy and copy.slots.tolist() for copy in now] == held
        assert ids[7] in rig.ids
    rig.assert_clean()


def test_a_command_sent_inside_a_graph_window_is_done_at_its_end(make_rig):
    rig = make_rig(restore_timeout_s=60.0)
    prefix_id = rig.commit(prompt(3 * rig.page)).prefix_id
    done = []
    with rig.engine.graph.window():
        worker = Thread(target=lambda: done.append(rig.command("evict", prefix_ids=[prefix_id])))
        worker.start()
        worker.join(0.2)
        assert worker.is_alive()
        assert prefix_id in rig.ids
    worker.join(60)
    assert done[0].outcome["evicted"] == 1
    rig.assert_clean()


def test_a_replay_of_a_graph_captured_before_a_change_is_stale(make_rig):
    rig = make_rig()
    with rig.engine.graph.window() as epoch:
        pass
    with rig.engine.graph.window(epoch):
        pass
    rig.commit(prompt(3 * rig.page))
    with pytest.raises(GraphStale), rig.engine.graph.window(epoch):
        pass


def test_a_commit_in_a_window_takes_free_room_and_is_refused_when_something_would_have_to_move(make_rig):
    rig = make_rig(gpu_bytes=128 << 10)
    with rig.engine.graph.window():
        outcomes = [rig.commit(prompt(8 * rig.page, seed), []).outcome for seed in range(12)]
    assert outcomes[0] == "admitted"
    assert outcomes[-1] == "refused"
    rig.assert_clean()
    assert rig.commit(prompt(8 * rig.page, 99), []).outcome == "admitted"
