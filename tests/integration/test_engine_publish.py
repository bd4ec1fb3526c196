"""Publication: what other threads may do between a commit's look and its entry in the tree."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from engine_support import fork, prompt

from engine import Tier
from engine.errors import StateMismatch, TierUnavailable


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
    held = rig.node(prefix_id).record.checkpoints[len(tokens)]
    with Held(rig, prefix_id):  # as in the middle of a restore
        assert rig.commit(tokens).outcome == "admitted"
        assert rig.node(prefix_id).record.checkpoints[len(tokens)] is held
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
    read = rig.ledger.tiers.host_bytes

    def host_bytes(copy):
        if copy.page_class == page_class:
            raise TierUnavailable("host: out of order")
        return read(copy)

    patch.setattr(rig.ledger.tiers, "host_bytes", host_bytes)


@pytest.mark.parametrize("codec", ["lossless", "none"])
def test_a_prefix_quarantined_for_its_checkpoint_is_served_again_after_a_commit(make_rig, tmp_path, codec):
    rig = make_rig("small-gemma-3", disk_bytes=4 << 20, data_dir=tmp_path)
    tokens = prompt(4 * rig.page)
    prefix_id = rig.commit(tokens).prefix_id
    if codec != "none":
        assert rig.command("compress", prefix_ids=[prefix_id], codec=codec).status == "succeeded"
    node = rig.node(prefix_id)
    rig.command("offload", prefix_ids=[prefix_id], tier="disk")
    block = node.record.checkpoints[len(tokens)].blocks["swa_window"]
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
    damage(rig, node.record.checkpoints[len(tokens)].blocks["swa_window"])
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
    blocks = rig.node(prefix_id).record.checkpoints[len(tokens)].blocks
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


# -- what a commit refuses -------------------------------------------------------------------------------------------


def test_a_prompt_shorter_than_a_page_is_refused_and_an_empty_one_too(make_rig):
    rig = make_rig()
    for tokens in (prompt(63), prompt(0)):
        assert rig.commit(tokens, []).reason == "shorter_than_a_page"
    assert rig.look(prompt(0)).usable == 0
    assert rig.ids == []


def test_a_state_that_starts_past_what_is_held_is_refused(make_rig):
    rig = make_rig()
    tokens = prompt(6 * rig.page)
    assert rig.commit(tokens, start=2 * rig.page).reason == "gap_before_start"
    assert rig.ids == []


def bad_states(rig, tokens):
    good = rig.model.prefill(tokens, 2 * rig.page, [len(tokens)])
    key = next(k for k in good.entries if k.part == "csa")
    whole = rig.model.prefill(tokens, 0, [len(tokens)])
    window = next(k for k in good.checkpoints[len(tokens)] if k.section == "window")
    objects = good.checkpoints[len(tokens)]
    yield "a start inside a page", replace(good, start_tokens=2 * rig.page - 2)
    yield "a start before the first token", replace(good, start_tokens=-rig.page)
    yield "an end that is not the tokens'", replace(good, end_tokens=len(tokens) - 1)
    yield "entries from another start", replace(good, entries=whole.entries)
    yield "a tensor missing", replace(good, entries={k: t for k, t in good.entries.items() if k != key})
    yield "a row too few", replace(good, entries={**good.entries, key: good.entries[key][:-1]})
    yield "another dtype", replace(good, entries={**good.entries, key: good.entries[key].float()})
    yield "another width", replace(good, entries={**good.entries, key: good.entries[key][:, :-1]})
    yield "no boundary objects", replace(good, checkpoints={len(tokens): {}})
    yield (
        "a window row too many",
        replace(
            good, checkpoints={len(tokens): {**objects, window: torch.cat([objects[window], objects[window][:1]])}}
        ),
    )


WAYS = (
    "a start inside a page", "a start before the first token", "an end that is not the tokens'",
    "entries from another start", "a tensor missing", "a row too few", "another dtype", "another width",
    "no boundary objects", "a window row too many",
)  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_state_that_does_not_fit_raises_and_keeps_nothing(make_rig, way):
    rig = make_rig()
    tokens = prompt(6 * rig.page + 5)
    rig.commit(tokens[: 3 * rig.page], [])
    used = rig.ledger.tiers.gpu.live_bytes
    state = dict(bad_states(rig, tokens))[way]
    with pytest.raises(StateMismatch):
        rig.engine.commit(tokens, state)
    assert rig.ledger.tiers.gpu.live_bytes == used
    assert len(rig.ids) == 1
    rig.assert_clean()


def test_tensors_are_refused_by_an_engine_that_only_keeps_books_and_wanted_by_one_that_keeps_bytes(make_rig):
    books, tokens = make_rig(materialise=False), prompt(128)
    with pytest.raises(StateMismatch, match="no tensors"):
        books.commit(tokens)
    assert books.engine.commit(tokens, checkpoints=[128]).outcome == "admitted"
    assert books.engine.acquire(tokens).usable_tokens == 128
    books.assert_clean()
    with pytest.raises(StateMismatch, match="NewState"):
        make_rig().engine.commit(tokens)


def test_a_commit_after_its_lease_expired_is_still_right(make_rig):
    rig = make_rig(lease_s=1.0)
    tokens = prompt(4 * rig.page)
    rig.commit(tokens)
    longer = fork(tokens, len(tokens), 7 * rig.page, 1)
    lease = rig.engine.acquire(longer)
    state = rig.model.prefill(longer, lease.resume_tokens // rig.page * rig.page, [len(longer)])
    rig.clock.advance(2.0)
    rig.engine.tick()
    rig.command("evict", prefix_ids=rig.ids)
    assert rig.engine.commit(longer, state, lease=lease).reason == "gap_before_start"
    lease.release()
    assert rig.look(longer).usable == 0
    rig.assert_clean()


def test_offload_moves_objects_and_a_commit_of_the_same_tokens_brings_them_back(make_rig):
    rig = make_rig(host_bytes=1 << 20)
    tokens = prompt(4 * rig.page)
    prefix_id = rig.commit(tokens).prefix_id
    rig.command("offload", prefix_ids=[prefix_id], tier="host")
    record = rig.node(prefix_id).record
    assert record.held_bytes(Tier.GPU) == 0
    assert rig.commit(tokens).outcome == "admitted"
    assert record.state == "FULL"
    assert record.held_bytes(Tier.HOST) == 0
    assert rig.look(tokens, deadline_s=0).wrong_bytes == 0
    rig.assert_clean()


def test_equal_prompts_in_two_namespaces_are_two_prefixes(make_rig):
    rig = make_rig()
    tokens = prompt(4 * rig.page)
    odd = ("a", "", "ä/../\n%s", "a\0b", "x" * 5000)
    for namespace in odd:
        assert rig.look(tokens, namespace=namespace).usable == 0
        rig.commit(tokens, namespace=namespace)
    for namespace in odd:
        found = rig.look(tokens, namespace=namespace)
        assert (found.usable, found.wrong_bytes) == (len(tokens), 0)
    assert len(rig.ids) == len(odd)
    rig.assert_clean()


def test_the_largest_token_id_is_a_token_like_any_other(make_rig):
    rig = make_rig()
    tokens = np.full(130, 2**31 - 1, dtype=np.int64)
    rig.commit(tokens.astype(np.int32))
    with rig.engine.acquire(tokens) as lease:
        assert lease.usable_tokens == 130
