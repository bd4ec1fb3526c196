"""An answer that takes longer than its lease, and a lease given back early, are kept whole and of one run."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine import CacheEngine, EngineConfig
from engine.clock import ManualClock
from engine.commands.ticket import CommandRequest
from engine.integrations.huggingface import PrefixCache, spec_of
from tests.huggingface_support import call, page_cuts, some_tokens, tiny_model, uninterrupted

PROMPT, ANSWER = some_tokens(300), 70


def evict_all(engine: CacheEngine) -> None:
    ids = [row["prefix.id"] for row in engine.snapshot()]
    engine.execute(CommandRequest(id="e", kind="evict", arguments={"prefix_ids": ids}))


@pytest.mark.parametrize("name", ["deepseek_v4", "qwen3_next"])
def test_an_answer_outlives_its_lease_and_what_it_was_computed_from(name):
    """While the answer is decoded the lease expires and everything is evicted: the commit brings all of it again."""
    model, clock = tiny_model(name), ManualClock()
    with CacheEngine(spec_of(model), EngineConfig(gpu_bytes=32 << 20), clock=clock) as engine:
        cache = PrefixCache(model, engine)
        cache.prefill(PROMPT).release()
        seen: list[int] = []

        def on_token(token: int) -> None:
            seen.append(token)
            if len(seen) == 3:
                clock.advance(1000.0)
                engine.tick()
                evict_all(engine)
                assert engine.snapshot() == []

        done = cache.generate(PROMPT, max_new_tokens=ANSWER, do_sample=False, eos_token_id=None, streamer=on_token)
        assert done.usable_tokens == 299
        assert (done.commit.outcome, done.commit.checkpoints) == ("admitted", (369,))
        follow = np.concatenate([done.sequence, some_tokens(40, 8)])
        with cache.prefill(follow) as prefill:
            assert prefill.usable_tokens == 369
            got = call(model, follow[-1:], prefill.past_key_values, len(follow) - 1)
        cuts = page_cuts(len(follow) - 1, 64, 299, *range(300, 370))
        assert torch.equal(got, uninterrupted(model, follow, [c for c in cuts if c <= 299 or c >= 300])[1][-1])
        assert engine.check() == []


def test_a_prefill_given_back_before_its_commit_is_committed_whole():
    model = tiny_model("gpt_oss")
    with CacheEngine(spec_of(model), EngineConfig(gpu_bytes=32 << 20)) as engine:
        cache = PrefixCache(model, engine)
        prefill = cache.prefill(PROMPT)
        prefill.release()
        evict_all(engine)
        call(model, PROMPT[-1:], prefill.past_key_values, 299)
        assert cache.commit(prefill, PROMPT).new_pages == 4
        with cache.prefill(np.concatenate([PROMPT, PROMPT[:9]])) as again:
            assert again.usable_tokens == 300


def test_weights_that_change_during_an_answer_leave_nothing_behind():
    model = tiny_model("gemma3")
    with CacheEngine(spec_of(model), EngineConfig(gpu_bytes=32 << 20)) as engine:
        cache = PrefixCache(model, engine)

        def merge(_: int) -> None:
            model.lm_head.weight.data.mul_(1.5)
            model.model.layers[0].mlp.down_proj.weight.data.add_(0.25)

        done = cache.generate(PROMPT, max_new_tokens=70, do_sample=False, eos_token_id=None, streamer=merge)
        assert (done.commit.outcome, done.commit.reason) == ("refused", "weights_changed")
        assert [row["tokens"] for row in engine.snapshot()] == [256]  # the prompt, committed before the first token
        assert cache.generate(PROMPT, max_new_tokens=2).usable_tokens == 0
