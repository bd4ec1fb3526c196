"""A model under rules of admission: the prompt and its answer are committed by one lease, and tokens never change."""

from __future__ import annotations

import numpy as np
import pytest

from engine import CacheEngine, EngineConfig
from engine.integrations.huggingface import PrefixCache, spec_of
from tests.huggingface_support import some_tokens, tiny_model

PROMPT = some_tokens(300)


@pytest.mark.parametrize("rule", ["second_touch", "first_pages:2", "all"])
@pytest.mark.parametrize("name", ["deepseek_v4", "gpt_oss", "qwen3_next"])
def test_answers_are_the_same_whatever_is_kept(name, rule):
    model = tiny_model(name)
    with CacheEngine(spec_of(model), EngineConfig(gpu_bytes=32 << 20, admission_rule=rule)) as engine:
        cache = PrefixCache(model, engine)
        done = [cache.generate(PROMPT, max_new_tokens=70, do_sample=False, eos_token_id=None) for _ in range(3)]
        assert all(np.array_equal(done[0].sequence, one.sequence) for one in done)
        kept = {"second_touch": 299, "first_pages:2": 128, "all": 299}[rule]
        assert [one.usable_tokens for one in done] == {
            "second_touch": [0, 0, 299],
            "first_pages:2": [0, 128, 128],
            "all": [0, 299, 299],
        }[rule]
        assert done[2].usable_tokens == kept
        reasons = {one.commit.reason for one in done}
        assert reasons <= {"ok", "second_touch", "past_first_pages"}
        assert engine.check() == []
        assert engine.stats()["wrong_bytes"] == 0
