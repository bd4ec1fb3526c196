"""A model and its cache on one device, from the first prompt to the next turn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gpu_support import BUSY_S, keep_busy, on_each_device, own_stream
from huggingface_support import page_cuts, some_tokens, tiny_model, uninterrupted

from engine import CacheEngine, EngineConfig
from engine.integrations.huggingface import PrefixCache, spec_of, weights_revision
from engine.integrations.huggingface.weights import WeightsWatch

MIB = 1 << 20
PAGE_TOKENS = 64


def model_on(device, name="gemma3"):
    model = tiny_model(name, device=device)
    model.generation_config.eos_token_id = None
    return model


def engine_on(device, model, **config):
    settings = {"gpu_bytes": 32 * MIB, "host_bytes": 32 * MIB, "device": device, **config}
    return CacheEngine(spec_of(model, page_tokens=PAGE_TOKENS), EngineConfig(**settings))


@on_each_device
@pytest.mark.parametrize("name", ["gemma3", "deepseek_v4", "mixed"])
def test_a_conversation_reuses_its_turns_and_the_first_one_can_be_asked_again(device, name):
    model = model_on(device, name)
    with own_stream(device), engine_on(device, model) as engine:
        cache = PrefixCache(model, engine)
        tokens = some_tokens(300)
        first = cache.generate(tokens, max_new_tokens=12, do_sample=False)
        again = cache.generate(torch.from_numpy(tokens).to(device), max_new_tokens=12, do_sample=False)
        turn = np.concatenate([first.sequence, some_tokens(50, seed=9)])
        second = cache.generate(turn, max_new_tokens=12, do_sample=False)
        assert (first.usable_tokens, again.usable_tokens) == (0, 299)
        assert second.usable_tokens >= 300
        assert again.new_tokens.tolist() == first.new_tokens.tolist()
        assert list(cache.stream(tokens, max_new_tokens=12, do_sample=False)) == first.new_tokens.tolist()
        assert engine.check() == []


@on_each_device
def test_logits_behind_a_hit_are_those_of_an_uninterrupted_run(device):
    model = model_on(device)
    with engine_on(device, model) as engine:
        cache, tokens = PrefixCache(model, engine), some_tokens(300)
        cache.prefill(tokens[:230]).release()
        with cache.prefill(tokens) as prefill:
            assert prefill.usable_tokens == 229
            state = prefill.past_key_values
            mine = model(
                input_ids=torch.from_numpy(tokens[-1:].astype(np.int64)).to(device)[None], past_key_values=state
            )
    _, logits = uninterrupted(model, tokens, [*page_cuts(299, PAGE_TOKENS, 229), 299])
    assert torch.equal(mine.logits[0, -1], logits[-1])


@on_each_device
def test_the_time_of_a_prefill_holds_what_the_device_still_had_to_do(device):
    """Else an engine on a GPU would take launching kernels for computing, and find no restore worth its time."""
    model = model_on(device)
    with engine_on(device, model) as engine:
        cache = PrefixCache(model, engine)
        cache.prefill(some_tokens(40)).release()  # what is set up on a first call
        hook = model.register_forward_pre_hook(lambda *_: keep_busy(device))
        with cache.prefill(some_tokens(100, seed=4)) as prefill:
            assert prefill.timings.model_s >= 0.8 * BUSY_S * 2  # two calls: 64 tokens and 35
        hook.remove()


@on_each_device
def test_weights_have_one_name_wherever_they_lie_and_are_watched_there(device):
    model = model_on(device)
    assert weights_revision(model) == weights_revision(model_on("cpu"))
    watch = WeightsWatch(model)
    assert not watch.changed()
    weight = next(model.parameters())
    weight.data.view(-1)[0] += 1
    assert watch.changed()
    assert weights_revision(model) != weights_revision(model_on("cpu"))
