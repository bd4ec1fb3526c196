"""Exact replay: boundary objects rebuilt by running the last tokens again over span objects that are kept.

A replay starts at a page boundary with zeros where windows and overlaps were. Tokens next to the start see those zeros
and come out wrong; each sliding layer carries the error W - 1 tokens further, and no more, because full-history
attention reads the kept entries and never the recomputed ones. After n_swa_layers x (W - 1) tokens nothing of it is
left (docs/adr/0003-replay-is-exact-or-not-offered.md). Shapes are those of an uninterrupted run, so bits are too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from engine.integrations.huggingface.cachemap import CacheMap
from engine.integrations.huggingface.facets import Compressor, Facet, IndexerKeys, KeyValueHistory, Rows
from engine.memory.state import LoadedState


@contextmanager
def replaying(cache_map: CacheMap, cache: Any, state: LoadedState) -> Iterator[None]:
    """While open, `cache` keeps the entries of `state` instead of those that the model computes again."""
    try:
        for index, (layer, facets) in enumerate(zip(cache.layers, cache_map.facets, strict=True)):
            rows = Rows(index, state.entries, cache_map.devices[index])
            for facet in facets:
                _keep(facet, layer, rows)
        yield
    finally:
        for layer in cache.layers:
            for method in ("update", "update_indexer", "update_compressor_states"):
                vars(layer).pop(method, None)


def _keep(facet: Facet, layer: Any, rows: Rows) -> None:
    """Shadow the layer's own update method with one that swaps what it is given for what is kept."""
    if isinstance(facet, KeyValueHistory):
        keys = facet.keys.tensor(rows("full", "keys", "entries"))
        values = facet.values.tensor(rows("full", "values", "entries"))
        layer.update = partial(_update, layer, layer.update, keys, values)
    elif isinstance(facet, IndexerKeys):
        layer.update_indexer = partial(
            _update_indexer, layer, layer.update_indexer, facet.keys.tensor(rows("indexed", "keys", "entries"))
        )
    elif isinstance(facet, Compressor):
        entries = facet.entry.tensor(rows(facet.part_name, "entries", "entries"))
        own = layer.update_compressor_states
        layer.update_compressor_states = partial(_update_compressor, layer, own, facet.name, entries)


def _update(
    layer: Any, own: Any, keys: torch.Tensor, values: torch.Tensor, new_keys: torch.Tensor, *args: Any, **kwargs: Any
) -> Any:
    at, n = layer.keys.shape[-2], new_keys.shape[-2]
    return own(keys[..., at : at + n, :], values[..., at : at + n, :], *args[1:], **kwargs)


def _update_indexer(layer: Any, own: Any, keys: torch.Tensor, new_keys: torch.Tensor) -> Any:
    at = layer.indexer_keys.shape[1]
    return own(keys[:, at : at + new_keys.shape[1]])


def _update_compressor(layer: Any, own: Any, name: str, entries: torch.Tensor, asked: str, new: torch.Tensor) -> Any:
    at = layer.entry_count[name]
    return own(asked, entries[:, at : at + new.shape[1]] if asked == name else new)
