"""Namespaces with caps, cost-aware eviction, and pins with a budget: each keeps to its own, and the books say so."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from engine_support import fork, prompt

from engine.errors import ConfigError

KIB = 1 << 10


def held(rig, namespace):
    return rig.engine.stats()["namespaces"].get(namespace, {"gpu_bytes": 0, "prefixes": 0})


def fill(rig, namespace, n, *, first=0, pages=4):
    return [
        rig.serve(prompt(pages * rig.page, 1000 * ord(namespace[0]) + first + i), namespace=namespace) for i in range(n)
    ]


def caps(**of):
    return {"namespace_caps": of}


# -- maxima -----------------------------------------------------------------------------------------------------------


def test_a_namespace_at_its_maximum_evicts_its_own_oldest_and_nobody_elses(make_rig):
    rig = make_rig(**caps(a={"max_bytes": 60 * KIB}))
    fill(rig, "b", 3)
    mine = fill(rig, "b", 1)[0]
    for i in range(20):
        assert fill(rig, "a", 1, first=i)[0].commit.outcome == "admitted"
        assert held(rig, "a")["gpu_bytes"] <= 60 * KIB
        rig.assert_clean()
    assert held(rig, "b")["prefixes"] == 3
    assert mine.usable
    newest = prompt(4 * rig.page, 1000 * ord("a") + 19)
    assert rig.look(newest, namespace="a").usable == len(newest)
    evictions = rig.engine.counters().evictions
    assert evictions.keys() <= {("cap", "prefix"), ("cap", "swa_window"), ("cap", "uncompressed_tail")}


def test_a_maximum_of_prefixes_holds_with_splits(make_rig):
    rig = make_rig(**caps(a={"max_prefixes": 4}))
    trunk = prompt(6 * rig.page)
    fill(rig, "b", 6)
    for seed in range(12):
        rig.serve(fork(trunk, 64 * (seed % 5) + 10, 6 * rig.page, seed), namespace="a")
        assert held(rig, "a")["prefixes"] <= 4
        rig.assert_clean()
    assert held(rig, "b")["prefixes"] == 6


def test_what_could_never_fit_a_namespace_is_refused_before_anything_leaves(make_rig):
    rig = make_rig(**caps(a={"max_bytes": 20 * KIB}))
    fill(rig, "a", 1, pages=1)
    done = rig.commit(prompt(40 * rig.page), [], namespace="a")
    assert (done.outcome, done.reason) == ("refused", "over_namespace_cap")
    assert held(rig, "a")["prefixes"] == 1


def test_a_maximum_held_by_leases_refuses_and_says_so_and_other_namespaces_go_on(make_rig):
    rig = make_rig(**caps(a={"max_prefixes": 1}))
    tokens = prompt(3 * rig.page)
    rig.commit(tokens, namespace="a")
    with rig.engine.acquire(tokens, namespace="a"):
        assert rig.commit(prompt(3 * rig.page, 1), namespace="a").reason == "cap_held_by_leases_and_pins"
        assert rig.commit(prompt(3 * rig.page, 1), namespace="b").outcome == "admitted"
    assert rig.commit(prompt(3 * rig.page, 1), namespace="a").outcome == "admitted"
    rig.assert_clean()


def test_at_a_maximum_prefixes_go_below_the_gpu_and_a_restore_keeps_the_maximum_too(make_rig):
    rig = make_rig(host_bytes=1 << 20, **caps(a={"max_bytes": 40 * KIB}))
    fill(rig, "a", 8)
    for i in range(8):
        tokens = prompt(4 * rig.page, 1000 * ord("a") + i)
        found = rig.look(tokens, namespace="a")
        assert (found.usable, found.wrong_bytes) == (len(tokens), 0)
        assert held(rig, "a")["gpu_bytes"] <= 40 * KIB
        rig.assert_clean()
    assert held(rig, "a")["prefixes"] == 8


def test_a_checkpoint_that_its_namespace_has_no_room_for_is_dropped_with_its_reason(make_rig):
    rig = make_rig()
    tokens = prompt(4 * rig.page)
    rig.commit(tokens, [], namespace="a")
    wanted = held(rig, "a")["gpu_bytes"] + 16
    rig.engine.reconfigure(caps(a={"max_bytes": wanted}), revision=1)
    with rig.engine.acquire(tokens, namespace="a"):
        done = rig.commit(tokens, [len(tokens)], namespace="a")
    assert (done.outcome, done.checkpoints) == ("admitted", ())
    assert rig.engine.stats()["checkpoints_dropped"] == {"namespace_cap": 1}
    rig.assert_clean()


def test_a_maximum_holds_at_every_moment_while_threads_commit_and_restore(make_rig):
    rig = make_rig(host_bytes=1 << 20, **caps(a={"max_bytes": 60 * KIB, "max_prefixes": 9}))
    books, peak = rig.ledger.namespaces, []

    class Watched(type(books)):
        def add_bytes(self, namespace, n_bytes):
            super().add_bytes(namespace, n_bytes)
            held_bytes = sum(n.record.gpu_bytes for n in rig.ledger.nodes.values() if n.record.namespace == "a")
            peak.append((held_bytes, sum(n.record.namespace == "a" for n in rig.ledger.nodes.values())))

    rig.ledger.namespaces = Watched(books.shares)

    def work(first):
        for i in range(12):
            found = rig.serve(prompt(4 * rig.page, first + i % 7), namespace="a")
            assert found.wrong_bytes == 0

    with ThreadPoolExecutor(5) as pool:
        for future in [pool.submit(work, 3 * n) for n in range(5)]:
            future.result(timeout=120)
    assert max(n_bytes for n_bytes, _ in peak) <= 60 * KIB
    assert max(n for _, n in peak) <= 9
    assert rig.ledger.namespaces.total_bytes == sum(n.record.gpu_bytes for n in rig.ledger.nodes.values())
    rig.assert_clean()


# -- guarantees -------------------------------------------------------------------------------------------------------


def test_a_guaranteed_share_survives_any_flood_of_others(make_rig):
    rig = make_rig(gpu_bytes=256 * KIB, **caps(a={"guaranteed_bytes": 60 * KIB}))
    fill(rig, "a", 3)
    before = held(rig, "a")
    assert before["gpu_bytes"] <= 60 * KIB
    for i in range(60):
        fill(rig, "b", 1, first=i, pages=6)
        assert held(rig, "a") == before
        rig.assert_clean()


def test_what_is_over_a_guarantee_is_fair_game_and_what_is_under_it_is_not(make_rig):
    share = 60 * KIB
    rig = make_rig(gpu_bytes=256 * KIB, **caps(a={"guaranteed_bytes": share}))
    fill(rig, "a", 30)
    assert held(rig, "a")["gpu_bytes"] > share
    for i in range(60):
        fill(rig, "b", 1, first=i)
        assert held(rig, "a")["gpu_bytes"] >= share
    largest = max(node.record.gpu_bytes for node in rig.ledger.nodes.values())
    assert held(rig, "a")["gpu_bytes"] < share + 2 * largest
    rig.assert_clean()


def test_two_guarantees_both_hold(make_rig):
    rig = make_rig(gpu_bytes=256 * KIB, **caps(a={"guaranteed_bytes": 80 * KIB}, b={"guaranteed_bytes": 80 * KIB}))
    for i in range(40):
        low = {name: min(held(rig, name)["gpu_bytes"], 80 * KIB) for name in "ab"}
        namespace = "aab"[i % 3]
        other = "b" if namespace == "a" else "a"
        fill(rig, namespace, 1, first=i, pages=5)
        assert held(rig, other)["gpu_bytes"] >= low[other]
        rig.assert_clean()


def test_guarantees_that_do_not_fit_the_tier_are_refused_whole(make_rig):
    rig = make_rig(gpu_bytes=256 * KIB)
    too_much = {"a": {"guaranteed_bytes": 200 * KIB}, "b": {"guaranteed_bytes": 100 * KIB}}
    with pytest.raises(ConfigError, match="guarantee"):
        rig.engine.reconfigure({"namespace_caps": too_much, "mode": "bypass"}, revision=1)
    assert rig.engine.observed()["namespace_caps"] == {}
    assert rig.engine.observed()["mode"] == "normal"


def test_caps_by_namespace_are_desired_state_and_shrinking_one_evicts_at_once(make_rig):
    rig = make_rig()
    fill(rig, "a", 6)
    fill(rig, "b", 3)
    observed = rig.engine.reconfigure(caps(a={"max_bytes": 30 * KIB, "max_prefixes": 2}), revision=1)
    assert observed["namespace_caps"] == {"a": {"max_bytes": 30 * KIB, "max_prefixes": 2}}
    assert held(rig, "a")["gpu_bytes"] <= 30 * KIB
    assert held(rig, "a")["prefixes"] <= 2
    assert held(rig, "b")["prefixes"] == 3
    assert rig.engine.reconfigure({}, revision=2)["namespace_caps"] == {}
    fill(rig, "a", 6)
    assert held(rig, "a")["prefixes"] == 6
    rig.assert_clean()


# -- checkpoints ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eviction", ["lru", "cost_aware"])
def test_the_checkpoint_budget_holds_under_every_eviction_and_cap(make_rig, eviction):
    settings = caps(a={"max_bytes": 100 * KIB}, b={"guaranteed_bytes": 40 * KIB})
    rig = make_rig(gpu_bytes=512 * KIB, checkpoint_budget_ratio=0.1, eviction=eviction, **settings)
    for i in range(40):
        fill(rig, "abc"[i % 3], 1, first=i)
        assert rig.ledger.checkpoints.gpu_bytes <= 0.1 * 512 * KIB
        assert held(rig, "a")["gpu_bytes"] <= 100 * KIB
        rig.assert_clean()
    assert rig.ledger.checkpoints.gpu_bytes > 0
    rig.engine.reconfigure({**settings, "checkpoint_budget_ratio": 0.02}, revision=1)
    assert rig.ledger.checkpoints.gpu_bytes <= 0.02 * 512 * KIB
    assert rig.engine.observed()["checkpoint_budget_ratio"] == 0.02
    rig.assert_clean()


# -- cost-aware -------------------------------------------------------------------------------------------------------


def test_cost_aware_lets_short_prefixes_go_before_long_ones_that_are_older(make_rig):
    kept = {}
    for eviction in ("lru", "cost_aware"):
        rig = make_rig(gpu_bytes=768 * KIB, eviction=eviction)
        long = [prompt(24 * rig.page, 500 + i) for i in range(3)]
        ids = [rig.serve(tokens).commit.prefix_id for tokens in long]
        count = 0
        while rig.engine.counters().evictions.get(("pressure", "prefix"), 0) < 3:
            fill(rig, "default", 1, first=count, pages=1 + count % 3)
            count += 1
        kept[eviction] = len({*ids} & {*rig.ids})
        rig.assert_clean()
    assert kept["lru"] < kept["cost_aware"] == 3


def test_cost_aware_takes_tails_before_heads_and_never_what_is_leased(make_rig):
    rig = make_rig(gpu_bytes=256 * KIB, eviction="cost_aware")
    trunk = prompt(4 * rig.page)
    head = rig.commit(trunk).prefix_id
    tails = [rig.commit(fork(trunk, len(trunk), 6 * rig.page, seed)).prefix_id for seed in range(1, 4)]
    held_tokens = prompt(3 * rig.page, 77)
    leased = rig.commit(held_tokens).prefix_id
    with rig.engine.acquire(held_tokens):
        for seed in range(10, 60):
            rig.serve(prompt(4 * rig.page, seed))
            assert leased in rig.ids
            assert head in rig.ids or not set(tails) & set(rig.ids)
            rig.assert_clean()


def test_eviction_is_desired_state(make_rig):
    rig = make_rig()
    assert rig.engine.observed()["eviction"] == "lru"
    assert rig.engine.reconfigure({"eviction": "cost_aware"}, revision=1)["eviction"] == "cost_aware"
    with pytest.raises(ConfigError, match="eviction is"):
        rig.engine.reconfigure({"eviction": "random"}, revision=2)
