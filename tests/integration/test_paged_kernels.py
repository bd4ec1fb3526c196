"""Page tables for a caller's own kernels: who may fill them, what they refuse, and what moves their epoch."""

from __future__ import annotations

from threading import Barrier, Thread

import pytest
import torch
from engine_support import checkpoint_at, prompt

from engine import ObjectKind, SegmentKey
from engine.errors import ConfigError, GraphStale, LeaseExpired, NotMaterialised, StalePointer
from engine.memory.arena import Arena

KV, WINDOW = ObjectKind.COMPRESSED_KV, ObjectKind.SWA_WINDOW
KEYS = SegmentKey(1, "full", "keys", "entries")


@pytest.fixture
def rig(make_rig):
    return make_rig("small-gpt-oss", host_bytes=1 << 20, lease_s=5)


@pytest.fixture
def tokens(rig):
    found = prompt(3 * rig.page + 7)
    rig.commit(found)
    return found


# -- filling ---------------------------------------------------------------------------------------------------------


def test_a_table_keeps_its_address_and_is_zero_behind_its_pages(rig, tokens):
    table = rig.engine.new_page_table(5)
    address = table.offsets.data_ptr()
    table.fill(torch.arange(1, 6))
    with rig.engine.acquire(tokens) as lease:
        assert lease.fill_page_table(KV, table) == table.length == 3
        assert table.offsets.tolist() == [*lease.page_table(KV).tolist(), 0, 0]
    assert table.offsets.data_ptr() == address


def test_a_miss_fills_nothing(rig):
    table = rig.engine.new_page_table(5)
    with rig.engine.acquire(prompt(200, 9)) as lease:
        assert lease.fill_page_table(KV, table) == table.length == 0


def test_a_hit_past_the_capacity_is_refused_and_the_table_stays(rig, tokens):
    table = rig.engine.new_page_table(2)
    table.fill(torch.tensor([8192, 16384]))
    with rig.engine.acquire(tokens) as lease, pytest.raises(ConfigError, match="3 pages"):
        lease.fill_page_table(KV, table)
    assert (table.length, table.offsets.tolist()) == (2, [8192, 16384])


def test_a_table_of_no_pages_is_refused(rig):
    with pytest.raises(ConfigError, match="at least 1"):
        rig.engine.new_page_table(0)


@pytest.mark.parametrize("end", ["released", "expired"])
def test_a_lease_that_is_over_cannot_fill(rig, tokens, end):
    table = rig.engine.new_page_table(5)
    lease = rig.engine.acquire(tokens)
    if end == "released":
        lease.release()
    else:
        rig.clock.advance(6)
    with pytest.raises(LeaseExpired):
        lease.fill_page_table(KV, table)
    assert table.length == 0


def test_a_lease_whose_pages_were_found_damaged_cannot_fill(rig, tokens):
    table = rig.engine.new_page_table(5)
    with rig.engine.acquire(tokens) as lease:
        damage(rig, lease)
        with pytest.raises(StalePointer):
            lease.fill_page_table(KV, table)
    assert table.length == 0


def test_pages_found_damaged_while_a_table_is_filled_leave_it_empty(rig, tokens, monkeypatch):
    table = rig.engine.new_page_table(5)
    fill = table.fill
    with rig.engine.acquire(tokens) as lease:

        def filling(offsets):
            fill(offsets)
            monkeypatch.undo()
            damage(rig, lease)

        monkeypatch.setattr(table, "fill", filling)
        with pytest.raises(StalePointer):
            lease.fill_page_table(KV, table)
    assert (table.length, int(table.offsets.sum())) == (0, 0)


def damage(rig, lease):
    """Flip a bit of the lease's first page and let the engine find it."""
    copy = lease.node.record.spans[KV].gpu
    bad = rig.ledger.tiers.gpu.read(copy.page_class, copy.slots[:1])
    bad[0, 0] ^= 1
    rig.ledger.tiers.gpu.write(copy.page_class, copy.slots[:1], bad)
    rig.engine._server._recovery.prove_in_memory(lease.node)


@pytest.mark.parametrize("kind", [WINDOW, ObjectKind.INDEXER_STATE, "colour"])
def test_what_has_no_pages_in_this_model_is_named(rig, tokens, kind):
    with rig.engine.acquire(tokens) as lease:
        with pytest.raises(ConfigError, match="compressed_kv"):
            lease.fill_page_table(kind, rig.engine.new_page_table(5))
        with pytest.raises(ConfigError, match="compressed_kv"):
            lease.page_table(kind)


@pytest.mark.parametrize(
    ("kind", "key"), [(KV, SegmentKey(0, "full", "keys", "entries")), (WINDOW, KEYS), ("colour", KEYS)]
)
def test_a_view_of_what_pages_do_not_hold_is_refused(rig, kind, key):
    with pytest.raises(ConfigError, match=f"hold no {key}"):
        rig.engine.paged_view(kind, key)


def test_an_engine_that_only_keeps_books_has_nothing_to_point_at(make_rig):
    rig = make_rig("small-gpt-oss", materialise=False)
    with pytest.raises(NotMaterialised):
        rig.engine.new_page_table(5)
    with pytest.raises(NotMaterialised):
        rig.engine.paged_view(KV, KEYS)


# -- the buffer ------------------------------------------------------------------------------------------------------


def test_pages_lie_on_sixteen_bytes_whatever_the_size_of_a_slab(make_rig):
    rig = make_rig("small-gpt-oss", gpu_bytes=1_000_003, slab_bytes=20_001)
    for seed in range(4):
        rig.commit(prompt(5 * rig.page, seed))
    table = rig.engine.new_page_table(8)
    for seed in range(4):
        with rig.engine.acquire(prompt(5 * rig.page, seed)) as lease:
            lease.fill_page_table(KV, table)
            found = rig.engine.paged_view(KV, KEYS).gather(table.offsets[:5])
            assert torch.equal(found, lease.load().entries[KEYS])
        assert not (table.offsets % 16).any()
    rig.assert_clean()


def test_an_engine_built_in_inference_mode_can_be_used_outside_it(make_rig):
    with torch.inference_mode():
        arena = Arena("gpu", 1024, 256, {"a": 64})
        table = make_rig("small-gpt-oss").engine.new_page_table(2)
    assert not arena.buffer.is_inference()
    table.fill(torch.tensor([64]))
    assert not table.offsets.is_inference()


# -- epochs and windows ----------------------------------------------------------------------------------------------


def evict(rig, tokens):
    rig.command("evict", prefix_ids=rig.ids)


def offload(rig, tokens):
    rig.command("offload", prefix_ids=rig.ids, tier="host")


def compress(rig, tokens):
    rig.command("compress", prefix_ids=rig.ids, codec="lossless")


def quarantine(rig, tokens):
    with rig.engine.acquire(tokens) as lease:
        damage(rig, lease)


def drop_a_checkpoint(rig, tokens):
    (node,) = rig.ledger.nodes.values()
    with rig.ledger.lock:
        rig.ledger.checkpoints.drop(node, checkpoint_at(node.record, len(tokens)).checkpoint_id)


@pytest.mark.parametrize("change", [evict, offload, compress, quarantine, drop_a_checkpoint])
def test_whatever_frees_gpu_pages_makes_a_captured_graph_stale(rig, tokens, change):
    with rig.engine.graph.window() as epoch:
        pass
    change(rig, tokens)
    with pytest.raises(GraphStale), rig.engine.graph.window(epoch):
        pass


def test_reading_moves_no_epoch(rig, tokens):
    epoch = rig.engine.graph.epoch
    assert rig.look(tokens).wrong_bytes == 0
    with rig.engine.acquire(tokens) as lease:
        lease.fill_page_table(KV, rig.engine.new_page_table(5))
    assert rig.engine.graph.epoch == epoch


def test_an_exception_in_a_window_closes_it_and_lets_the_commands_through(rig, tokens):
    with pytest.raises(ZeroDivisionError), rig.engine.graph.window():
        raise ZeroDivisionError
    assert not rig.engine.graph.in_window
    assert rig.command("evict", prefix_ids=rig.ids).outcome["evicted"] == 1


def test_two_threads_replay_at_once_and_a_command_waits_for_both(make_rig):
    rig = make_rig("small-gpt-oss", restore_timeout_s=60.0)
    tokens = prompt(3 * rig.page)
    rig.commit(tokens)
    inside, first_may_end, second_may_end = Barrier(3), Barrier(2), Barrier(2)

    def replay(may_end):
        table, view = rig.engine.new_page_table(3), rig.engine.paged_view(KV, KEYS)
        with rig.engine.graph.window(), rig.engine.acquire(tokens) as lease:
            lease.fill_page_table(KV, table)
            inside.wait()
            lease.release()
            may_end.wait()
            found.append(torch.equal(view.gather(table.offsets), truth))

    with rig.engine.acquire(tokens) as lease:
        truth = lease.load().entries[KEYS]
    found, outcomes = [], []
    replays = [Thread(target=replay, args=(end,)) for end in (first_may_end, second_may_end)]
    for thread in replays:
        thread.start()
    inside.wait()
    command = Thread(target=lambda: outcomes.append(rig.command("evict", prefix_ids=rig.ids)))
    command.start()
    first_may_end.wait()
    replays[0].join()
    command.join(0.1)
    assert (found, outcomes) == ([True], [])
    second_may_end.wait()
    replays[1].join()
    command.join(60)
    assert found == [True, True]
    assert outcomes[0].outcome["evicted"] == 1
    rig.assert_clean()


def test_the_end_of_a_window_and_of_a_lease_tell_the_copies_to_come_after_what_was_read(rig, tokens, monkeypatch):
    told = []
    monkeypatch.setattr(rig.ledger.tiers.stream, "follow", lambda: told.append(rig.engine.graph.in_window))
    with rig.engine.graph.window():
        assert told == []
    assert told == [True]  # before anything may move
    rig.engine.acquire(tokens).release()
    assert len(told) == 2


def test_a_window_whose_stream_cannot_be_followed_is_closed_all_the_same(rig, monkeypatch):
    def fails():
        raise RuntimeError("the stream is gone")

    monkeypatch.setattr(rig.ledger.tiers.stream, "follow", fails)
    with pytest.raises(RuntimeError), rig.engine.graph.window():
        pass
    assert not rig.engine.graph.in_window
