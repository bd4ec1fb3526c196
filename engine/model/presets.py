"""Model descriptions by name: geometry from the models' public configurations, and small versions for a laptop."""

from __future__ import annotations

from collections.abc import Callable

from engine.errors import SpecError
from engine.model.spec import Compressed, Field, Full, Indexed, Layer, ModelSpec, Part, Recurrent, Sliding, flat


def _kv(heads: int, width: int, dtype: str = "bfloat16") -> tuple[Field, ...]:
    return (
        Field(name="keys", dtype=dtype, width=flat(heads, width)),
        Field(name="values", dtype=dtype, width=flat(heads, width)),
    )


def _one(name: str, dtype: str, width: int) -> tuple[Field, ...]:
    return (Field(name=name, dtype=dtype, width=width),)


def _gated(kv: int, dtype: str) -> tuple[Field, ...]:
    """A compressor keeps a projection and a gate for every token that is not yet an entry."""
    return Field(name="kv", dtype=dtype, width=kv), Field(name="gate", dtype=dtype, width=kv)


def _layers(*rows: tuple[Part, ...]) -> tuple[Layer, ...]:
    return tuple(Layer(parts=parts) for parts in rows)


def _deepseek_v4(
    name: str,
    page_tokens: int,
    n_layers: int,
    window: int,
    heavy_ratio: int,
    entry: tuple[Field, ...],
    width: int,
    index: tuple[Field, ...],
    index_width: int,
    flops: float,
) -> ModelSpec:
    """Two sliding layers, then CSA (ratio 4, overlap, indexer) and HCA (heavy ratio) in turn; all keep a window."""
    swa = Sliding(window=window, fields=entry)
    csa = (
        swa,
        Compressed(
            ratio=4, fields=entry, buffers=_gated(2 * width, "bfloat16"), overlaps=_gated(width, "bfloat16"), name="csa"
        ),
        Indexed(
            ratio=4,
            fields=index,
            buffers=_gated(2 * index_width, "bfloat16"),
            overlaps=_gated(index_width, "bfloat16"),
            name="csa_indexer",
        ),
    )
    hca = (swa, Compressed(ratio=heavy_ratio, fields=entry, buffers=_gated(width, "bfloat16"), name="hca"))
    rows = [(swa,), (swa,), *((csa if i % 2 == 0 else hca) for i in range(n_layers - 2))]
    return ModelSpec(
        name=name, revision="preset-1", page_tokens=page_tokens, layers=_layers(*rows), flops_per_token=flops
    )


def _deepseek_v4_flash() -> ModelSpec:
    # One latent of 512 serves as key and value: 448 in FP8, 64 rotary in BF16. Indexer keys: 128 values in FP4.
    entry = (
        Field(name="latent", dtype="float8_e4m3fn", width=448),
        Field(name="rope", dtype="bfloat16", width=64),
    )
    index = _one("key_fp4", "uint8", 64)
    return _deepseek_v4("deepseek-v4-flash", 128, 43, 128, 128, entry, 512, index, 128, 2 * 13e9)


def _small_deepseek_v4() -> ModelSpec:
    return _deepseek_v4(
        "small-deepseek-v4",
        64,
        5,
        16,
        32,
        _one("latent", "bfloat16", 16),
        16,
        _one("key", "bfloat16", 8),
        8,
        2e6,
    )


def _deepseek_v32(name: str, n_layers: int, latent: int, index_width: int, flops: float) -> ModelSpec:
    """MLA: one latent with its rotary part a token; the indexer's keys in FP8 with a 4-byte scale."""
    row: tuple[Part, ...] = (
        Full(fields=_one("latent", "bfloat16", latent), lossy_allowed=False),
        Indexed(
            fields=(
                Field(name="key", dtype="float8_e4m3fn", width=index_width),
                Field(name="scale", dtype="float32", width=1),
            )
        ),
    )
    return ModelSpec(
        name=name,
        revision="preset-1",
        page_tokens=64,
        layers=_layers(*[row] * n_layers),
        flops_per_token=flops,
    )


def _interleaved(
    name: str, n_layers: int, period: int, window: int, heads: int, width: int, flops: float, full_last: bool = True
) -> ModelSpec:
    """One full-attention layer in every `period`, sliding windows elsewhere (Gemma 3: 5 to 1, gpt-oss: 1 to 1)."""
    fields = _kv(heads, width)
    full, swa = (Full(fields=fields),), (Sliding(window=window, fields=fields),)
    rows = [full if (i % period == period - 1) == full_last else swa for i in range(n_layers)]
    return ModelSpec(name=name, revision="preset-1", page_tokens=64, layers=_layers(*rows), flops_per_token=flops)


def _qwen3_next(
    name: str, n_layers: int, heads: int, width: int, v_heads: int, state: int, channels: int, flops: float
) -> ModelSpec:
    """Three linear-attention layers (recurrent state and a short convolution) to one full-attention layer."""
    linear = (
        Recurrent(
            fields=(
                Field(name="state", dtype="float32", width=flat(v_heads, state, state)),
                Field(name="conv", dtype="bfloat16", width=flat(channels, 4)),
            )
        ),
    )
    rows = [(Full(fields=_kv(heads, width)),) if i % 4 == 3 else linear for i in range(n_layers)]
    return ModelSpec(name=name, revision="preset-1", page_tokens=64, layers=_layers(*rows), flops_per_token=flops)


_PRESETS: dict[str, Callable[[], ModelSpec]] = {
    "deepseek-v4-flash": _deepseek_v4_flash,
    "deepseek-v3.2": lambda: _deepseek_v32("deepseek-v3.2", 61, 576, 128, 2 * 37e9),
    "gemma-3-27b": lambda: _interleaved("gemma-3-27b", 62, 6, 1024, 16, 128, 2 * 27e9),
    "gpt-oss-120b": lambda: _interleaved("gpt-oss-120b", 36, 2, 128, 8, 64, 2 * 5.1e9),
    "qwen3-next-80b": lambda: _qwen3_next("qwen3-next-80b", 48, 2, 256, 32, 128, 8192, 2 * 3e9),
    "small-deepseek-v4": _small_deepseek_v4,
    "small-deepseek-v3.2": lambda: _deepseek_v32("small-deepseek-v3.2", 3, 24, 8, 2e6),
    "small-gemma-3": lambda: _interleaved("small-gemma-3", 6, 6, 32, 1, 16, 2e6),
    "small-gpt-oss": lambda: _interleaved("small-gpt-oss", 4, 2, 16, 1, 16, 2e6),
    "small-qwen3-next": lambda: _qwen3_next("small-qwen3-next", 4, 1, 16, 2, 8, 32, 2e6),
    "small-llama": lambda: _interleaved("small-llama", 3, 1, 2, 1, 16, 2e6),
    "bench-full-swa": lambda: _interleaved("bench-full-swa", 2, 2, 128, 1, 64, 2e6),
}


def preset_names() -> tuple[str, ...]:
    return tuple(_PRESETS)


def preset(name: str) -> ModelSpec:
    """The description called `name`. Raises `SpecError` that lists the known names."""
    if name not in _PRESETS:
        raise SpecError(f"no model preset is called {name!r}; known: {', '.join(_PRESETS)}")
    return _PRESETS[name]()
