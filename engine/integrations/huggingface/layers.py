"""The explicit map from the cache layer classes of transformers to facets. A class that is not here is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.errors import UnknownCacheLayer
from engine.integrations.huggingface.facets import (
    Compressor,
    Facet,
    IndexerKeys,
    KeyValueHistory,
    KeyValueWindow,
    LatentWindow,
    LinearState,
)

Measure = Callable[[Any, bool], Facet | None]


def _compressor(name: str) -> Measure:
    return lambda layer, _: Compressor.measure(layer, name)


# By qualified name: two of these classes exist only once their modelling module is imported, and a subclass that a
# model brings along may keep more than its parent does.
CACHE_LAYERS: dict[str, tuple[Measure, ...]] = {
    "transformers.cache_utils.DynamicLayer": (KeyValueHistory.measure,),
    "transformers.cache_utils.DynamicSlidingWindowLayer": (KeyValueWindow.measure,),
    "transformers.cache_utils.DynamicIndexedLayer": (KeyValueHistory.measure, IndexerKeys.measure),
    "transformers.cache_utils.LinearAttentionLayer": (LinearState.measure,),
    "transformers.cache_utils.LinearAttentionAndFullAttentionLayer": (LinearState.measure, KeyValueHistory.measure),
    "transformers.cache_utils.LinearAttentionAndSlidingWindowAttentionLayer": (
        LinearState.measure,
        KeyValueWindow.measure,
    ),
    "transformers.cache_utils.DummyLayer": (),
    "transformers.models.deepseek_v4.modeling_deepseek_v4.DeepseekV4HCACache": (
        LatentWindow.measure,
        _compressor("compressor"),
    ),
    "transformers.models.deepseek_v4.modeling_deepseek_v4.DeepseekV4CSACache": (
        LatentWindow.measure,
        _compressor("compressor"),
        _compressor("indexer"),
    ),
}


def facets_of(layer: Any, index: int, *, latent: bool) -> tuple[Facet, ...]:
    """The facets of a layer that has seen some tokens. Raises `UnknownCacheLayer` for a class that is not mapped."""
    found = (measure(layer, latent) for measure in measures_of(layer, index))
    return tuple(facet for facet in found if facet is not None)


def measures_of(layer: Any, index: int) -> tuple[Measure, ...]:
    """Raises `UnknownCacheLayer` with the name of a class that is not mapped."""
    name = f"{type(layer).__module__}.{type(layer).__qualname__}"
    if name not in CACHE_LAYERS:
        known = ", ".join(sorted(known.rsplit(".", 1)[1] for known in CACHE_LAYERS))
        raise UnknownCacheLayer(
            f"cache layer {index} is a {name}; kvdeck maps {known}. What another class keeps is not guessed: "
            "serve this model without a prefix cache, or add the class to engine/integrations/huggingface/layers.py"
        )
    return CACHE_LAYERS[name]
