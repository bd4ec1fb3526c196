"""Interleavings that threads reach by luck, reached on purpose: one thread is stopped where it is weakest."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest
from engine_support import checkpoint_at, fork, prompt

from engine.consistency.prefix import CauseOf
from engine.consistency.state import Cause
from engine.errors import CorruptObject, LeaseExpired, StalePointer
from engine.memory.holding import Tier


@contextmanager
def stopped_at(owner, name, work, *, when=lambda *_: True):
    """`work` runs in a thread until it calls `owner.name`; the block runs then; the call goes on after it."""
    call = getattr(owner, name)
    inside, go, failures, mine = threading.Event(), threading.Event(), [], []

    def stopping(*args, **kwargs):
        if threading.current_thread() in mine and not inside.is_set() and when(*args):
            inside.set()
            assert go.wait(30)
        return call(*args, **kwargs)

    def guarded():
        try:
            work()
        except BaseException as error:
            failures.append(error)

    setattr(owner, name, stopping)
    mine.append(threading.Thread(target=guarded))
    mine[0].start()
    try:
        assert inside.wait(30)
        yield failures
    finally:
        go.set()
        mine[0].join(30)
        setattr(owner, name, call)
    assert failures == []


def test_an_eviction_of_the_branch_between_look_and_entry_of_a_commit(make_rig):
    rig = make_rig()
    trunk = prompt(4 * rig.page)
    rig.commit(trunk)
    longer = fork(trunk, len(trunk), 8 * rig.page, 1)
    with stopped_at(rig.engine._publisher._drafts, "write", lambda: rig.commit(longer, start=4 * rig.page)):
        assert rig.command("evict", prefix_ids=rig.ids).outcome["evicted"] == 0  # the commit holds what it hangs on
    found = rig.look(longer)
    assert (found.usable, found.wrong_bytes) == (len(longer), 0)
    rig.assert_clean()


def test_a_split_of_the_branch_between_look_and_entry_of_a_commit(make_rig):
    rig = make_rig()
    trunk = prompt(6 * rig.page)
    rig.commit(trunk)
    mine, other = fork(trunk, 5 * rig.page, 8 * rig.page, 1), fork(trunk, 2 * rig.page, 8 * rig.page, 2)
    with stopped_at(rig.engine._publisher._drafts, "write", lambda: rig.commit(mine)):
        assert rig.commit(other).outcome == "admitted"
    for tokens in (trunk, mine, other):
        found = rig.look(tokens)
        assert (found.usable, found.wrong_bytes) == (len(tokens), 0)
    assert all(n.record.leases == 0 for n in rig.ledger.nodes.values())
    rig.assert_clean()


def test_a_prefix_split_while_fresh_bytes_for_it_are_written(make_rig):
    rig = make_rig(host_bytes=1 << 20)
    trunk = prompt(6 * rig.page)
    rig.command("offload", prefix_ids=[rig.commit(trunk).prefix_id], tier="host")
    other = fork(trunk, 2 * rig.page, 8 * rig.page, 2)
    with stopped_at(rig.engine._publisher._drafts, "write", lambda: rig.commit(trunk)):
        assert rig.commit(other).outcome == "admitted"
    for tokens in (trunk, other):
        assert rig.look(tokens).wrong_bytes == 0
    rig.assert_clean()


def test_a_prefix_restored_while_fresh_bytes_for_it_are_written(make_rig):
    rig = make_rig(host_bytes=1 << 20)
    trunk = prompt(6 * rig.page)
    rig.command("offload", prefix_ids=[rig.commit(trunk).prefix_id], tier="host")
    with stopped_at(rig.engine._publisher._drafts, "write", lambda: rig.commit(trunk)):
        assert rig.look(trunk).tier == "host"
    assert rig.look(trunk).wrong_bytes == 0
    rig.assert_clean()


def test_a_commit_of_the_same_tokens_while_they_are_restored(make_rig):
    rig = make_rig(host_bytes=1 << 20)
    trunk = prompt(6 * rig.page)
    rig.command("offload", prefix_ids=[rig.commit(trunk).prefix_id], tier="host")
    queue_thread_reads = rig.ledger.tiers
    reading, go, read = threading.Event(), threading.Event(), queue_thread_reads.restore_host

    def slow(copy, **how):
        reading.set()
        assert go.wait(30)
        return read(copy, **how)

    queue_thread_reads.restore_host = slow
    waiting = threading.Thread(target=lambda: rig.look(trunk))
    waiting.start()
    assert reading.wait(30)
    assert rig.commit(trunk, [len(trunk)]).outcome == "admitted"
    go.set()
    waiting.join(30)
    found = rig.look(trunk)
    assert (found.usable, found.wrong_bytes) == (len(trunk), 0)
    rig.assert_clean()


@pytest.mark.parametrize("steer", ["compress", "offload", "compact"])
def test_a_lease_granted_while_pages_are_recoded_or_moved_reads_what_it_was_granted(make_rig, steer):
    rig = make_rig(host_bytes=1 << 20)
    prompts = [prompt(8 * rig.page, seed) for seed in range(5)]
    ids = [rig.commit(tokens).prefix_id for tokens in prompts]
    rig.command("evict", prefix_ids=[ids[0], ids[2], ids[3]])
    tokens, prefix_id = prompts[1], ids[1]
    gpu = rig.ledger.tiers.gpu
    leases, write = [], gpu.write

    def writing(page_class, slots, data):
        if not leases:
            leases.append(rig.engine.acquire(tokens))
        write(page_class, slots, data)

    owner, name = (rig.ledger.tiers.host, "write") if steer == "offload" else (gpu, "write")
    if steer == "offload":
        write = owner.write
    setattr(owner, name, writing)
    rig.command(steer, **({} if steer == "compact" else {"prefix_ids": [prefix_id]}))
    setattr(owner, name, write)
    assert leases
    assert leases[0].usable_tokens == len(tokens)
    assert rig.lossy.verify(leases[0].load(), tokens).ok
    leases[0].release()
    assert rig.look(tokens).wrong_bytes == 0
    assert rig.look(prompts[4]).wrong_bytes == 0
    rig.assert_clean()


def test_a_lease_that_expires_while_it_is_read_is_not_pulled_away(make_rig):
    rig = make_rig(lease_s=5)
    tokens = prompt(6 * rig.page)
    rig.commit(tokens)
    lease = rig.engine.acquire(tokens)
    loaded = []
    with stopped_at(lease._source._loader, "load", lambda: loaded.append(lease.load())):
        rig.clock.advance(10)
        rig.engine.tick()
        assert rig.command("evict", prefix_ids=rig.ids).outcome["evicted"] == 0
    assert rig.lossy.verify(loaded[0], tokens).ok
    rig.engine.tick()
    with pytest.raises(LeaseExpired):
        lease.load()
    assert rig.command("evict", prefix_ids=rig.ids).outcome["evicted"] == 1


def test_a_lease_released_by_another_thread_while_it_is_read_gives_no_bytes_of_somebody_else(make_rig):
    rig = make_rig()
    tokens = prompt(6 * rig.page)
    rig.commit(tokens)
    lease = rig.engine.acquire(tokens)
    seen = []

    def reading():
        try:
            lease.load()
        except (StalePointer, LeaseExpired) as error:
            seen.append(error)

    with stopped_at(lease._source._loader, "load", reading):
        lease.release()
        rig.command("evict", prefix_ids=rig.ids)
        for seed in range(1, 5):
            rig.commit(prompt(6 * rig.page, seed))
    assert len(seen) == 1
    rig.assert_clean()


def test_a_graph_window_opened_in_the_middle_of_a_compaction_sees_no_page_move(make_rig):
    rig = make_rig()
    prompts = [prompt(8 * rig.page, seed) for seed in range(8)]
    ids = [rig.commit(tokens, []).prefix_id for tokens in prompts]
    rig.command("evict", prefix_ids=[ids[i] for i in (0, 1, 2, 4, 5, 6)])

    def slots():
        return [rig.node(ids[i]).record.spans["compressed_kv"].gpu.slots.tolist() for i in (3, 7)]

    before, gpu = slots(), rig.ledger.tiers.gpu
    window, write = rig.engine.graph.window(), gpu.write

    def writing(*args):
        gpu.write = write
        window.__enter__()
        write(*args)

    gpu.write = writing
    rig.command("compact")
    assert gpu.write is write
    assert slots() == before
    window.__exit__(None, None, None)
    assert rig.command("compact").outcome["pages"] > 0
    assert slots() != before
    for i in (3, 7):
        assert rig.look(prompts[i]).wrong_bytes == 0
    rig.assert_clean()


def test_an_ancestor_split_while_its_child_is_written_to_disk_leaves_a_folder_that_can_be_adopted(make_rig, tmp_path):
    config = {"gpu_bytes": 1 << 20, "disk_bytes": 8 << 20, "data_dir": tmp_path}
    rig = make_rig(**config)
    trunk = prompt(6 * rig.page)
    rig.commit(trunk)
    longer = fork(trunk, len(trunk), 9 * rig.page, 1)
    child = rig.commit(longer).prefix_id
    other = fork(trunk, 3 * rig.page, 8 * rig.page, 2)
    room = rig.engine._adopter._room
    with stopped_at(
        room.disk, "_write_objects", lambda: room.disk.write(rig.node(child)), when=lambda node, *_: not node.children
    ):
        rig.commit(other)
    rig.engine.close()
    rig.clock.advance(1)
    again = make_rig(clock=rig.clock, **config)
    for tokens in (trunk, longer, other):
        found = again.look(tokens)
        assert (found.usable, found.wrong_bytes) == (len(tokens), 0)
    again.assert_clean()


@pytest.mark.parametrize("by", ["pressure", "command"])
def test_a_checkpoint_hung_on_a_prefix_while_it_is_copied_down_is_still_one_that_may_leave(make_rig, by):
    rig = make_rig("small-gemma-3", gpu_bytes=512 << 10, host_bytes=4 << 20)
    ledger = rig.ledger
    trunk = prompt(4 * rig.page)
    trunk_id = rig.commit(trunk, []).prefix_id
    longer = fork(trunk, 4 * rig.page, 4 * rig.page + 5, 1)  # its tail, and so its checkpoint, hang on the trunk

    def push_out():
        if by == "command":
            rig.engine._commands._reach.reformer.offload(trunk_id, Tier.HOST, CauseOf(Cause.COMMAND))
        for seed in range(2, 40 if by == "pressure" else 2):
            rig.commit(prompt(4 * rig.page, seed), [])

    with stopped_at(ledger.tiers, "fill_host", push_out):
        rig.commit(longer)
        assert rig.engine.check() == []
    record = rig.node(trunk_id).record
    (checkpoint,) = record.checkpoints.values()
    assert (record.resident, checkpoint.on_gpu) == (False, True)
    rig.assert_clean()
    rig.engine.reconfigure({"checkpoint_budget_ratio": 1e-6}, revision=1)
    assert ledger.checkpoints.gpu_bytes == 0


def test_a_scrub_that_finds_damage_in_a_prefix_split_meanwhile_counts_no_page_twice(make_rig, tmp_path):
    rig = make_rig(disk_bytes=8 << 20, data_dir=tmp_path)
    trunk = prompt(6 * rig.page)
    rig.command("offload", prefix_ids=[rig.commit(trunk).prefix_id], tier="disk")
    path = next(p for p in rig.files() if "-compressed_kv-" in p.name)
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    other = fork(trunk, 2 * rig.page, 8 * rig.page, 2)
    reformer = rig.engine._commands._reach.reformer
    scrub = reformer.begin_scrub(1 << 30)
    with stopped_at(reformer._tiers, "disk_bytes", lambda: reformer.scrub_step(scrub, 1 << 30)):
        rig.commit(other)
    rig.assert_clean()
    for tokens in (trunk, other):
        assert rig.look(tokens).wrong_bytes == 0
        rig.assert_clean()
    rig.command("scrub")
    rig.assert_clean()


def test_memory_found_damaged_by_a_load_is_not_served_to_the_next(make_rig):
    rig = make_rig()
    tokens = prompt(6 * rig.page)
    for kind in ("compressed_kv", "indexer_state", "swa_window", "uncompressed_tail"):
        prefix_id = rig.commit(tokens).prefix_id
        lease = rig.engine.acquire(tokens)
        assert lease.usable_tokens == len(tokens)
        record = rig.node(prefix_id).record
        holding = {**record.spans, **checkpoint_at(record, len(tokens)).blocks}[kind]
        gpu = rig.ledger.tiers.gpu
        gpu.buffer[gpu.addresses(holding.gpu.page_class, holding.gpu.slots)[-1]] ^= 1
        with pytest.raises(CorruptObject):
            lease.load()
        with pytest.raises(StalePointer):
            lease.load()
        lease.release()
        found = rig.look(tokens)
        assert (found.usable, found.wrong_bytes) == (0, 0)
        rig.assert_clean()


def test_a_load_that_proves_a_prefix_split_meanwhile_keeps_the_books(make_rig):
    rig = make_rig()
    trunk = prompt(6 * rig.page)
    prefix_id = rig.commit(trunk).prefix_id
    lease = rig.engine.acquire(trunk)
    copy, gpu = rig.node(prefix_id).record.spans["compressed_kv"].gpu, rig.ledger.tiers.gpu
    gpu.buffer[gpu.addresses(copy.page_class, copy.slots)[-1]] ^= 1
    other = fork(trunk, 2 * rig.page, 8 * rig.page, 2)

    def reading():
        with pytest.raises(CorruptObject):
            lease.load()

    with stopped_at(rig.ledger.tiers, "gpu_bytes_on_host", reading):
        rig.commit(other)
    lease.release()
    rig.assert_clean()
    for tokens in (trunk, other, trunk[: 2 * rig.page]):
        try:
            assert rig.look(tokens).wrong_bytes == 0
        except CorruptObject:  # found and refused, if it was not yet
            assert rig.look(tokens).wrong_bytes == 0
        rig.assert_clean()
