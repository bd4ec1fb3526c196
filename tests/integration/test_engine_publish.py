"""Publication: what other threads may do between a commit's look and its entry in the tree."""

from __future__ import annotations

import threading

import pytest
from engine_support import checkpoint_at, fork, prompt

from engine.errors import TierUnavailable


class Held:
    """A prefix marked busy, as a thread copying its bytes would, until the block ends."""

    def __init__(self, rig, prefix_id):
        self.ledger, self.record = rig.ledger, rig.node(prefix_id).record

    def __enter__(self):
        with self.ledger.lock:
            assert not self.record.busy
            self.record.busy = True

    def __exit__(self, *_):
        with self.ledger.lock:
            self.record.busy = False
            self.ledger.settled.notify_all()


def waiting(rig, *commits):
    """Start the commits in threads and return once all of them wait for a busy prefix."""
    seen, wait = threading.Semaphore(0), rig.ledger.settled.wait

    def counted(timeout=None):
        seen.release()
        return wait(timeout)

    rig.ledger.settled.wait = counted
    threads = [threading.Thread(target=c) for c in commits]
    for thread in threads:
        thread.start()
        assert seen.acquire(timeout=30)
    return threads


def test_a_commit_that_waited_to_cut_finds_its_place_again_in_a_tree_that_grew_meanwhile(make_rig):
    rig = make_rig()
    page = rig.page
    trunk = prompt(4 * page)
    busy = rig.commit(trunk, []).prefix_id
    mine = fork(trunk, 4 * page, 7 * page, 1)
    other = fork(mine, 5 * page, 7 * page, 2)  # shares one page past the trunk
    with Held(rig, busy):
        threads = waiting(rig, lambda: rig.commit(mine, [2 * page, 7 * page]))
        assert rig.commit(other, [7 * page]).outcome == "admitted"
    for thread in threads:
        thread.join(30)
    rig.assert_clean()
    for tokens in (mine, other):
        found = rig.look(tokens)
        assert (found.usable, found.wrong_bytes) == (7 * page, 0)


def test_two_commits_of_the_same_tokens_make_one_prefix(make_rig):
    rig = make_rig()
    tokens, gate = prompt(5 * rig.page + 7), threading.Barrier(2)
    done = []

    def commit():
        state = rig.model.prefill(tokens, 0, [len(tokens)])
        gate.wait(30)
        done.append(rig.engine.commit(tokens, state))

    threads = [threading.Thread(target=commit) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [d.outcome for d in done] == ["admitted"] * 2
    assert len(rig.ids) == 1
    rig.assert_clean()
    assert rig.look(tokens).wrong_bytes == 0


def test_a_checkpoint_computed_again_does_not_replace_one_that_is_being_copied(make_rig):
    rig = make_rig(host_bytes=1 << 20)
    tokens = prompt(4 * rig.page)
    prefix_id = rig.commit(tokens).prefix_id
    rig.command("offload", prefix_ids=[prefix_id], tier="host")
    held = checkpoint_at(rig.node(prefix_id).record, len(tokens))
    with Held(rig, prefix_id):  # as in the middle of a restore
        assert rig.commit(tokens).outcome == "admitted"
        assert checkpoint_at(rig.node(prefix_id).record, len(tokens)) is held
    assert rig.look(tokens).wrong_bytes == 0
    rig.assert_clean()


def test_a_checkpoint_computed_again_brings_the_prefix_back_to_full(make_rig, monkeypatch):
    rig = make_rig(host_bytes=1 << 20)
    tokens = prompt(4 * rig.page)
    prefix_id = rig.commit(tokens).prefix_id
    rig.command("offload", prefix_ids=[prefix_id], tier="host")
    with monkeypatch.context() as patch:
        break_reads_of(rig, patch, "swa_window")
        rig.look(tokens)
    assert rig.node(prefix_id).record.resident
    assert rig.node(prefix_id).record.state == "PARTIAL_OFFLOAD"
    assert rig.commit(tokens).outcome == "admitted"
    assert rig.node(prefix_id).record.state == "FULL"
    assert rig.look(tokens, deadline_s=0).usable == len(tokens)
    rig.assert_clean()


def break_reads_of(rig, patch, page_class):
    """Reads of one page class from the host fail as a device would; everything else is read."""
    read = rig.ledger.tiers.restore_host

    def restore_host(copy, **how):
        if copy.page_class == page_class:
            raise TierUnavailable("host: out of order")
        return read(copy, **how)

    patch.setattr(rig.ledger.tiers, "restore_host", restore_host)


@pytest.mark.parametrize("codec", ["lossless", "none"])
def test_a_prefix_quarantined_for_its_checkpoint_is_served_again_after_a_commit(make_rig, tmp_path, codec):
    rig = make_rig("small-gemma-3", disk_bytes=4 << 20, data_dir=tmp_path)
    tokens = prompt(4 * rig.page)
    prefix_id = rig.commit(tokens).prefix_id
    if codec != "none":
        assert rig.command("compress", prefix_ids=[prefix_id], codec=codec).status == "succeeded"
    node = rig.node(prefix_id)
    rig.command("offload", prefix_ids=[prefix_id], tier="disk")
    block = checkpoint_at(node.record, len(tokens)).blocks["swa_window"]
    damage(rig, block)
    found = rig.look(tokens)
    assert found.wrong_bytes == 0
    assert node.record.state == "QUARANTINED"
    rig.assert_clean()
    assert rig.commit(tokens).outcome == "admitted"
    found = rig.look(tokens)
    assert (found.usable, found.wrong_bytes) == (len(tokens), 0)
    rig.assert_clean()


def damage(rig, holding):
    path = rig.ledger.tiers.disk.path(holding.disk.file)
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


def test_a_quarantined_prefix_can_still_make_room(make_rig, tmp_path):
    rig = make_rig(gpu_bytes=256 << 10, host_bytes=1 << 20, disk_bytes=1 << 20, data_dir=tmp_path)
    tokens = prompt(4 * rig.page)
    prefix_id = rig.commit(tokens, [len(tokens)]).prefix_id
    node = rig.node(prefix_id)
    rig.command("offload", prefix_ids=[prefix_id], tier="disk")
    damage(rig, checkpoint_at(node.record, len(tokens)).blocks["swa_window"])
    rig.look(tokens)
    assert node.record.state == "QUARANTINED"
    for seed in range(1, 30):
        assert rig.serve(prompt(6 * rig.page, seed)).commit.outcome == "admitted"
        rig.assert_clean()


def test_a_half_restored_checkpoint_may_leave_without_breaking_the_books(make_rig, monkeypatch):
    rig = make_rig(gpu_bytes=512 << 10, host_bytes=1 << 20)
    tokens = prompt(4 * rig.page)
    prefix_id = rig.commit(tokens).prefix_id
    rig.command("offload", prefix_ids=[prefix_id], tier="host")
    with monkeypatch.context() as patch:
        break_reads_of(rig, patch, "swa_window")
        rig.look(tokens)
    blocks = checkpoint_at(rig.node(prefix_id).record, len(tokens)).blocks
    assert blocks["uncompressed_tail"].gpu
    assert not blocks["swa_window"].gpu
    rig.assert_clean()
    for seed in range(1, 30):
        assert rig.serve(prompt(6 * rig.page, seed)).commit.outcome == "admitted"
        rig.assert_clean()
    assert rig.look(tokens).wrong_bytes == 0


def test_a_split_shares_the_bytes_and_keeps_the_lower_half_the_same_prefix(make_rig):
    rig = make_rig()
    tokens = prompt(6 * rig.page)
    prefix_id = rig.commit(tokens).prefix_id
    live = rig.ledger.tiers.gpu.live_bytes
    version, life = rig.node(prefix_id).record.version, rig.node(prefix_id).record.life
    lease = rig.engine.acquire(tokens)
    assert rig.commit(tokens[: 3 * rig.page], []).new_pages == 0
    assert len(rig.ids) == 2
    assert rig.ledger.tiers.gpu.live_bytes == live
    record = rig.node(prefix_id).record
    assert (record.version, record.life, record.n_pages) == (version, life, 3)
    assert rig.lossy.verify(lease.load(), tokens).ok
    lease.release()
    assert [n.record.leases for n in rig.ledger.nodes.values()] == [0, 0]
    rig.assert_clean()
