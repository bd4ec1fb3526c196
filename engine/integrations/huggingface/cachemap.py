"""Between a whole cache object of transformers and the tensors the engine keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

from engine.errors import ModelMismatch, StateMismatch, UnknownCacheLayer
from engine.integrations.huggingface.facets import Compressor, Facet, Piece, Rows
from engine.integrations.huggingface.layers import facets_of, measures_of
from engine.memory.state import LoadedState
from engine.model.huggingface import text_config
from engine.model.objects import SegmentKey
from engine.model.spec import Layer


@dataclass(frozen=True, slots=True)
class CacheMap:
    """The facets of every layer of one model, measured once: takes state out, and puts it into a new cache."""

    config: Any
    devices: tuple[torch.device, ...]  # a layer's own: a model may be spread over several
    facets: tuple[tuple[Facet, ...], ...]

    @classmethod
    def measure(cls, model: Any) -> CacheMap:
        """Run the model over a few tokens and read what its cache then holds.

        Raises `UnknownCacheLayer` for a cache layer class that is not mapped, before anything runs.
        """
        refuse_other_models(model)
        config = text_config(model.config)
        cache = new_cache(model.config)
        for index, layer in enumerate(cache.layers):
            measures_of(layer, index)
        # One entry of the compressors that overlap, and one token more: every kind of state has then been written.
        ratios = [layer.compress_rate for layer in cache.layers if hasattr(layer, "overlap_kv")]
        ids = torch.zeros((1, max([1, *ratios]) + 1), dtype=torch.long, device=model.device)
        try:
            with torch.no_grad():
                model(input_ids=ids, past_key_values=cache, use_cache=True)
        except ValueError as error:
            raise UnknownCacheLayer(f"{type(model).__name__} does not run on a plain cache object: {error}") from error
        latent = [bool(getattr(layer, "kv_lora_rank", None)) for layer in config.per_layer_config]
        facets = tuple(facets_of(layer, index, latent=latent[index]) for index, layer in enumerate(cache.layers))
        found = cls(model.config, tuple(_device_of(layer, model.device) for layer in cache.layers), facets)
        found._prove(model, cache, ids.shape[1])
        return found

    def _prove(self, model: Any, cache: Any, n_tokens: int) -> None:
        """Take the state out, run something else, put it into a new cache: the next token must say the same bits.

        Raises `UnknownCacheLayer` for a model that ignores its cache, or keeps state beside it.
        """
        name = type(model).__name__
        try:
            state = LoadedState(
                boundary_tokens=n_tokens,
                replay_tokens=0,
                entries=self.entries(cache, 0, n_tokens),
                boundary=self.boundary(cache, n_tokens),
            )
            parts = [part for layer in self.layers for part in layer.parts]
            if not parts or not all(part.fields for part in parts):
                raise StateMismatch("a layer of it was never written")
            other, step = torch.full((1, n_tokens), 2), torch.ones((1, 1), dtype=torch.long)
            with torch.no_grad():
                model(input_ids=other.to(model.device), past_key_values=new_cache(self.config), use_cache=True)
                said = [
                    model(input_ids=step.to(model.device), past_key_values=held, use_cache=True).logits
                    for held in (self.filled(state), cache)
                ]
        except StateMismatch as error:
            raise UnknownCacheLayer(
                f"{name} does not use the cache object it is given as others do: {error}"
            ) from error
        if not torch.equal(said[0], said[1]):
            raise UnknownCacheLayer(f"{name} keeps state outside its cache object, which no prefix cache can hold")

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers of a `ModelSpec`."""
        return tuple(Layer(parts=tuple(facet.part for facet in facets)) for facets in self.facets)

    # -- out --------------------------------------------------------------------------------------------------------

    def entries(self, cache: Any, start: int, end: int) -> dict[SegmentKey, torch.Tensor]:
        """Span objects of [start, end) of a cache that has seen exactly `end` tokens."""
        return _keyed(
            (index, facet.entries(layer, start, end))
            for index, layer, facets in self._layers(cache)
            for facet in facets
        )

    def boundary(self, cache: Any, position: int) -> dict[SegmentKey, torch.Tensor]:
        """Boundary objects of a cache that has seen exactly `position` tokens. Raises `StateMismatch` elsewhere."""
        return _keyed(
            (index, facet.boundary(layer, position)) for index, layer, facets in self._layers(cache) for facet in facets
        )

    def _layers(self, cache: Any) -> Any:
        if len(cache.layers) != len(self.facets):
            raise StateMismatch(f"the cache has {len(cache.layers)} layers, the model {len(self.facets)}")
        return zip(range(len(self.facets)), cache.layers, self.facets, strict=True)

    # -- in ---------------------------------------------------------------------------------------------------------

    def filled(self, state: LoadedState) -> Any:
        """A new cache that has seen exactly `state.boundary_tokens` tokens."""
        cache = new_cache(self.config)
        tensors = {**state.entries, **state.boundary}
        for index, layer, facets in self._layers(cache):
            for facet in facets:
                facet.fill(layer, state.boundary_tokens, Rows(index, tensors, self.devices[index]))
        return cache

    def filled_for_replay(self, state: LoadedState, position: int) -> Any:
        """A new cache at `position` with span objects and without boundary objects, which are zeros: see replay.py."""
        cache = new_cache(self.config)
        for index, layer, facets in self._layers(cache):
            for facet in facets:
                facet.fill_for_replay(layer, position, Rows(index, state.entries, self.devices[index]))
        return cache

    @property
    def ratios(self) -> tuple[int, ...]:
        return tuple(f.ratio for facets in self.facets for f in facets if isinstance(f, Compressor))


def refuse_other_models(model: Any) -> None:
    """Raises `ModelMismatch` for what does not generate text token by token from token ids."""
    if isinstance(model, str) or not hasattr(model, "config"):
        raise ModelMismatch(
            f"a model is wanted, not {type(model).__name__}: load it first, e.g. with AutoModelForCausalLM"
        )
    name, config = type(model).__name__, model.config
    if getattr(config, "is_encoder_decoder", False):
        raise ModelMismatch(f"{name} is an encoder and a decoder: what it says depends on more than the tokens before")
    if not (hasattr(model, "can_generate") and model.can_generate()):
        raise ModelMismatch(f"{name} cannot generate; attach a causal language model, e.g. one of AutoModelForCausalLM")


def new_cache(config: Any) -> Any:
    """An empty cache with the layer classes that the model asks for. Its modelling module must be imported by now."""
    try:
        return DynamicCache(config=config)
    except KeyError as error:
        raise UnknownCacheLayer(
            f"transformers has no cache layer class for layers of type {error}; import the model's module first, "
            "or the type is not supported by this version"
        ) from error


def _device_of(layer: Any, default: torch.device) -> torch.device:
    device = getattr(layer, "device", None)
    return torch.device(device) if device is not None else default


def _keyed(pieces: Any) -> dict[SegmentKey, torch.Tensor]:
    found: dict[SegmentKey, torch.Tensor] = {}
    for index, group in pieces:
        piece: Piece
        for piece in group:
            found[SegmentKey(index, piece.part, piece.field, piece.section)] = piece.rows
    return found
