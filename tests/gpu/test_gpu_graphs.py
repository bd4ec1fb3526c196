"""Graphs over page tables: captured once, replayed while nothing moved, refused and captured again after a change."""

from __future__ import annotations

from threading import Thread

import pytest
import torch
from engine_support import fork, prompt
from gpu_support import captured, done, keep_busy, on_each_device, own_stream, rig_on

from engine import ObjectKind, SegmentKey
from engine.errors import CodecRefused, GraphStale
from engine.model.objects import layouts_of

KV = ObjectKind.COMPRESSED_KV
KEYS = SegmentKey(1, "full", "keys", "entries")
PAGES = 7
"""A prefix: no whole number of slabs, so that compaction finds something to do."""


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


class Decoder:
    """A caller of the engine: one page table, one graph that gathers the keys of a layer over it."""

    def __init__(self, rig, device, capacity_pages=32):
        self.rig, self.device, self.graph = rig, device, rig.engine.graph
        self.table = rig.engine.new_page_table(capacity_pages)
        self.view = rig.engine.paged_view(KV, KEYS)

    def capture(self, tokens):
        """Fill and capture in one window; what `load` says is kept to compare with."""
        with self.rig.engine.acquire(tokens) as lease:
            self.truth = lease.load().entries[KEYS]
            with self.graph.window() as self.epoch:
                pages = lease.fill_page_table(KV, self.table)
                self.replay, self.output = captured(
                    self.device, lambda: self.view.gather(self.table.offsets[:pages])
                )  # fmt: skip
        return pages

    def step(self):
        """Replay, and whether the bytes are those of the load at the capture."""
        self.output.fill_(0)
        with self.graph.window(self.epoch):
            self.replay()
        done(self.device)
        return torch.equal(bits(self.output), bits(self.truth[: len(self.output)]))


def rig_with_pages(make_rig, device, **config):
    rig = rig_on(make_rig, device, "small-gpt-oss", gpu_bytes=1 << 20, host_bytes=1 << 20, **config)
    prompts = [prompt(PAGES * rig.page, seed) for seed in range(12)]
    return rig, prompts, [rig.commit(tokens).prefix_id for tokens in prompts]


@on_each_device
@pytest.mark.parametrize("name", ["small-gpt-oss", "small-deepseek-v4", "small-qwen3-next"])
def test_every_tensor_of_a_hit_lies_where_the_page_table_and_the_view_say(make_rig, device, name):
    rig = rig_on(make_rig, device, name)
    trunk = prompt(9 * rig.page + 5)
    rig.commit(trunk, [6 * rig.page, len(trunk)])
    tokens = fork(trunk, 6 * rig.page, 8 * rig.page, 1)
    rig.serve(tokens)  # pages of two commits, one behind a split
    table, layouts = rig.engine.new_page_table(64), layouts_of(rig.spec)
    for asked in (trunk, tokens):
        with rig.engine.acquire(asked) as lease:
            loaded = lease.load()
            for kind in layouts.span_kinds:
                pages = lease.fill_page_table(kind, table)
                assert pages == lease.usable_tokens // rig.page > 6
                assert torch.equal(lease.page_table(kind), table.offsets[:pages])
                for segment in layouts.of(kind).segments:
                    view = rig.engine.paged_view(kind, segment.key)
                    found = view.gather(table.offsets[:pages])
                    assert found.dtype == loaded.entries[segment.key].dtype
                    assert torch.equal(bits(found), bits(loaded.entries[segment.key][: pages * view.rows]))


@on_each_device
def test_a_replay_reads_the_bytes_of_its_capture_for_as_long_as_nothing_moved(make_rig, device):
    rig, prompts, _ = rig_with_pages(make_rig, device)
    decoder = Decoder(rig, device)
    assert decoder.capture(prompts[3]) == PAGES
    for _ in range(3):
        assert decoder.step()
    rig.assert_clean()


@on_each_device
def test_one_graph_serves_another_prompt_once_its_table_is_filled_again(make_rig, device):
    rig, prompts, _ = rig_with_pages(make_rig, device)
    decoder = Decoder(rig, device)
    decoder.capture(prompts[0])
    address = decoder.table.offsets.data_ptr()
    for tokens in prompts:
        with rig.engine.acquire(tokens) as lease:
            decoder.truth = lease.load().entries[KEYS]
            lease.fill_page_table(KV, decoder.table)
            assert decoder.step()
    assert decoder.table.offsets.data_ptr() == address


def evict(rig, ids):
    assert rig.command("evict", prefix_ids=ids[:1]).outcome["evicted"] == 1


def compact(rig, ids):
    rig.command("evict", prefix_ids=[prefix_id for i, prefix_id in enumerate(ids) if i not in (3, 9)])
    assert rig.command("compact").outcome["pages"] > 0


def offload(rig, ids):
    assert rig.command("offload", prefix_ids=ids[3:4], tier="host").status == "succeeded"
    assert rig.command("restore", prefix_ids=ids[3:4]).status == "succeeded"


@on_each_device
@pytest.mark.parametrize("change", [evict, compact, offload])
def test_a_change_between_capture_and_replay_is_stale_and_a_new_capture_is_right(make_rig, device, change):
    rig, prompts, ids = rig_with_pages(make_rig, device)
    decoder = Decoder(rig, device)
    decoder.capture(prompts[3])
    assert decoder.step()
    change(rig, ids)
    with pytest.raises(GraphStale):
        decoder.step()
    before = decoder.truth
    assert decoder.capture(prompts[3]) == PAGES
    assert torch.equal(bits(decoder.truth), bits(before))
    assert decoder.step()
    rig.assert_clean()


@on_each_device
def test_coded_pages_fill_no_table_and_leave_it_as_it_was(make_rig, device):
    rig, prompts, _ = rig_with_pages(make_rig, device)
    decoder = Decoder(rig, device)
    decoder.capture(prompts[3])
    held = decoder.table.offsets.clone()
    rig.command("compress", prefix_ids=rig.ids, codec="lossless")
    with rig.engine.acquire(prompts[3]) as lease, pytest.raises(CodecRefused, match="lossless"):
        lease.fill_page_table(KV, decoder.table)
    assert torch.equal(decoder.table.offsets, held)


@on_each_device
def test_a_command_in_a_window_waits_for_its_end_while_replays_go_on(make_rig, device):
    rig, prompts, _ = rig_with_pages(make_rig, device, restore_timeout_s=60.0)
    decoder = Decoder(rig, device)
    decoder.capture(prompts[3])
    outcomes = []
    with rig.engine.graph.window(decoder.epoch):
        worker = Thread(target=lambda: outcomes.append(rig.command("evict", prefix_ids=rig.ids)))
        worker.start()
        worker.join(0.1)
        assert worker.is_alive()
        assert decoder.step()
        assert outcomes == []
    worker.join(60)
    assert outcomes[0].outcome["evicted"] == len(prompts)
    with pytest.raises(GraphStale):
        decoder.step()
    rig.assert_clean()


@on_each_device
def test_pages_freed_behind_a_replay_are_not_overwritten_before_it_has_read_them(make_rig, device):
    rig, prompts, ids = rig_with_pages(make_rig, device)
    decoder = Decoder(rig, device)
    decoder.capture(prompts[3])
    decoder.output.fill_(0)
    with own_stream(device):
        with rig.engine.graph.window(decoder.epoch):
            keep_busy(device)
            decoder.replay()

        def overwrite():  # on another thread and stream, while the replay still waits behind the long kernel
            copy = rig.node(ids[3]).record.spans[KV].gpu
            rig.ledger.tiers.put(copy, torch.full((PAGES, copy.page_bytes), 0xEE, dtype=torch.uint8))

        thread = Thread(target=overwrite)
        thread.start()
        thread.join()
        done(device)
    assert torch.equal(bits(decoder.output), bits(decoder.truth))
