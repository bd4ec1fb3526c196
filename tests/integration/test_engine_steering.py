"""Commands, queues and leases: what operators do while requests go on."""

from __future__ import annotations

import threading

import pytest
from engine_support import fork, prompt

from engine import Tier
from engine.errors import EngineError, LeaseExpired, StalePointer
from engine.schedule.queues import Form


@pytest.fixture
def stuck(make_rig):
    """Builds a rig with a queue of one item, and stops one of its workers until the test ends."""
    gates = []

    def stick(form, **config):
        rig = make_rig(queue_bound=1, **config)
        gate, running = threading.Event(), threading.Event()
        gates.append(gate)

        def wait():
            running.set()
            gate.wait(60)

        queue = rig.engine._queues[form]
        queue.submit(wait)
        assert running.wait(30)
        queue.submit(lambda: None)  # the worker waits with the first; this one fills the queue
        return rig, gate

    yield stick
    for gate in gates:
        gate.set()


def test_a_full_restore_queue_means_a_request_without_the_tier(stuck):
    rig, gate = stuck(Form.OFFLOADED, host_bytes=1 << 20)
    tokens = prompt(4 * rig.page)
    prefix_id = rig.commit(tokens).prefix_id
    rig.command("offload", prefix_ids=[prefix_id], tier="host")
    found = rig.look(tokens)
    assert (found.usable, found.reason) == (0, "queue_full")
    assert rig.states == {"PARTIAL_OFFLOAD": 1}
    rig.assert_clean()
    gate.set()


@pytest.mark.parametrize("kind", ["warm", "compress", "offload", "compact", "scrub"])
def test_a_command_on_a_full_queue_ends_in_an_outcome_and_leaves_nothing_busy(stuck, kind, tmp_path):
    form = {"warm": Form.OFFLOADED, "scrub": Form.OFFLOADED, "compress": Form.COMPRESSED}.get(kind, Form.RESIDENT)
    rig, gate = stuck(form, host_bytes=1 << 20, disk_bytes=1 << 20, data_dir=tmp_path)
    tokens = prompt(4 * rig.page)
    prefix_id = rig.commit(tokens).prefix_id
    if kind == "warm":
        rig.command("offload", prefix_ids=[prefix_id], tier="host")
    done = rig.command(kind, prefix_ids=[prefix_id])
    assert done.status in ("failed", "refused")
    assert "queue_full" in str(done.outcome)
    record = rig.node(prefix_id).record
    assert not record.busy
    assert not record.leases
    assert record.state != "FULL_RESTORE"
    rig.assert_clean()
    gate.set()
    assert rig.look(tokens).wrong_bytes == 0


def test_bytes_found_damaged_by_a_recode_are_not_served_any_more(make_rig):
    rig = make_rig()
    tokens = prompt(4 * rig.page)
    prefix_id = rig.commit(tokens).prefix_id
    copy = rig.node(prefix_id).record.spans["compressed_kv"].gpu
    rig.ledger.tiers.gpu.buffer[rig.ledger.tiers.gpu.addresses(copy.page_class, copy.slots)[1]] ^= 1
    rig.command("compress", prefix_ids=[prefix_id], codec="lossless")
    assert rig.look(tokens).usable == 0
    assert rig.states == {"QUARANTINED": 1}
    rig.assert_clean()


def test_a_damaged_gpu_page_with_a_good_copy_below_is_a_prefix_to_restore(make_rig, tmp_path):
    rig = make_rig("small-gemma-3", host_bytes=1 << 20, disk_bytes=1 << 20, data_dir=tmp_path)
    tokens = prompt(4 * rig.page)
    prefix_id = rig.commit(tokens).prefix_id
    lease = rig.engine.acquire(tokens)
    node = rig.node(prefix_id)
    node.record.busy = True  # a demotion that was copied down, and then lost to the lease
    rig.engine._commands._reach.reformer._room._copied_down(node, (Tier.HOST,))
    lease.release()
    copy = node.record.spans["compressed_kv"].gpu
    rig.ledger.tiers.gpu.buffer[rig.ledger.tiers.gpu.addresses(copy.page_class, copy.slots)[0]] ^= 1
    rig.command("offload", prefix_ids=[prefix_id], tier="disk")
    rig.assert_clean()
    found = rig.look(tokens)
    assert (found.usable, found.wrong_bytes) == (len(tokens), 0)


def test_a_lease_granted_while_a_demotion_copies_keeps_its_bytes(make_rig):
    rig = make_rig(host_bytes=1 << 20)
    tokens = prompt(4 * rig.page)
    prefix_id = rig.commit(tokens).prefix_id
    leases, fill = [], rig.ledger.tiers.fill_host

    def fill_host(copy, data):
        if not leases:
            leases.append(rig.engine.acquire(tokens))
        fill(copy, data)

    rig.ledger.tiers.fill_host = fill_host
    rig.command("offload", prefix_ids=[prefix_id], tier="host")
    assert leases[0].usable_tokens == len(tokens)
    assert rig.lossy.verify(leases[0].load(), tokens).ok
    leases[0].release()
    rig.assert_clean()


def test_two_threads_restoring_one_prefix_both_get_it(make_rig):
    rig = make_rig(host_bytes=1 << 20)
    tokens = prompt(6 * rig.page)
    prefix_id = rig.commit(tokens).prefix_id
    rig.command("offload", prefix_ids=[prefix_id], tier="host")
    inside, go, read = threading.Event(), threading.Event(), rig.ledger.tiers.restore_host

    def slow(copy, **how):
        inside.set()
        assert go.wait(30)
        return read(copy, **how)

    rig.ledger.tiers.restore_host = slow
    found = []
    threads = [threading.Thread(target=lambda: found.append(rig.look(tokens))) for _ in range(2)]
    threads[0].start()
    assert inside.wait(30)
    threads[1].start()
    go.set()
    for thread in threads:
        thread.join(30)
    assert [(f.usable, f.wrong_bytes) for f in found] == [(len(tokens), 0)] * 2
    rig.assert_clean()


def test_a_request_that_gives_up_waiting_leaves_the_restore_to_end_by_itself(make_rig):
    rig = make_rig(host_bytes=1 << 20)
    tokens = prompt(6 * rig.page)
    prefix_id = rig.commit(tokens).prefix_id
    rig.command("offload", prefix_ids=[prefix_id], tier="host")
    go, read = threading.Event(), rig.ledger.tiers.restore_host

    def slow(copy, **how):
        assert go.wait(30)
        return read(copy, **how)

    rig.ledger.tiers.restore_host = slow
    found = rig.look(tokens, deadline_s=0.05)
    assert (found.usable, found.reason) == (0, "restore_late")
    rig.assert_clean()
    go.set()
    rig.engine._queues[Form.OFFLOADED].submit(lambda: None).result(30)
    assert rig.states == {"FULL": 1}
    assert rig.look(tokens, deadline_s=0).wrong_bytes == 0
    rig.assert_clean()


@pytest.mark.parametrize("deadline_s", [0.0, -1.0, float("inf")])
def test_any_deadline_is_answered(make_rig, deadline_s):
    rig = make_rig(host_bytes=1 << 20)
    tokens = prompt(4 * rig.page)
    rig.command("offload", prefix_ids=[rig.commit(tokens).prefix_id], tier="host")
    found = rig.look(tokens, deadline_s=deadline_s)
    assert (found.usable, found.wrong_bytes) == (len(tokens) if deadline_s > 0 else 0, 0)
    rig.assert_clean()


def test_a_request_that_did_without_a_late_restore_is_no_hit_from_that_tier(make_rig):
    rig = make_rig(host_bytes=1 << 20)
    trunk = prompt(4 * rig.page)
    longer = fork(trunk, len(trunk), 7 * rig.page, 1)
    rig.commit(trunk)
    rig.command("offload", prefix_ids=[rig.commit(longer).prefix_id], tier="host")
    go, read = threading.Event(), rig.ledger.tiers.restore_host

    def slow(copy, **how):
        assert go.wait(30)
        return read(copy, **how)

    rig.ledger.tiers.restore_host = slow
    found = rig.look(longer, deadline_s=0.05)
    go.set()
    assert (found.usable, found.reason, found.tier) == (len(trunk), "restore_late", "gpu")


# -- leases ----------------------------------------------------------------------------------------------------------


def test_an_expired_lease_raises_on_use_and_pins_nothing(make_rig):
    rig = make_rig(lease_s=5)
    tokens = prompt(3 * rig.page)
    rig.commit(tokens)
    lease = rig.engine.acquire(tokens)
    rig.clock.advance(5)
    with pytest.raises(LeaseExpired):
        lease.load()
    rig.engine.tick()
    assert rig.command("evict", prefix_ids=rig.ids).outcome["evicted"] == 1
    with pytest.raises(LeaseExpired):
        lease.page_table("compressed_kv")
    lease.release()
    lease.release()
    rig.assert_clean()


def test_a_pointer_made_before_a_compaction_is_stale_after_it(make_rig):
    rig = make_rig(gpu_bytes=1 << 20)
    prompts = [prompt(20 * rig.page, seed) for seed in range(4)]
    ids = [rig.commit(tokens, []).prefix_id for tokens in prompts]
    lease = rig.engine.acquire(prompts[1])
    bound = lease.spans["compressed_kv"][0]
    lease.release()
    rig.command("evict", prefix_ids=[ids[0], ids[2]])
    rig.command("evict", prefix_ids=[ids[3]])
    late = rig.commit(prompt(2 * rig.page, 9), [])
    for tokens in (prompts[1], prompt(2 * rig.page, 9)):
        assert rig.look(tokens).wrong_bytes == 0
    rig.command("evict", prefix_ids=[ids[1], late.prefix_id])
    with pytest.raises(StalePointer):
        rig.ledger.tiers.gpu.check_current(bound.pointer)
    rig.assert_clean()


def test_compaction_moves_pages_and_every_byte_with_them(make_rig):
    rig = make_rig(gpu_bytes=1 << 20)
    prompts = [prompt(8 * rig.page, seed) for seed in range(12)]
    ids = [rig.commit(tokens, []).prefix_id for tokens in prompts]
    rig.command("evict", prefix_ids=[ids[i] for i in (0, 1, 2, 4, 5, 8, 9, 10)])
    before = rig.engine.stats()["classes"]["compressed_kv"]["slabs"]
    assert rig.command("compact").outcome["pages"] > 0
    rig.assert_clean()
    assert rig.engine.stats()["classes"]["compressed_kv"]["slabs"] < before
    for i in (3, 6, 7, 11):
        assert rig.look(prompts[i]).wrong_bytes == 0


def test_closing_takes_leases_back(make_rig):
    rig = make_rig()
    tokens = prompt(3 * rig.page)
    rig.commit(tokens)
    lease = rig.engine.acquire(tokens)
    rig.engine.close()
    with pytest.raises(LeaseExpired):
        lease.load()
    rig.engine.close()


def test_a_closed_engine_takes_no_more_work(make_rig, tmp_path):
    rig = make_rig(gpu_bytes=256 << 10, disk_bytes=1 << 20, data_dir=tmp_path)
    tokens = prompt(4 * rig.page)
    rig.commit(tokens)
    rig.engine.close()
    files = rig.files()
    with pytest.raises(EngineError):
        rig.serve(prompt(4 * rig.page, 1))
    with pytest.raises(EngineError):
        rig.commit(prompt(4 * rig.page, 2))
    with pytest.raises(EngineError):
        rig.command("evict", prefix_ids=rig.ids)
    assert rig.files() == files  # the folder may be another engine's by now


def test_an_offload_of_a_prefix_whose_tail_is_empty_is_told_as_done(make_rig):
    """A tail that is empty by layout has no bytes to move, so nothing of it is left behind."""
    rig = make_rig("small-gpt-oss", host_bytes=1 << 20)
    tokens = prompt(2 * rig.page)
    rig.commit(tokens)
    done = rig.command("offload", prefix_ids=rig.ids, tier="host")
    assert (done.status, done.outcome["offloaded"]) == ("succeeded", 1)
    assert done.outcome["bytes"] > 0
    again = rig.command("offload", prefix_ids=rig.ids, tier="host")
    assert again.outcome["refused"][0]["reason"] == "not_on_gpu"
