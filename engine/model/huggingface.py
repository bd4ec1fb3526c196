"""A `ModelSpec` from the configuration of a Hugging Face model: geometry by layer type, and an identity.

Configurations are read by their attributes; neither torch nor transformers is imported here. What a layer type keeps is
written in `_LAYER_TYPES`, one entry a type; a type that is not there is refused by its name, never guessed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import lcm
from typing import Any

from engine.errors import SpecError
from engine.model.spec import Compressed, Field, Full, Indexed, Layer, ModelSpec, Part, Recurrent, Sliding, flat

DEFAULT_PAGE_TOKENS = 64
UNNAMED = "unnamed"
"""The revision of weights that nobody named: good for memory, never for files (see `PrefixCache`)."""

_VOLATILE = frozenset({"_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype", "use_cache"})
"""Keys of a configuration that change no byte of KV. The dtype is part of every field instead."""


@dataclass(frozen=True, slots=True)
class _LayerConfig:
    """One layer's configuration and the dtype of its cache."""

    config: Any
    dtype: str

    def number(self, *names: str) -> int:
        """The first of `names` that is a positive whole number. Raises `SpecError` naming them."""
        for name in names:
            value = getattr(self.config, name, None)
            if isinstance(value, int) and value > 0:
                return value
        raise SpecError(f"the configuration has no {' or '.join(names)}; pass the model to spec_of() instead")

    def field(self, name: str, *shape: int) -> Field:
        return Field(name=name, dtype=self.dtype, width=flat(*shape))

    @property
    def head_dim(self) -> int:
        own = getattr(self.config, "head_dim", None)
        return own or self.number("hidden_size") // self.number("num_attention_heads")

    @property
    def latent(self) -> bool:
        """MLA: one latent and one rotary key a token, shared by all heads, stand where keys and values are."""
        return bool(getattr(self.config, "kv_lora_rank", None))

    @property
    def key_values(self) -> tuple[Field, ...]:
        if self.latent:
            latent, rope = self.number("kv_lora_rank"), self.number("qk_rope_head_dim")
            return self.field("keys", latent), self.field("values", rope)
        heads = self.number("num_key_value_heads", "num_attention_heads")
        return self.field("keys", heads, self.head_dim), self.field("values", heads, self.head_dim)


def _full(layer: _LayerConfig) -> tuple[Part, ...]:
    return (Full(fields=layer.key_values, lossy_allowed=not layer.latent),)


def _sliding(layer: _LayerConfig) -> tuple[Part, ...]:
    return (Sliding(window=layer.number("sliding_window"), fields=layer.key_values),)


def _chunked(layer: _LayerConfig) -> tuple[Part, ...]:
    return (Sliding(window=layer.number("attention_chunk_size"), fields=layer.key_values),)


def _indexed(layer: _LayerConfig) -> tuple[Part, ...]:
    return (*_full(layer), Indexed(fields=(layer.field("keys", layer.number("index_head_dim")),)))


def _linear(layer: _LayerConfig) -> tuple[Part, ...]:
    """Gated delta rule (Qwen3-Next): a short convolution over q, k and v, and one matrix a value head."""
    key_dim, value_dim = layer.number("linear_key_head_dim"), layer.number("linear_value_head_dim")
    k_heads, v_heads = layer.number("linear_num_key_heads"), layer.number("linear_num_value_heads")
    channels = 2 * k_heads * key_dim + v_heads * value_dim
    conv = layer.field("conv0", channels, layer.number("linear_conv_kernel_dim"))
    # The delta rule runs in float32 whatever the model's dtype, and its state stays so.
    state = Field(name="state0", dtype="float32", width=flat(v_heads, key_dim, value_dim))
    return (Recurrent(fields=(conv, state)),)


def _latent_window(layer: _LayerConfig) -> Sliding:
    return Sliding(window=layer.number("sliding_window"), fields=(layer.field("latent", layer.head_dim),))


def _csa(layer: _LayerConfig) -> tuple[Part, ...]:
    """DeepSeek-V4 CSA: compressed entries and an indexer of the same ratio, both with buffers and an overlap."""
    ratio = layer.config.compress_rates["compressed_sparse_attention"]
    width, index_width = layer.head_dim, layer.number("index_head_dim")
    compressed = Compressed(
        ratio=ratio,
        fields=(layer.field("entries", width),),
        buffers=(layer.field("kv", 2 * width), layer.field("gate", 2 * width)),
        overlaps=(layer.field("kv", width), layer.field("gate", width)),
    )
    indexed = Indexed(
        ratio=ratio,
        fields=(layer.field("entries", index_width),),
        buffers=(layer.field("kv", 2 * index_width), layer.field("gate", 2 * index_width)),
        overlaps=(layer.field("kv", index_width), layer.field("gate", index_width)),
    )
    return _latent_window(layer), compressed, indexed


def _hca(layer: _LayerConfig) -> tuple[Part, ...]:
    """DeepSeek-V4 HCA: a heavier ratio; windows of it do not overlap, and nothing indexes them."""
    width = layer.head_dim
    compressed = Compressed(
        ratio=layer.config.compress_rates["heavily_compressed_attention"],
        fields=(layer.field("entries", width),),
        buffers=(layer.field("kv", width), layer.field("gate", width)),
    )
    return _latent_window(layer), compressed


def _nothing(_: _LayerConfig) -> tuple[Part, ...]:
    return ()


_LAYER_TYPES: dict[str, Callable[[_LayerConfig], tuple[Part, ...]]] = {
    "full_attention": _full,
    "sliding_attention": _sliding,
    "chunked_attention": _chunked,
    "indexed_attention": _indexed,
    "linear_attention": _linear,
    "hybrid": lambda layer: (*_linear(layer), *_full(layer)),
    "hybrid_sliding": lambda layer: (*_linear(layer), *_sliding(layer)),
    "compressed_sparse_attention": _csa,
    "heavily_compressed_attention": _hca,
    "moe": _nothing,
    "mlp": _nothing,
    "dummy": _nothing,
}


def spec_from_config(
    config: Any,
    *,
    revision: str = "",
    adapter: str = "",
    page_tokens: int | None = None,
    dtype: Any = None,
) -> ModelSpec:
    """See `ModelSpec.from_hf`."""
    text = text_config(config)
    name = dtype_name(dtype if dtype is not None else getattr(text, "dtype", None))
    layers = tuple(
        Layer(parts=_parts_of(layer_type, _LayerConfig(layer, name), index))
        for index, (layer_type, layer) in enumerate(_layer_types(text))
    )
    return build_spec(text, layers, revision=revision, adapter=adapter, page_tokens=page_tokens)


def build_spec(
    config: Any,
    layers: tuple[Layer, ...],
    *,
    revision: str,
    adapter: str = "",
    page_tokens: int | None = None,
    flops_per_token: float = 0.0,
) -> ModelSpec:
    """A spec of these layers under the identity of `config` and the weights. Raises `SpecError`."""
    refuse_unstable_rope(config)
    weights = (revision or getattr(config, "_commit_hash", None) or UNNAMED) + (f"+{adapter}" if adapter else "")
    return ModelSpec(
        name=getattr(config, "model_type", "") or "model",
        revision=f"{weights}/{config_digest(config)}",
        page_tokens=page_tokens or default_page_tokens(layers),
        layers=layers,
        flops_per_token=flops_per_token,
    )


def text_config(config: Any) -> Any:
    """The configuration of the decoder, also inside a multimodal one. Raises `SpecError` for what is no such thing."""
    if not hasattr(config, "get_text_config"):
        raise SpecError(f"from_hf takes the configuration of a model (model.config), not a {type(config).__name__}")
    return config.get_text_config(decoder=True)


def config_digest(config: Any) -> str:
    """16 hex digits over everything in a configuration that can change a byte of KV: sizes, rope, routing, kernels."""
    body = {key: value for key, value in config.to_dict().items() if key not in _VOLATILE}
    body["attention"] = getattr(config, "_attn_implementation", None)
    body["experts"] = getattr(config, "_experts_implementation", None)
    text = json.dumps(body, sort_keys=True, default=str, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def default_page_tokens(layers: Sequence[Layer]) -> int:
    """The smallest multiple of every compression ratio that is at least 64."""
    ratios = [p.ratio for layer in layers for p in layer.parts if isinstance(p, Full | Compressed | Indexed)]
    step = lcm(1, *ratios)
    return -(-DEFAULT_PAGE_TOKENS // step) * step


def dtype_name(dtype: Any) -> str:
    """`bfloat16` for torch.bfloat16, "torch.bfloat16" or "bfloat16"; float32 when nothing is said."""
    return "float32" if dtype is None else str(dtype).removeprefix("torch.")


def refuse_unstable_rope(config: Any) -> None:
    """Raises `SpecError` for rotary frequencies that depend on requests served before: KV is then no function of
    the prefix."""
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    if any(kind.get("rope_type") == "dynamic" for kind in kinds):
        raise SpecError(
            "rope_type is 'dynamic': its frequencies depend on the longest request so far, so the same prefix has "
            "other KV from one request to the next; use another rope_type"
        )


def _layer_types(config: Any) -> list[tuple[str, Any]]:
    """The type and the configuration of every layer, as the caches of transformers derive them."""
    layers = list(config.per_layer_config)
    types = getattr(config, "layer_types", None) or [_inferred_type(layer) for layer in layers]
    modes = getattr(config, "kv_sharing_modes", None) or [""] * len(layers)
    shared = ["dummy" if mode == "reuse" else kind for kind, mode in zip(types, modes, strict=True)]
    return list(zip(shared, layers, strict=True))


def _inferred_type(layer: Any) -> str:
    if getattr(layer, "sliding_window", None) is not None:
        return "sliding_attention"
    return "full_attention" if getattr(layer, "attention_chunk_size", None) is None else "chunked_attention"


def _parts_of(layer_type: str, layer: _LayerConfig, index: int) -> tuple[Part, ...]:
    make = _LAYER_TYPES.get(layer_type)
    if make is None:
        raise SpecError(
            f"layer {index} is of type {layer_type!r}, which kvdeck does not map; mapped: {', '.join(_LAYER_TYPES)}. "
            "Where the class of its cache is mapped, spec_of(model) measures what this cannot derive"
        )
    return make(layer)
