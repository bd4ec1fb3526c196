"""Models with random weights for benchmarks: hybrid shapes of the field, sized for a machine without or with a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _gemma3(width: int, layers: int, window: int) -> tuple[Any, Any]:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    kinds = ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(layers)]
    config = Gemma3TextConfig(
        vocab_size=8192, hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers,
        num_attention_heads=width // 64, num_key_value_heads=max(1, width // 256), head_dim=64, sliding_window=window,
        query_pre_attn_scalar=64, layer_types=kinds, max_position_embeddings=1 << 17, pad_token_id=0, bos_token_id=1,
        eos_token_id=2,
    )  # fmt: skip
    return config, Gemma3ForCausalLM


def _deepseek_v4(width: int, layers: int, window: int) -> tuple[Any, Any]:
    from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

    csa, hca = "compressed_sparse_attention", "heavily_compressed_attention"
    kinds = ["sliding_attention", *(csa if i % 2 else hca for i in range(1, layers))]
    config = DeepseekV4Config(
        vocab_size=8192, hidden_size=width, moe_intermediate_size=width, num_hidden_layers=layers,
        num_attention_heads=width // 64, num_key_value_heads=1, head_dim=64, partial_rotary_factor=0.5,
        q_lora_rank=width // 2, n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1, sliding_window=window,
        layer_types=kinds, mlp_layer_types=["moe"] * layers, compress_rates={csa: 4, hca: 128}, o_groups=2,
        o_lora_rank=width // 4, index_n_heads=4, index_head_dim=32, index_topk=128, hc_mult=2,
        max_position_embeddings=1 << 17, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return config, DeepseekV4ForCausalLM


def _qwen3_next(width: int, layers: int, window: int) -> tuple[Any, Any]:
    """`window` is unused: linear attention keeps one state instead."""
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    config = Qwen3NextConfig(
        vocab_size=8192, hidden_size=width, intermediate_size=2 * width, moe_intermediate_size=width // 2,
        shared_expert_intermediate_size=width // 2, num_hidden_layers=layers, num_attention_heads=width // 64,
        num_key_value_heads=2, head_dim=64, linear_num_key_heads=4, linear_num_value_heads=8, linear_key_head_dim=64,
        linear_value_head_dim=64, num_experts=8, num_experts_per_tok=2, max_position_embeddings=1 << 17, pad_token_id=0,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return config, Qwen3NextForCausalLM


FAMILIES: dict[str, Callable[[int, int, int], tuple[Any, Any]]] = {
    "gemma3": _gemma3,
    "deepseek_v4": _deepseek_v4,
    "qwen3_next": _qwen3_next,
}
SIZES = {"laptop": (512, 6, 128), "gpu": (2048, 12, 512)}
"""Width, layers and sliding window."""


def random_model(family: str, size: str, device: str, dtype: torch.dtype) -> Any:
    """A model in eval mode whose weights depend on nothing but its name and size."""
    config, model_class = FAMILIES[family](*SIZES[size])
    torch.manual_seed(0)
    with torch.device(device):
        model = model_class(config)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith(("sinks", "position_bias")):  # born uninitialised
            tensor.data.zero_()
    return model.to(dtype=dtype, device=device).eval().requires_grad_(False)
