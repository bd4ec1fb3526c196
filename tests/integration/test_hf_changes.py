"""A model that is changed under its prefix cache, or is none that can be cached: said so, and never served wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from engine import CacheEngine, EngineConfig
from engine.errors import BadNamespace, ModelMismatch, StateMismatch, UnknownCacheLayer
from engine.integrations.huggingface import PrefixCache, spec_of
from tests.huggingface_support import COMMON, HEADS, call, page_cuts, some_tokens, tiny_model, uninterrupted

PROMPT = some_tokens(200)


def attached(model: Any) -> tuple[CacheEngine, PrefixCache]:
    engine = CacheEngine(spec_of(model), EngineConfig(gpu_bytes=32 << 20))
    cache = PrefixCache(model, engine)
    cache.prefill(PROMPT).release()
    return engine, cache


class Adapted(torch.nn.Module):
    """A layer as PEFT leaves it: what it adds is decided by settings that are no tensors."""

    __module__ = "peft.tuners.lora.layer"

    def __init__(self, base: torch.nn.Module) -> None:
        super().__init__()
        self.base, self.scaling, self.disable_adapters = base, {"a": 1.0}, False
        self.active_adapters, self.merged_adapters = ["a"], []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) * (1.0 if self.disable_adapters else 1.0 + self.scaling[self.active_adapters[0]])


def adapted_model() -> Any:
    model = tiny_model("llama")
    attention = model.model.layers[0].self_attn
    attention.v_proj = Adapted(attention.v_proj)
    return model


def disable(model: Any) -> None:
    model.model.layers[0].self_attn.v_proj.disable_adapters = True


def rescale(model: Any) -> None:
    model.model.layers[0].self_attn.v_proj.scaling["a"] = 0.25


def switch_attention(model: Any) -> None:
    model.set_attn_implementation("sdpa")


@pytest.mark.parametrize("change", [disable, rescale, switch_attention])
def test_settings_that_are_no_weights_end_reuse_and_change_the_fingerprint(change: Callable[[Any], None]):
    model = adapted_model()
    before = spec_of(model).fingerprint
    engine, cache = attached(model)
    with engine:
        assert cache.prefill(PROMPT).usable_tokens == 199
        change(model)
        prefill = cache.prefill(PROMPT)
        assert (prefill.usable_tokens, prefill.explanation.reason) == (0, "weights_changed")
    assert spec_of(model).fingerprint != before


def test_a_change_that_was_taken_back_leaves_nothing_behind():
    model = tiny_model("llama")
    weight = model.model.layers[0].self_attn.v_proj.weight
    sequence = np.concatenate([PROMPT, some_tokens(120, 9)])
    engine, cache = attached(model)
    with engine, cache.prefill(PROMPT) as prefill:
        old = weight.clone()
        weight.mul_(2)
        for i in range(199, 260):
            call(model, sequence[i : i + 1], prefill.past_key_values, i)
        cache.prefill(some_tokens(70, 4)).release()  # another request sees the change
        weight.copy_(old)
        for i in range(260, 320):
            call(model, sequence[i : i + 1], prefill.past_key_values, i)
        assert cache.commit(prefill, sequence).reason == "weights_changed"
        assert cache.prefill(PROMPT).usable_tokens == 199  # as it was: what was kept before is served again


@pytest.mark.parametrize("name", ["llama", "qwen3_next", "deepseek_v4"])
@pytest.mark.parametrize("off", [-1, 1])
def test_a_commit_of_the_wrong_length_changes_nothing(name, off):
    model = tiny_model(name)
    sequence = np.concatenate([PROMPT, some_tokens(10, 9)])
    engine, cache = attached(model)
    with engine, cache.prefill(PROMPT) as prefill:
        for i in range(199, 209):
            call(model, sequence[i : i + 1], prefill.past_key_values, i)
        with pytest.raises(StateMismatch, match="209 tokens"):
            cache.commit(prefill, sequence[: 209 + off])
        done = cache.commit(prefill, sequence[:209])
        assert (done.outcome, done.checkpoints) == ("admitted", (209,))
        follow = np.concatenate([sequence[:209], some_tokens(31, 10)])
        with cache.prefill(follow) as again:
            assert again.usable_tokens == 209
            cuts = [*page_cuts(199, 64), *range(200, 210), 239]
            want = uninterrupted(model, follow, cuts)[1][-1]
            assert torch.equal(call(model, follow[-1:], again.past_key_values, 239), want)


def test_a_configuration_that_says_use_cache_false_is_overruled():
    model = tiny_model("llama")
    model.generation_config.use_cache = False
    engine, cache = attached(model)
    with engine:
        assert cache.generate(PROMPT, max_new_tokens=4, do_sample=False).commit.outcome == "admitted"


def test_offsets_that_images_left_behind_are_forgotten():
    model = tiny_model("llama")
    model.model.rope_deltas = torch.tensor([[-40]])
    engine, _ = attached(model)
    with engine:
        assert model.model.rope_deltas is None


def test_a_model_loaded_in_inference_mode_can_be_attached():
    with torch.inference_mode():
        model = tiny_model("llama")
    engine, cache = attached(model)
    with engine:
        assert cache.generate(PROMPT, max_new_tokens=2, do_sample=False).usable_tokens == 199


def recurrent_gemma() -> Any:
    from transformers import RecurrentGemmaConfig, RecurrentGemmaForCausalLM

    config = RecurrentGemmaConfig(
        vocab_size=199, hidden_size=64, num_attention_heads=4, num_key_value_heads=1, intermediate_size=96,
        num_hidden_layers=3, lru_width=64, attention_window_size=16,
    )  # fmt: skip
    return RecurrentGemmaForCausalLM(config)


def mamba() -> Any:
    from transformers import MambaConfig, MambaForCausalLM

    return MambaForCausalLM(MambaConfig(vocab_size=199, hidden_size=64, num_hidden_layers=2, state_size=8))


def t5() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(T5Config(vocab_size=199, d_model=32, d_ff=32, num_layers=1, num_heads=2, d_kv=16))


def bare_llama() -> Any:
    from transformers import LlamaConfig, LlamaModel

    return LlamaModel(LlamaConfig(**COMMON, **HEADS, intermediate_size=96, num_hidden_layers=1))


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (recurrent_gemma, UnknownCacheLayer),
        (mamba, UnknownCacheLayer),
        (t5, ModelMismatch),
        (bare_llama, ModelMismatch),
    ],
)
def test_a_model_whose_state_is_not_all_in_its_cache_object_is_refused_in_a_sentence(make, error):
    with pytest.raises(error):
        spec_of(make().eval())


@pytest.mark.parametrize("name", ["attention_mask", "position_ids", "custom_generate", "adapter_names"])
def test_arguments_that_would_change_what_a_prompt_means_are_refused_by_name(name):
    engine, cache = attached(tiny_model("llama"))
    with engine, pytest.raises(StateMismatch, match=name):
        cache.generate(PROMPT, max_new_tokens=2, **{name: [[1]]})


def test_what_is_no_namespace_and_no_batch_is_said():
    engine, cache = attached(tiny_model("llama"))
    with engine:
        with pytest.raises(BadNamespace, match="NoneType"):
            cache.prefill(PROMPT, namespace=None)
        with pytest.raises(StateMismatch, match="a batch is"):
            cache.generate_batch(5)
