"""Replays: exact ones are exact to the bit, approximate ones are asked for, marked, and kept apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from engine import CacheEngine, EngineConfig
from engine.integrations.huggingface import Prefill, PrefixCache, spec_of
from tests.huggingface_support import call, page_cuts, some_tokens, tiny_model, uninterrupted

KNOWN = some_tokens(801)
SIBLING = np.concatenate([KNOWN[:700], some_tokens(100, 5)])
WINDOWED = ["gemma3", "gpt_oss", "mistral", "deepseek_v4", "mixed"]


def attached(name: str, **config: Any) -> tuple[Any, CacheEngine, PrefixCache]:
    """A model whose engine knows one prompt; its sibling leaves it at token 700, in the middle of a page."""
    model = tiny_model(name)
    engine = CacheEngine(spec_of(model), EngineConfig(gpu_bytes=32 << 20, **config))
    cache = PrefixCache(model, engine)
    cache.prefill(KNOWN).release()
    return model, engine, cache


def last_logits(model: Any, prefill: Prefill, tokens: np.ndarray) -> torch.Tensor:
    return call(model, tokens[-1:], prefill.past_key_values, len(tokens) - 1)


@pytest.mark.parametrize("name", WINDOWED)
def test_an_exact_replay_gives_the_bits_of_a_run_that_was_never_interrupted(name):
    model, engine, cache = attached(name)
    with engine, cache.prefill(SIBLING) as prefill:
        assert prefill.usable_tokens == 640
        assert 0 < prefill.replay_tokens < 640
        assert prefill.replay_tokens % 64 == 0
        assert prefill.computed_tokens == prefill.replay_tokens + 159
        assert f"{prefill.replay_tokens:,} replayed" in prefill.explanation.cost.text
        want = uninterrupted(model, SIBLING, page_cuts(799, 64))[1][-1]
        assert torch.equal(last_logits(model, prefill, SIBLING), want)
        assert engine.check() == []


@pytest.mark.parametrize("name", ["gemma3", "deepseek_v4"])
def test_the_rule_for_exact_replays_is_tight_enough_to_matter(name):
    """One window of tokens is not enough to rebuild the windows of all layers: that is what approximate means."""
    model, engine, cache = attached(name)
    truth = cache._map.boundary(uninterrupted(model, KNOWN[:640], page_cuts(640, 64))[0], 640)
    with engine:
        same = {}
        for approximate in (True, False):
            with cache.prefill(KNOWN[:641], approximate=approximate) as prefill:
                assert (prefill.usable_tokens, prefill.lease.approximate) == (640, approximate)
                rebuilt = cache._map.boundary(prefill.past_key_values, 640)
                same[approximate] = all(torch.equal(truth[key], rebuilt[key]) for key in truth)
    assert same == {True: False, False: True}


def test_what_follows_an_approximate_replay_is_never_under_the_exact_id():
    model, engine, cache = attached("gemma3")
    with engine:
        with cache.prefill(SIBLING, approximate=True) as prefill:
            assert prefill.explanation.state == "APPROXIMATE"
        apart = {row["prefix.id"] for row in engine.snapshot() if row["state.to"] == "APPROXIMATE"}
        assert apart
        with cache.prefill(SIBLING) as prefill:  # a request that did not opt in sees none of it
            assert prefill.usable_tokens == 640
            assert not prefill.lease.approximate
            want = uninterrupted(model, SIBLING, page_cuts(799, 64))[1][-1]
            assert torch.equal(last_logits(model, prefill, SIBLING), want)
        exact = {row["prefix.id"] for row in engine.snapshot() if row["state.to"] != "APPROXIMATE"}
        assert not apart & exact
        assert engine.check() == []


def test_an_opted_in_request_gets_the_approximate_continuation_again():
    _, engine, cache = attached("gemma3")
    with engine:
        cache.prefill(SIBLING, approximate=True).release()
        with cache.prefill(SIBLING, approximate=True) as prefill:
            assert (prefill.usable_tokens, prefill.replay_tokens, prefill.computed_tokens) == (799, 0, 0)
            assert prefill.lease.approximate


def test_a_recurrent_state_is_never_replayed():
    model, engine, cache = attached("qwen3_next")
    with engine, cache.prefill(SIBLING, approximate=True) as prefill:
        assert (prefill.usable_tokens, prefill.explanation.reason) == (0, "recurrent_missing")
        want = uninterrupted(model, SIBLING, page_cuts(799, 64))[1][-1]
        assert torch.equal(last_logits(model, prefill, SIBLING), want)


def test_the_measured_speed_of_the_model_replaces_the_guess():
    _, engine, cache = attached("llama", prefill_tokens_per_s=1e9)
    with engine:
        for seed in range(10):
            cache.prefill(some_tokens(300, 100 + seed)).release()
        assert 0 < engine.stats()["prefill"]["tokens_per_s"] < 1e9
