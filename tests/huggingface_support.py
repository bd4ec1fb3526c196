"""Tiny hybrid models with random weights, and the oracle that generation through the engine is compared with.

The oracle is an uninterrupted run of the same calls on one cache object of transformers. A one-shot run is no oracle:
kernels sum in another order for another number of rows, and a sparse model's top-k then breaks ties another way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
import transformers
from transformers import DynamicCache

transformers.logging.set_verbosity_error()
torch.set_num_threads(1)  # threads wait for each other longer than these models compute

VOCABULARY = 199
WINDOW = 16
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "max_position_embeddings": 4096, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
HEADS: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}


def _gemma3() -> tuple[Any, Any]:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    config = Gemma3TextConfig(
        **COMMON, **HEADS, intermediate_size=96, num_hidden_layers=6, sliding_window=WINDOW, query_pre_attn_scalar=16,
        initializer_range=0.3, layer_types=["sliding_attention"] * 5 + ["full_attention"],
    )  # fmt: skip
    return config, Gemma3ForCausalLM


def _gpt_oss() -> tuple[Any, Any]:
    from transformers import GptOssConfig, GptOssForCausalLM

    config = GptOssConfig(
        **COMMON, **HEADS, intermediate_size=64, num_hidden_layers=4, sliding_window=WINDOW, num_local_experts=4,
        num_experts_per_tok=2, initializer_range=0.3, layer_types=["sliding_attention", "full_attention"] * 2,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
    )  # fmt: skip
    return config, GptOssForCausalLM


def _mistral() -> tuple[Any, Any]:
    """Sliding windows only: no history is kept at all."""
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        **COMMON, **HEADS, intermediate_size=96, num_hidden_layers=3, sliding_window=WINDOW, initializer_range=0.3
    )
    return config, MistralForCausalLM


def _llama() -> tuple[Any, Any]:
    """Full attention only: every position is a boundary, nothing is valid at one position alone."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**COMMON, **HEADS, intermediate_size=96, num_hidden_layers=3, initializer_range=0.3)
    return config, LlamaForCausalLM


def _deepseek_v4() -> tuple[Any, Any]:
    """All five object kinds: window, CSA (ratio 4, overlap, indexer) and HCA (ratio 32)."""
    from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

    csa, hca = "compressed_sparse_attention", "heavily_compressed_attention"
    config = DeepseekV4Config(
        **COMMON, num_attention_heads=4, num_key_value_heads=1, head_dim=32, partial_rotary_factor=0.5, q_lora_rank=32,
        moe_intermediate_size=32, num_hidden_layers=5, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1,
        sliding_window=WINDOW, layer_types=["sliding_attention", csa, hca, csa, hca],
        mlp_layer_types=["hash_moe", "moe", "moe", "moe", "moe"], compress_rates={csa: 4, hca: 32}, o_groups=2,
        o_lora_rank=16, index_n_heads=4, index_head_dim=16, index_topk=6, hc_mult=2, hc_sinkhorn_iters=4,
        initializer_range=0.3,
    )  # fmt: skip
    return config, DeepseekV4ForCausalLM


_MLA: dict[str, Any] = {
    "q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
    "moe_intermediate_size": 32, "index_n_heads": 4, "index_head_dim": 16, "index_topk": 24,
}  # fmt: skip


def _deepseek_v32() -> tuple[Any, Any]:
    """MLA latents with a sparse-attention indexer in every layer."""
    from transformers import DeepseekV32Config, DeepseekV32ForCausalLM

    config = DeepseekV32Config(
        **COMMON, **_MLA, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4,
        first_k_dense_replace=1, initializer_range=0.3,
    )  # fmt: skip
    return config, DeepseekV32ForCausalLM


def _qwen3_next() -> tuple[Any, Any]:
    """Linear attention with one full layer in four: the recurrent state is a sixth kind."""
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    config = Qwen3NextConfig(
        **COMMON, **HEADS, intermediate_size=96, moe_intermediate_size=32, shared_expert_intermediate_size=32,
        num_hidden_layers=4, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16,
        linear_value_head_dim=16, num_experts=4, num_experts_per_tok=2, initializer_range=0.2,
    )  # fmt: skip
    return config, Qwen3NextForCausalLM


def _mixed() -> tuple[Any, Any]:
    """Full, sliding and indexed layers in one model, all MLA (Dots 3 Note's text model)."""
    from transformers.models.dots3_note.configuration_dots3_note import Dots3NoteTextConfig
    from transformers.models.dots3_note.modeling_dots3_note import Dots3NoteForCausalLM

    sliding = {
        "num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 32, "kv_lora_rank": 24, "head_dim": 24,
        "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    }  # fmt: skip
    types = ["full_attention", "sliding_attention", "indexed_attention", "sliding_attention"]
    config = Dots3NoteTextConfig(
        **COMMON, **_MLA, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4,
        head_dim=24, shared_experts_intermediate_size=32, sliding_window=WINDOW, layer_types=types,
        per_layer_config={i: sliding for i, kind in enumerate(types) if kind == "sliding_attention"},
        initializer_range=0.3,
    )  # fmt: skip
    return config, Dots3NoteForCausalLM


MODELS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "gemma3": _gemma3,
    "gpt_oss": _gpt_oss,
    "mistral": _mistral,
    "llama": _llama,
    "deepseek_v4": _deepseek_v4,
    "deepseek_v32": _deepseek_v32,
    "qwen3_next": _qwen3_next,
    "mixed": _mixed,
}


def tiny_model(name: str, *, seed: int = 1, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Any:
    """The model `name` with weights that depend on `seed` alone; pieces that are born zero are given values."""
    config, model_class = MODELS[name]()
    config._attn_implementation = "eager"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config).eval()
    generator = torch.Generator().manual_seed(seed + 7)
    with torch.no_grad():
        for key, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if key.endswith(("sinks", "position_bias")):
                tensor.normal_(0, 0.5, generator=generator)
            if key.endswith("tid2eid"):
                tensor.copy_(torch.randint(0, config.n_routed_experts, tensor.shape, generator=generator))
    return model.to(dtype=dtype, device=device).requires_grad_(False)


def some_tokens(n: int, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, VOCABULARY, n).astype(np.int32)


def uninterrupted(model: Any, tokens: np.ndarray, cuts: Iterable[int]) -> tuple[Any, list[torch.Tensor]]:
    """Run `tokens` on one cache object, a call up to each cut and one for the rest: (cache, last logits of each)."""
    cache, logits, start = DynamicCache(config=model.config), [], 0
    for stop in [*sorted(set(cuts)), len(tokens)]:
        if stop > start:
            logits.append(call(model, tokens[start:stop], cache, start))
            start = stop
    return cache, logits


def call(model: Any, tokens: np.ndarray, cache: Any, start: int) -> torch.Tensor:
    """Logits of the last token, [vocabulary]."""
    ids = torch.from_numpy(tokens.astype(np.int64)).unsqueeze(0).to(model.device)
    positions = torch.arange(start, start + len(tokens), device=model.device).unsqueeze(0)
    with torch.no_grad():
        return model(
            input_ids=ids, past_key_values=cache, use_cache=True, position_ids=positions, logits_to_keep=1
        ).logits[0, -1]


def page_cuts(end: int, page_tokens: int, *extra: int) -> list[int]:
    """Where PrefixCache cuts a prompt whose state ends at `end`: at every page, and where a run was interrupted."""
    return sorted({*range(page_tokens, end, page_tokens), *extra, end})
