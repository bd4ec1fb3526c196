"""What went wrong elsewhere in the field, told in our words and with our inputs, so that it cannot go wrong here.

Each test is a failure that prefix caches for hybrid models are known for: state that was taken for what it is not, and
hits that should have been there and were not. Every answer is compared bit by bit with a run without any reuse.
"""

from __future__ import annotations

from typing import Any

import damage
import numpy as np
import pytest
import torch
from huggingface_support import MODELS, some_tokens
from ward import INDEXER, WINDOW

HYBRID = sorted(MODELS.keys() - {"llama"})
WINDOWED = ["deepseek_v4", "gemma3", "gpt_oss", "mixed", "mistral"]


# -- state taken for what it is not -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WINDOWED)
@pytest.mark.parametrize("branch", [33, 40, 47, 64, 65, 79, 96])
def test_a_ring_that_went_on_is_never_read_for_a_prefix_it_has_left(make_ward, name, branch) -> None:
    """The window of a longer prompt has the length of the shorter one's and other tokens in it."""
    ward = make_ward(name)
    long = some_tokens(130)
    ward.serve(long)
    short = np.concatenate([long[:branch], some_tokens(20, seed=branch)])
    found = ward.serve(short)
    assert found.usable_tokens <= branch // ward.page * ward.page
    ward.serve(long[:branch])
    ward.assert_clean()


@pytest.mark.parametrize("name", WINDOWED)
def test_a_ring_that_decoding_wrote_on_is_captured_anew_at_the_end(make_ward, name) -> None:
    """Checkpoints at the prompt's end and at the output's end come from one ring; each keeps its own copy."""
    ward = make_ward(name)
    tokens = some_tokens(100)
    made = ward.cache.generate(tokens, max_new_tokens=30, do_sample=False, eos_token_id=None)
    ends = [len(tokens) - 1, len(made.sequence) - 1]
    blocks = [ward.checkpoint(made.sequence, end).blocks[WINDOW] for end in ends]
    one, other = (damage.read(ward, block.gpu) for block in blocks)
    assert not torch.equal(one, other)
    assert ward.serve(tokens).usable_tokens == ends[0]
    every_step = range(ends[0], ends[1] + 1)  # decoding cuts at every token
    follow_up = np.concatenate([made.sequence, some_tokens(9, seed=4)])
    assert ward.serve(follow_up, *every_step).usable_tokens == ends[1]


@pytest.mark.parametrize("name", [*(name for name in HYBRID if name != "mistral"), "mistral"])
@pytest.mark.parametrize("tier", ["host", "disk"])
def test_a_restore_is_proven_by_its_bytes_and_not_by_its_length(make_ward, tmp_path, name, tier) -> None:
    """A copy below the GPU is as long as it should be and one bit of each object is wrong."""
    ward = make_ward(name, host_bytes=8 << 20, disk_bytes=64 << 20, data_dir=tmp_path, replay=False)
    tokens = some_tokens(106)
    ward.serve(tokens)
    ward.command("offload", prefix_ids=ward.ids(), tier=tier)
    for holding in [h for record in ward.records() for h in record.holdings() if h.n_pages]:
        if tier == "host":
            arena, copy = ward.tiers.host, holding.host
            data = arena.read(copy.page_class, copy.slots)
            data[:, 5] ^= 1
            arena.write(copy.page_class, copy.slots, data)
    for path in ward.files():
        raw = bytearray(path.read_bytes())
        raw[-7] ^= 1
        path.write_bytes(raw)
    before = sorted(path.stat().st_size for path in ward.files())
    assert ward.serve(tokens).usable_tokens == 0
    assert {reason for _, reason in ward.quarantined()} == {"checksum_mismatch"}
    assert ("disk_reloaded", "checksum_mismatch") in ward.failed()
    assert len(ward.transitions_to("QUARANTINED")) == 1
    assert sorted(path.stat().st_size for path in ward.files()) <= before
    assert ward.serve(tokens).usable_tokens == 105


@pytest.mark.parametrize("name", ["deepseek_v4", "deepseek_v32", "gemma3", "qwen3_next"])
def test_no_lookup_sees_pages_before_their_window_and_indexer(make_ward, monkeypatch, name) -> None:
    """What belongs together is published together: a look in the middle of a commit finds nothing, or all of it."""
    ward = make_ward(name)
    tokens = some_tokens(106)
    put, seen = ward.tiers.put, []

    def look_first(*args: Any, **kwargs: Any) -> None:
        with ward.engine.acquire(tokens[:105]) as lease:
            seen.append(lease.usable_tokens)
        put(*args, **kwargs)
        with ward.engine.acquire(tokens[:105]) as lease:
            seen.append(lease.usable_tokens)

    monkeypatch.setattr(ward.tiers, "put", look_first)
    ward.prefill(tokens).release()
    monkeypatch.undo()
    kinds = sum(1 for h in ward.records()[0].holdings() if h.n_pages)
    assert len(seen) == 2 * kinds
    assert set(seen) == {0}
    assert ward.serve(tokens).usable_tokens == 105


@pytest.mark.parametrize("name", ["deepseek_v4", "deepseek_v32", "gemma3"])
@pytest.mark.parametrize("lost", ["window", "indexer"])
def test_a_sidecar_that_cannot_be_loaded_takes_the_hit_with_it(make_ward, tmp_path, name, lost) -> None:
    """The KV is on disk and whole; what goes beside it is damaged. The KV alone is no hit."""
    ward = make_ward(name, disk_bytes=64 << 20, data_dir=tmp_path, replay=False)
    tokens = some_tokens(106)
    ward.serve(tokens)
    ward.to_disk()
    sidecars = ward.files(str(WINDOW if lost == "window" else INDEXER))
    if not sidecars:
        assert (name, lost) in {("deepseek_v32", "window"), ("gemma3", "indexer")}
        return
    for path in sidecars:
        damage.cut_file(path)
    assert ward.serve(tokens).usable_tokens == 0
    assert ward.serve(tokens).usable_tokens == 105


@pytest.mark.parametrize("name", ["deepseek_v4", "gemma3", "qwen3_next"])
def test_boundary_objects_leave_with_the_pages_they_stand_on(make_ward, name) -> None:
    """State that outlives its prefix costs memory and, worse, is found again behind other pages."""
    ward = make_ward(name)
    tokens = some_tokens(106)
    ward.serve(tokens)
    ward.command("evict", prefix_ids=ward.ids(), descendants=True)
    assert ward.records() == []
    assert ward.tiers.gpu.live_bytes == 0
    assert ward.ledger.checkpoints.gpu_bytes == 0
    assert ward.serve(tokens).usable_tokens == 0
    assert ward.serve(tokens).usable_tokens == 105


@pytest.mark.parametrize("name", ["deepseek_v4", "gemma3", "qwen3_next"])
def test_under_pressure_no_checkpoint_is_kept_for_pages_that_went(make_ward, name) -> None:
    ward = make_ward(name, gpu_bytes=256 << 10, slab_bytes=64 << 10)
    prompts = [some_tokens(106, seed=seed) for seed in range(12)]
    for tokens in [*prompts, *prompts[::-1]]:
        ward.serve(tokens)
        for record in ward.records():
            assert all(not holding.absent for holding in record.spans.values())
    assert ward.engine.counters().evictions, "no pressure"
    ward.assert_clean()


# -- hits that should be there ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("extra", [1, 2, 5, 33, 127])
def test_a_prompt_a_little_longer_than_one_coarse_page_hits(make_ward, name, extra) -> None:
    """Pages of 128 tokens and prompts of a page and a bit: state that is kept at page ends only would never be used."""
    ward = make_ward(name, page_tokens=128)
    system = some_tokens(128 + extra)
    questions = [np.concatenate([system, some_tokens(11, seed=seed)]) for seed in range(3)]
    assert ward.serve(questions[0]).usable_tokens == 0
    assert ward.serve(questions[0]).usable_tokens == len(questions[0]) - 1
    ward.serve(questions[1])
    assert ward.serve(questions[2]).usable_tokens >= 128


@pytest.mark.parametrize("name", MODELS)
def test_a_conversation_whose_turns_are_shorter_than_a_page_hits_every_turn(make_ward, name) -> None:
    """Each turn resumes where the last one ended, in the middle of a page; nothing is computed twice."""
    ward = make_ward(name, page_tokens=128)
    tokens, cuts = some_tokens(140), []
    for turn in range(6):
        made = ward.cache.generate(tokens, max_new_tokens=4, do_sample=False, eos_token_id=None)
        assert made.usable_tokens == (cuts[-1] if turn else 0)
        cuts += range(len(tokens) - 1, len(made.sequence))
        tokens = np.concatenate([made.sequence, some_tokens(7, seed=turn)])
    assert ward.serve(tokens, *cuts).usable_tokens == cuts[-1]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("length", [33, 64, 65, 66, 96, 97, 105, 128, 129])
def test_the_same_request_again_is_a_whole_hit(make_ward, name, length) -> None:
    """Also where a prompt, or all of it but its last token, is a whole number of pages."""
    ward = make_ward(name)
    tokens = some_tokens(length)
    assert ward.serve(tokens).usable_tokens == 0
    for _ in range(2):
        found = ward.serve(tokens)
        assert (found.usable_tokens, found.replay_tokens, found.computed_tokens) == (length - 1, 0, 0)
        assert (found.explanation.outcome, found.explanation.reason) == ("hit", "none")


@pytest.mark.parametrize("name", MODELS)
def test_the_first_sibling_that_leaves_in_the_last_page_is_exact_and_the_next_hits(make_ward, name) -> None:
    """Nobody kept state where the siblings part; the first of them pays for it, and no other does."""
    ward = make_ward(name)
    trunk = some_tokens(4 * ward.page)
    siblings = [np.concatenate([trunk[:-3], some_tokens(3, seed=seed), some_tokens(30, seed=9)]) for seed in range(4)]
    assert ward.serve(siblings[0]).usable_tokens == 0
    first = ward.serve(siblings[1])
    assert first.usable_tokens - first.replay_tokens <= 3 * ward.page
    for tokens in siblings[2:]:
        found = ward.serve(tokens)
        assert (found.usable_tokens, found.replay_tokens) == (3 * ward.page, 0)
    for tokens in siblings:
        assert ward.serve(tokens).usable_tokens == len(tokens) - 1


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("cut", [1, 2, 3])
@pytest.mark.parametrize("length", [65, 106, 128, 129])
def test_a_checkpoint_deeper_than_the_prompt_is_not_used(make_ward, name, length, cut) -> None:
    """A prompt one token shorter than one that was served must not continue from the longer one's end."""
    ward = make_ward(name)
    tokens = some_tokens(length)
    ward.serve(tokens)
    shorter = tokens[:-cut]
    found = ward.serve(shorter)
    assert found.usable_tokens <= len(shorter) - 1
    assert ward.serve(shorter).usable_tokens == len(shorter) - 1
    assert ward.serve(tokens).usable_tokens == length - 1


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("length", [1, 2, 3, 31, 32])
def test_a_prompt_shorter_than_a_page_is_served_and_not_kept(make_ward, name, length) -> None:
    ward = make_ward(name)
    tokens = some_tokens(length)
    for _ in range(2):
        assert ward.serve(tokens).usable_tokens == 0
    made = ward.cache.generate(tokens, max_new_tokens=3, do_sample=False, eos_token_id=None)
    assert len(made.sequence) == length + 3
    ward.assert_clean()
