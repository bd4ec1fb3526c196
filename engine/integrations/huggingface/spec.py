"""The spec of a model in hand, and the proof that an engine was built for it."""

from __future__ import annotations

import sys
import threading
from typing import Any
from weakref import WeakKeyDictionary

from engine.engine import CacheEngine
from engine.errors import ConfigError, ModelMismatch
from engine.integrations.huggingface.cachemap import CacheMap
from engine.integrations.huggingface.weights import compute_identity, weights_revision
from engine.model.huggingface import UNNAMED, build_spec, config_digest, text_config
from engine.model.spec import Layer, ModelSpec

_bound: WeakKeyDictionary[CacheEngine, str] = WeakKeyDictionary()
_bound_lock = threading.Lock()


def spec_of(model: Any, *, page_tokens: int | None = None) -> ModelSpec:
    """The `ModelSpec` of a model: geometry measured on a run of a few tokens, weights read in full.

    Its fingerprint moves with any weight, buffer, adapter, dtype, setting of the configuration (rope, window, routing,
    attention implementation), the version of torch and the kind of device. Raises `UnknownCacheLayer`, `SpecError`.
    """
    cache_map = CacheMap.measure(model)
    parameters = sum(p.numel() for p in model.parameters())
    return build_spec(
        text_config(model.config),
        cache_map.layers,
        revision=f"{weights_revision(model)}/{compute_identity(model)}",
        page_tokens=page_tokens,
        flops_per_token=2.0 * parameters,
    )


def prove_match(model: Any, cache_map: CacheMap, engine: CacheEngine) -> str:
    """The digest of the model's weights, once it is proven that `engine` keeps state of this model and no other.

    Raises `ModelMismatch` for other weights, another configuration or layout; `ConfigError` for an engine that would
    write files whose weights have no name, or keeps no bytes.
    """
    if not engine.config.materialise:
        raise ConfigError("this engine was built with materialise=False and keeps no bytes; a real model needs them")
    spec, weights = engine.spec, weights_revision(model)
    digest = config_digest(text_config(model.config))
    if not spec.revision.endswith(f"/{digest}"):
        raise ModelMismatch(
            f"the engine's spec {spec.name!r} was made from another configuration than this model's ({digest}): "
            "a size, rope, routing or attention setting differs; build the engine with spec_of(model)"
        )
    if spec.revision.startswith("weights-") and not spec.revision.startswith(f"{weights}/{compute_identity(model)}/"):
        raise ModelMismatch(
            "the engine's spec names other weights, another torch or another kind of device than this model's; "
            "build the engine with spec_of(model)"
        )
    if difference := _first_difference(spec.layers, cache_map.layers):
        raise ModelMismatch(f"{difference}; build the engine with spec_of(model)")
    if spec.sliding_layers and engine.config.replay and not _masks_windows(model):
        raise ConfigError(
            f"{type(model).__name__} keeps windows and does not mask by them, so replays would be wrong: build the "
            "engine with EngineConfig(replay=False)"
        )
    if spec.revision.startswith(UNNAMED) and engine.config.disk_bytes:
        raise ConfigError(
            "the engine writes files, and its spec does not name the weights they belong to: build it with "
            "spec_of(model), or with ModelSpec.from_hf(config, revision=...)"
        )
    _bind(engine, weights)
    return weights


def _bind(engine: CacheEngine, weights: str) -> None:
    """One engine keeps state of one set of weights: whoever attaches first decides."""
    with _bound_lock:
        held = _bound.setdefault(engine, weights)
    if held != weights:
        raise ModelMismatch("another model with other weights is attached to this engine; build one engine a model")


def _masks_windows(model: Any) -> bool:
    """The model's module makes masks of the width of its windows. Some keep a window and mask causally only: a token
    then sees all of its call, and the rule of exact replays does not hold."""
    module = vars(sys.modules[type(model).__module__])
    makers = ("create_sliding_window_causal_mask", "create_chunked_causal_mask", "create_masks_for_generate")
    return any(name in module for name in makers)


def _first_difference(promised: tuple[Layer, ...], measured: tuple[Layer, ...]) -> str:
    if len(promised) != len(measured):
        return f"the engine's spec has {len(promised)} layers, the model {len(measured)}"
    for index, (one, other) in enumerate(zip(promised, measured, strict=True)):
        if one != other:
            return f"layer {index}: the engine's spec has {one.parts}, the model's cache {other.parts}"
    return ""
