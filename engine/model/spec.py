"""What a hybrid model keeps for a prefix, layer by layer. No torch here: geometry, bytes and a fingerprint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from engine.errors import SpecError

LAYOUT_VERSION = 1
"""Moves when the byte layout of any stored object changes; part of every fingerprint, so old files are never read."""

DTYPE_BYTES = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "int8": 1,
    "uint8": 1,
    "int32": 4,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One tensor of an entry: `width` values of `dtype`."""

    name: str
    dtype: str
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Full:
    """Full-history attention: one entry a token, kept for ever (keys and values, or an MLA latent).

    An MLA latent is compressed by the model already: `lossy_allowed=False` keeps lossy codecs off it.
    """

    fields: tuple[Field, ...]
    name: str = "full"
    ratio: int = 1
    lossy_allowed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressed:
    """Natively compressed history: one entry for `ratio` tokens (DeepSeek-V4 CSA and HCA).

    `buffers` hold the projections of the b mod ratio tokens that are not yet an entry; `overlaps` those of the
    last `ratio` tokens of the newest entry, which the next entry also reads (CSA only).
    """

    ratio: int
    fields: tuple[Field, ...]
    buffers: tuple[Field, ...] = ()
    overlaps: tuple[Field, ...] = ()
    name: str = "compressed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexed:
    """Keys of a sparse-attention indexer, one for `ratio` tokens, with its own compressor buffers where it has one."""

    fields: tuple[Field, ...]
    ratio: int = 1
    buffers: tuple[Field, ...] = ()
    overlaps: tuple[Field, ...] = ()
    name: str = "indexed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sliding:
    """Sliding-window attention: the last `window - 1` tokens before a boundary, valid there and nowhere else."""

    window: int
    fields: tuple[Field, ...]
    name: str = "sliding"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrent:
    """Linear attention: a state of fixed size that summarises everything before one boundary."""

    fields: tuple[Field, ...]
    name: str = "recurrent"


Part = Full | Compressed | Indexed | Sliding | Recurrent
HistoryPart = Full | Compressed


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The parts of one transformer layer's cache; a DeepSeek-V4 CSA layer has three (window, compressed, indexed)."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Geometry of one model's prefix state.

    `revision` names the weights (with adapter and rope settings): state of other weights is other state, so it is part
    of the fingerprint, hence of every prefix id and file. Raises `SpecError` when `page_tokens` is not a multiple of
    every compression ratio: a page would then end inside an entry.
    """

    name: str
    revision: str
    page_tokens: int
    layers: tuple[Layer, ...]
    flops_per_token: float = 0.0

    @classmethod
    def from_hf(
        cls,
        config: Any,
        *,
        revision: str = "",
        adapter: str = "",
        page_tokens: int | None = None,
        dtype: Any = None,
    ) -> ModelSpec:
        """The spec of a Hugging Face model, from its configuration (`model.config`).

        `revision` names the weights and `adapter` what was merged into or hung on them; both are a promise.
        `engine.integrations.huggingface.spec_of(model)` reads the weights instead. Without either, state is kept in
        memory only. `page_tokens` defaults to 64, or the next multiple of every compression ratio. Raises `SpecError`
        for a layer type that is not mapped, by its name.
        """
        from engine.model.huggingface import spec_from_config  # it needs this module

        return spec_from_config(config, revision=revision, adapter=adapter, page_tokens=page_tokens, dtype=dtype)

    def __post_init__(self) -> None:
        if self.page_tokens < 1:
            raise SpecError(f"{self.name}: page_tokens is {self.page_tokens}; it must be at least 1")
        if not self.layers:
            raise SpecError(f"{self.name}: a model needs at least one layer")
        for index, part in self.parts():
            _check_part(self, index, part)

    def parts(self) -> Iterator[tuple[int, Part]]:
        for index, layer in enumerate(self.layers):
            for part in layer.parts:
                yield index, part

    @property
    def history_parts(self) -> tuple[tuple[int, HistoryPart], ...]:
        return tuple((i, p) for i, p in self.parts() if isinstance(p, Full | Compressed))

    @property
    def sliding_layers(self) -> int:
        return sum(isinstance(p, Sliding) for _, p in self.parts())

    @property
    def window(self) -> int:
        """The widest sliding window in tokens; 0 when the model has none."""
        return max((p.window for _, p in self.parts() if isinstance(p, Sliding)), default=0)

    @property
    def has_recurrent(self) -> bool:
        return any(isinstance(p, Recurrent) for _, p in self.parts())

    @property
    def has_overlap(self) -> bool:
        return any(isinstance(p, Compressed | Indexed) and bool(p.overlaps) for _, p in self.parts())

    @property
    def replay_tokens(self) -> int:
        """Tokens that rebuild every boundary object exactly at a page boundary, when span objects are kept.

        A token's input to a layer is clean when the windows of every sliding layer below were: each of these takes its
        W - 1 tokens. Then a window needs W - 1 clean tokens, and a compressor's overlap needs `ratio` of them. With n
        layers of one window W this is (n - 1) x (W - 1) + max(W - 1, largest overlap); with different windows the sum
        of W - 1 over the layers. One token fewer is wrong (docs/adr/0003-replay-is-exact-or-not-offered.md).
        """
        below = needed = 0
        for layer in self.layers:
            windows = [part.window - 1 for part in layer.parts if isinstance(part, Sliding)]
            overlaps = [p.ratio for p in layer.parts if isinstance(p, Compressed | Indexed) and p.overlaps]
            if windows or overlaps:
                needed = max(needed, below + max(*windows, *overlaps, 0))
            below += max(windows, default=0)
        return needed

    @property
    def window_replay_tokens(self) -> int:
        """Tokens that rebuild every boundary object approximately: the widest window, and the largest overlap."""
        overlaps = [p.ratio for _, p in self.parts() if isinstance(p, Compressed | Indexed) and p.overlaps]
        return max(self.window, *overlaps, 0)

    @property
    def fingerprint(self) -> str:
        """32 hex digits over the whole description and the byte layout's version."""
        body = json.dumps([LAYOUT_VERSION, _canonical(self)], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(body.encode()).hexdigest()[:32]


def _canonical(spec: ModelSpec) -> dict[str, object]:
    return {
        "name": spec.name,
        "revision": spec.revision,
        "page_tokens": spec.page_tokens,
        "layers": [[{"kind": type(p).__name__, **asdict(p)} for p in layer.parts] for layer in spec.layers],
    }


def _check_part(spec: ModelSpec, index: int, part: Part) -> None:
    where = f"{spec.name}, layer {index}, {part.name}"
    if isinstance(part, Full | Compressed | Indexed) and (part.ratio < 1 or spec.page_tokens % part.ratio):
        raise SpecError(f"{where}: page_tokens {spec.page_tokens} is no multiple of the ratio {part.ratio}")
    if isinstance(part, Sliding) and part.window < 2:
        raise SpecError(f"{where}: a window of {part.window} keeps nothing; it must be at least 2 tokens")
    for field in part.fields:
        if field.dtype not in DTYPE_BYTES:
            raise SpecError(f"{where}: dtype {field.dtype!r} is unknown; known: {', '.join(sorted(DTYPE_BYTES))}")
        if field.width < 1:
            raise SpecError(f"{where}: field {field.name!r} has width {field.width}; it must be at least 1")


def flat(*shape: int) -> int:
    """The width of a field that stores a small matrix flattened."""
    return prod(shape)
