"""Bytes between the tiers of an engine on a GPU: pinned, on their own stream, in order, proven."""

from __future__ import annotations

from threading import Thread

import numpy as np
import pytest
import torch
from engine_support import prompt
from gpu_support import done, keep_busy, on_each_device, own_stream, rig_on, still_busy

from engine import NewState, ObjectKind, preset
from engine.errors import CodecRefused, CorruptObject, OutOfMemory
from engine.memory.checksum import page_sums
from engine.memory.codec import CODECS, PageCodec
from engine.memory.layout import pack_pages
from engine.model.objects import layouts_of

KV = ObjectKind.COMPRESSED_KV


@on_each_device
def test_the_host_tier_is_pinned_where_there_is_a_gpu_to_copy_to(make_rig, device):
    tiers = rig_on(make_rig, device, host_bytes=1 << 20).ledger.tiers
    assert tiers.gpu.buffer.device.type == device
    assert tiers.host.buffer.is_pinned() == (device == "cuda")


@on_each_device
def test_a_device_may_be_named_by_its_number(make_rig, device):
    rig = rig_on(make_rig, f"{device}:0", host_bytes=1 << 20)
    tokens = prompt(5 * rig.page + 3)
    rig.commit(tokens)
    rig.command("offload", prefix_ids=rig.ids, tier="host")
    assert rig.look(tokens).wrong_bytes == 0


# -- order -----------------------------------------------------------------------------------------------------------


@on_each_device
def test_what_the_model_still_computes_is_complete_before_it_is_kept(make_rig, device):
    rig = rig_on(make_rig, device)
    tokens = prompt(6 * rig.page + 5)
    made = rig.model.prefill(tokens, 0, [len(tokens)])
    with own_stream(device):
        entries = {key: torch.zeros_like(tensor) for key, tensor in made.entries.items()}
        boundary = {key: torch.zeros_like(tensor) for key, tensor in made.checkpoints[len(tokens)].items()}
        keep_busy(device)
        for key, tensor in made.entries.items():
            entries[key].copy_(tensor)
        for key, tensor in made.checkpoints[len(tokens)].items():
            boundary[key].copy_(tensor)
        state = NewState(
            start_tokens=0, end_tokens=len(tokens), entries=entries, checkpoints={len(tokens): boundary}
        )  # fmt: skip
        rig.engine.commit(tokens, state)
        for tensor in (*entries.values(), *boundary.values()):
            tensor.zero_()  # the model goes on with its own memory
    found = rig.look(tokens)
    assert (found.usable, found.wrong_bytes) == (len(tokens), 0)


@on_each_device
def test_an_offload_and_a_restore_do_not_wait_for_a_busy_compute_stream(make_rig, device):
    rig = rig_on(make_rig, device, host_bytes=2 << 20)
    tokens = prompt(6 * rig.page + 5)
    rig.commit(tokens)

    def there_and_back():
        assert rig.command("offload", prefix_ids=rig.ids, tier="host").status == "succeeded"
        assert rig.states["PARTIAL_OFFLOAD"] == 1
        assert rig.command("restore", prefix_ids=rig.ids).status == "succeeded"

    there_and_back()  # memory that passes through has then been allocated
    with own_stream(device):
        keep_busy(device, seconds=2.0)
        thread = Thread(target=there_and_back)
        thread.start()
        thread.join()
        assert still_busy(device)
        done(device)
    assert rig.states["FULL"] == 1
    found = rig.look(tokens)
    assert (found.usable, found.wrong_bytes) == (len(tokens), 0)
    rig.assert_clean()


@on_each_device
def test_what_a_lease_loaded_outlives_the_pages_it_was_read_from(make_rig, device):
    rig = rig_on(make_rig, device, gpu_bytes=256 << 10)
    tokens = prompt(5 * rig.page + 3)
    rig.commit(tokens)
    with own_stream(device):
        keep_busy(device)
        with rig.engine.acquire(tokens) as lease:
            loaded = lease.load()
        rig.command("evict", prefix_ids=rig.ids)
        for seed in range(1, 5):  # takes the slots over
            rig.commit(prompt(5 * rig.page + 3, seed))
    assert rig.model.verify(loaded, tokens).wrong_bytes == 0
    assert all(t.device.type == device for t in (*loaded.entries.values(), *loaded.boundary.values()))


@on_each_device
def test_threads_that_serve_on_streams_of_their_own_read_no_wrong_byte(make_rig, device):
    rig = rig_on(make_rig, device, gpu_bytes=512 << 10, host_bytes=1 << 20)
    trunk, wrong = prompt(4 * rig.page, 0), []

    def serve(first):
        with own_stream(device):
            for seed in range(first, first + 12):
                found = rig.serve(np.concatenate([trunk, prompt(3 * rig.page + seed % 7, seed)]))
                wrong.append(found.wrong_bytes)

    threads = [Thread(target=serve, args=(100 * n,)) for n in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [0] * 36
    rig.assert_clean()


# -- proof -----------------------------------------------------------------------------------------------------------


@on_each_device
def test_device_pages_get_their_checksums_when_they_first_come_to_the_host(make_rig, device):
    rig = rig_on(make_rig, device, host_bytes=2 << 20)
    tokens = prompt(6 * rig.page)
    (node,) = [rig.node(rig.commit(tokens).prefix_id)]
    holding = node.record.spans[KV]
    assert (holding.gpu.sums is None) == (device == "cuda")
    rig.command("offload", prefix_ids=rig.ids, tier="host")
    entries = rig.model.prefill(tokens, 0).entries
    truth = pack_pages(layouts_of(rig.spec).history, entries, 0, range(6), rig.page)
    assert holding.host.sums.tolist() == page_sums(truth).tolist()
    rig.command("restore", prefix_ids=rig.ids)
    assert holding.gpu.sums.tolist() == page_sums(truth).tolist()


@on_each_device
def test_a_bit_that_flips_in_device_memory_after_it_was_sealed_is_found_when_the_page_leaves(make_rig, device):
    rig = rig_on(make_rig, device, host_bytes=2 << 20)
    tokens = prompt(6 * rig.page)
    node = rig.node(rig.commit(tokens).prefix_id)
    rig.command("offload", prefix_ids=rig.ids, tier="host")
    rig.command("restore", prefix_ids=rig.ids)
    gpu, copy = rig.ledger.tiers.gpu, node.record.spans[KV].gpu
    flipped = gpu.read(copy.page_class, copy.slots[2:3])
    flipped[0, 5] ^= 4
    gpu.write(copy.page_class, copy.slots[2:3], flipped)
    with pytest.raises(CorruptObject, match="page 2 of 6"):
        rig.ledger.tiers.gpu_bytes_on_host(copy)
    rig.command("offload", prefix_ids=rig.ids, tier="host")
    assert rig.states["QUARANTINED"] == 1
    assert rig.look(tokens).usable == 0


@on_each_device
def test_a_device_without_memory_for_a_copy_to_pass_through_changes_nothing(make_rig, device, monkeypatch):
    rig = rig_on(make_rig, device)
    tokens = prompt(6 * rig.page)
    rig.commit(tokens)

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with rig.engine.acquire(tokens) as lease:
        with monkeypatch.context() as patch:
            patch.setattr(rig.ledger.tiers.gpu, "read", full)
            with pytest.raises(OutOfMemory):
                lease.load()
        assert rig.model.verify(lease.load(), tokens).wrong_bytes == 0
    rig.assert_clean()


# -- codecs ----------------------------------------------------------------------------------------------------------


@on_each_device
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", ["small-gpt-oss", "small-deepseek-v4", "small-qwen3-next"])
def test_a_codec_writes_and_reads_the_same_bytes_on_every_device(device, codec, name):
    spec = preset(name)
    layout = layouts_of(spec).history
    pages = torch.zeros((7, layout.slot_bytes), dtype=torch.uint8)
    generator = torch.Generator().manual_seed(5)
    for segment in layout.segments:
        if segment.dtype not in ("bfloat16", "float32", "float16"):
            continue
        values = torch.randn((7, segment.rows * segment.width), generator=generator) * 3
        values[:, ::11] = 0
        values[1, 3] = 1e-30  # the lossless coding has a list for such
        values[2] *= 1e-38  # below what is normal
        raw = values.to(getattr(torch, segment.dtype)).view(torch.uint8)
        pages[:, segment.offset_bytes : segment.offset_bytes + segment.segment_bytes] = raw
    coder = PageCodec(codec, layout, code_compressed=True)
    try:
        coded, meta = coder.encode(pages)
    except CodecRefused as refusal:
        with pytest.raises(CodecRefused, match=str(refusal)[:40]):
            coder.encode(pages.to(device))
        return
    there, same = coder.encode(pages.to(device))
    assert there.device.type == device
    assert same == meta
    assert torch.equal(there.cpu(), coded)
    assert torch.equal(coder.decode(there, meta).cpu(), coder.decode(coded, meta))
