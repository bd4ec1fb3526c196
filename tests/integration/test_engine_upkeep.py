"""Pins within a budget, queues that starve nobody, compaction under live leases, and causes that are all counted."""

from __future__ import annotations

from threading import Event

import pytest
from engine_support import fork, prompt
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from engine import CacheEngine, EngineConfig, preset
from engine.consistency.state import Cause
from engine.errors import ConfigError
from engine.schedule.publish import DROPS, REFUSALS
from engine.schedule.queues import Form
from engine.schedule.reform import SPARSE_RATIO

KIB = 1 << 10


def pinned_bytes(rig):
    return rig.engine.stats()["pins"]["bytes"]


# -- pins -------------------------------------------------------------------------------------------------------------


def test_a_pin_past_the_budget_is_refused_and_the_cache_goes_on(make_rig):
    rig = make_rig(gpu_bytes=256 * KIB, pin_budget_ratio=0.25)
    outcomes = []
    for seed in range(30):
        done = rig.serve(prompt(4 * rig.page, seed)).commit
        assert done.outcome == "admitted"
        outcomes.append(rig.command("pin", prefix_ids=[done.prefix_id], ttl_s=600))
        assert pinned_bytes(rig) <= 64 * KIB
        rig.assert_clean()
    assert {outcome.status for outcome in outcomes} == {"succeeded", "refused"}
    assert outcomes[-1].outcome["refused"][0]["reason"] == "pin_budget"


def test_a_pin_counts_its_path_once_and_unpinning_gives_the_bytes_back(make_rig):
    rig = make_rig()
    trunk = prompt(4 * rig.page)
    rig.commit(trunk, [])
    tails = [rig.commit(fork(trunk, len(trunk), 6 * rig.page, seed), []).prefix_id for seed in (1, 2)]
    rig.command("pin", prefix_ids=tails, ttl_s=600)
    assert pinned_bytes(rig) == sum(node.record.gpu_bytes for node in rig.ledger.nodes.values())
    rig.command("pin", prefix_ids=tails, ttl_s=900)
    one = pinned_bytes(rig)
    rig.command("unpin", prefix_ids=tails[:1])
    assert 0 < pinned_bytes(rig) < one
    rig.command("unpin", prefix_ids=tails[1:])
    assert (pinned_bytes(rig), rig.engine.stats()["pins"]["prefixes"]) == (0, 0)
    rig.assert_clean()


def test_a_pinned_prefix_that_is_split_or_offloaded_stays_in_the_books(make_rig):
    rig = make_rig(host_bytes=1 << 20)
    trunk = prompt(8 * rig.page)
    prefix_id = rig.commit(trunk, [len(trunk)]).prefix_id
    rig.command("pin", prefix_ids=[prefix_id], ttl_s=600)
    whole = pinned_bytes(rig)
    rig.commit(fork(trunk, 3 * rig.page, 5 * rig.page, 1), [])
    assert pinned_bytes(rig) == whole
    assert rig.engine.stats()["pins"]["prefixes"] == 2
    rig.assert_clean()


def test_a_pinned_prefix_grows_by_checkpoints_within_the_budget_only(make_rig):
    rig = make_rig(checkpoint_budget_ratio=0.9, gpu_bytes=512 * KIB)
    trunk = prompt(4 * rig.page)
    prefix_id = rig.commit(trunk).prefix_id
    rig.command("pin", prefix_ids=[prefix_id], ttl_s=600)
    before = pinned_bytes(rig)
    rig.commit(fork(trunk, len(trunk), len(trunk) + 9, 1))
    grown = pinned_bytes(rig)
    assert grown > before
    rig.ledger.pins.budget_bytes = grown + 1
    done = rig.commit(fork(trunk, len(trunk), len(trunk) + 9, 2))
    assert (done.outcome, done.checkpoints, pinned_bytes(rig)) == ("admitted", (), grown)
    assert rig.engine.stats()["checkpoints_dropped"] == {"pin_budget": 1}
    rig.assert_clean()


def test_checkpoints_of_one_commit_share_what_the_budget_of_pins_has_left(make_rig):
    rig = make_rig(checkpoint_budget_ratio=0.9, gpu_bytes=512 * KIB)
    trunk = prompt(4 * rig.page)
    ids = [rig.commit(trunk[: n * rig.page], []).prefix_id for n in (4, 2)]
    rig.command("pin", prefix_ids=ids, ttl_s=600)
    one = sum(rig.ledger.layouts.of(kind).slot_bytes for kind in rig.ledger.layouts.boundary_kinds)
    rig.ledger.pins.budget_bytes = pinned_bytes(rig) + one
    assert len(rig.commit(trunk, [2 * rig.page, 4 * rig.page]).checkpoints) == 1
    assert pinned_bytes(rig) <= rig.ledger.pins.budget_bytes
    rig.assert_clean()


def test_a_pin_that_ran_out_is_told_at_the_next_tick_and_its_bytes_are_free(make_rig):
    rig = make_rig()
    prefix_id = rig.commit(prompt(3 * rig.page)).prefix_id
    rig.command("pin", prefix_ids=[prefix_id], ttl_s=30)
    assert rig.engine.snapshot()[0]["pinned"]
    version = rig.node(prefix_id).record.version
    rig.clock.advance(31.0)
    rig.engine.tick()
    rig.engine.tick()
    rig.engine.flush_telemetry()
    last = rig.log.named("kvcache.transition")[-1]
    told = (last["kvcache.prefix.id"], last["kvcache.version"], last["kvcache.cause"], last["kvcache.pinned"])
    assert told == (prefix_id, version + 1, "unpin", False)
    assert last["kvcache.state.from"] == last["kvcache.state.to"] == "FULL"
    assert (pinned_bytes(rig), rig.engine.snapshot()[0]["pinned"]) == (0, False)
    rig.assert_clean()


def test_a_restored_pinned_prefix_takes_no_more_of_the_budget(make_rig):
    rig = make_rig(host_bytes=1 << 20)
    tokens = prompt(4 * rig.page)
    prefix_id = rig.commit(tokens).prefix_id
    rig.command("offload", prefix_ids=[prefix_id], tier="host")
    rig.command("pin", prefix_ids=[prefix_id], ttl_s=600)
    below = pinned_bytes(rig)
    assert below > 0
    rig.command("warm", prefix_ids=[prefix_id])
    assert pinned_bytes(rig) == below
    assert rig.look(tokens).usable == len(tokens)
    rig.assert_clean()


@pytest.mark.parametrize("ratio", [0.0, -1.0, 1.5])
def test_a_budget_of_pins_is_a_share(make_rig, ratio):
    with pytest.raises(ConfigError, match="pin_budget_ratio"):
        make_rig(pin_budget_ratio=ratio)


# -- queues -----------------------------------------------------------------------------------------------------------


def test_a_flood_of_compression_delays_no_restore(make_rig):
    rig = make_rig(host_bytes=1 << 20, queue_bound=8)
    tokens = prompt(4 * rig.page)
    prefix_id = rig.commit(tokens).prefix_id
    rig.command("offload", prefix_ids=[prefix_id], tier="host")
    queue, gate, running = rig.engine._queues[Form.COMPRESSED], Event(), Event()

    def slow():
        running.set()
        gate.wait(60)

    futures = [queue.submit(slow)]
    assert running.wait(10)
    futures += [queue.submit(lambda: None) for _ in range(queue.bound)]
    try:
        assert queue.full
        refused = rig.command("compress", prefix_ids=[prefix_id], codec="lossless")
        assert refused.outcome["refused"][0]["reason"] == "queue_full"
        found = rig.look(tokens, deadline_s=30.0)  # while every worker and place of that queue is taken
        assert (found.usable, found.tier, found.wrong_bytes) == (len(tokens), "host", 0)
    finally:
        gate.set()
        for future in futures:
            future.result(timeout=30)
    rig.assert_clean()


def test_a_full_queue_is_a_plan_without_that_tier_and_not_a_wait(make_rig):
    rig = make_rig(host_bytes=1 << 20, queue_bound=2)
    tokens = prompt(4 * rig.page)
    rig.command("offload", prefix_ids=[rig.commit(tokens).prefix_id], tier="host")
    queue, gate, running = rig.engine._queues[Form.OFFLOADED], Event(), Event()

    def slow():
        running.set()
        gate.wait(60)

    futures = [queue.submit(slow)]
    assert running.wait(10)
    futures += [queue.submit(lambda: None) for _ in range(queue.bound)]
    try:
        before = rig.clock.monotonic_ns()
        found = rig.look(tokens, deadline_s=3600.0)
        assert (found.usable, found.reason) == (0, "queue_full")
        assert rig.clock.monotonic_ns() == before
    finally:
        gate.set()
        for future in futures:
            future.result(timeout=30)
    assert rig.look(tokens).usable == len(tokens)
    rig.assert_clean()


# -- compaction -------------------------------------------------------------------------------------------------------


def sparse(make_rig):
    """Slabs filled by halves, and a lease on one of the prefixes in them."""
    rig = make_rig(gpu_bytes=1 << 20)
    prompts = [prompt(6 * rig.page, seed) for seed in range(24)]
    ids = [rig.commit(tokens, []).prefix_id for tokens in prompts]
    rig.command("evict", prefix_ids=[prefix_id for i, prefix_id in enumerate(ids) if i % 4])
    return rig, prompts[::4], ids[::4]


def slots_of(rig, prefix_id):
    return {kind: h.gpu.slots.tolist() for kind, h in rig.node(prefix_id).record.spans.items()}


def test_compaction_says_what_it_won_and_moves_nothing_that_is_leased(make_rig):
    rig, prompts, ids = sparse(make_rig)
    lease = rig.engine.acquire(prompts[0])
    where, held = slots_of(rig, ids[0]), rig.engine.stats()["tiers"]["gpu"]["pinned_bytes"]
    before = rig.engine.stats()["fragmentation"]
    outcome = rig.command("compact").outcome
    assert outcome["fragmentation_before"] == before
    assert outcome["fragmentation_after"] == rig.engine.stats()["fragmentation"]
    assert outcome["pages"] > 0
    assert outcome["slabs_freed"] > 0
    assert outcome["fragmentation_after"]["compressed_kv"] < before["compressed_kv"] > 1 - SPARSE_RATIO
    assert slots_of(rig, ids[0]) == where
    assert rig.engine.stats()["tiers"]["gpu"]["pinned_bytes"] == held
    assert rig.model.verify(lease.load(), prompts[0][: lease.usable_tokens]).ok
    lease.release()
    for tokens in prompts:
        assert rig.look(tokens).wrong_bytes == 0
    rig.engine.flush_telemetry()
    span = rig.log.named("kvcache.compact")[-1]
    assert {"kvcache.fragmentation_before", "kvcache.fragmentation_after", "kvcache.pages"} <= span.keys()
    rig.assert_clean()


def test_a_step_of_compaction_moves_no_more_than_it_is_allowed(make_rig):
    rig, prompts, _ = sparse(make_rig)
    moved = [rig.command("compact", max_pages=2).outcome["pages"] for _ in range(4)]
    assert max(moved) <= 2
    assert sum(moved) > 2
    for tokens in prompts:
        assert rig.look(tokens).wrong_bytes == 0
    rig.assert_clean()


# -- causes -----------------------------------------------------------------------------------------------------------


def readings(reader):
    found = {}
    for scope in reader.get_metrics_data().resource_metrics[0].scope_metrics:
        for metric in scope.metrics:
            for point in metric.data.data_points:
                value = getattr(point, "value", None)
                found[metric.name, *sorted((point.attributes or {}).items())] = value
    return found


def test_every_reason_and_cause_is_in_stats_and_metrics():
    reader = InMemoryMetricReader()
    config = EngineConfig(gpu_bytes=1 << 20, namespace_caps={"a": {"max_prefixes": 9}})
    with CacheEngine(preset("small-gemma-3"), config, meter_provider=MeterProvider([reader])) as engine:
        counters = engine._ledger.counters
        for n, reason in enumerate(REFUSALS, 1):
            for _ in range(n):
                engine._publisher.refuse(reason)
        for n, reason in enumerate(DROPS, 1):
            engine._ledger.count_dropped(reason, n)
        for n, cause in enumerate(Cause, 1):
            counters.evictions[str(cause), "prefix"] = n
        counters.commits, counters.cuts["second_touch"] = 5, 2
        said, told = engine.stats(), readings(reader)
    assert said["commits"]["refused"] == {reason: n for n, reason in enumerate(REFUSALS, 1)}
    assert said["checkpoints_dropped"] == {reason: n for n, reason in enumerate(DROPS, 1)}
    assert said["evictions"] == {f"{cause} prefix": n for n, cause in enumerate(Cause, 1)}
    for n, reason in enumerate(REFUSALS, 1):
        assert told["kvcache.commits", ("outcome", "refused"), ("reason", reason)] == n
    for n, reason in enumerate(DROPS, 1):
        assert told["kvcache.checkpoints.dropped", ("reason", reason)] == n
    for n, cause in enumerate(Cause, 1):
        assert told["kvcache.evictions", ("cause", str(cause)), ("kind", "prefix")] == n
    assert told["kvcache.commits", ("outcome", "admitted"), ("reason", "ok")] == 3
    assert told["kvcache.commits", ("outcome", "admitted"), ("reason", "second_touch")] == 2
    assert told["kvcache.namespace.bytes", ("namespace", "a")] == 0
    assert told["kvcache.pinned.bytes",] == 0


def test_what_leaves_is_counted_by_its_cause_and_nothing_leaves_uncounted(make_rig):
    rig = make_rig(gpu_bytes=256 * KIB, namespace_caps={"a": {"max_prefixes": 2}})
    for seed in range(20):
        rig.serve(prompt(4 * rig.page, seed), namespace="ab"[seed % 2])
    rig.command("evict", prefix_ids=rig.ids[:1])
    rig.engine.reconfigure({"cap_prefixes": 2}, revision=1)
    gone = sum(step["kvcache.state.to"] == "EVICTED" for step in steps_of(rig))
    evictions = rig.engine.counters().evictions
    assert gone == sum(n for (_, kind), n in evictions.items() if kind == "prefix")
    assert {cause for cause, kind in evictions if kind == "prefix"} >= {"cap", "command"}
    assert len(rig.log.named("kvcache.evict")) == gone


def steps_of(rig):
    rig.engine.flush_telemetry()
    return rig.log.named("kvcache.transition")
