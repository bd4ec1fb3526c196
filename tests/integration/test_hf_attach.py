"""Attaching a model: what is refused before anything is kept, and which model a spec names."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from huggingface_support import MODELS, tiny_model
from transformers import cache_utils

from engine import CacheEngine, EngineConfig, ModelSpec
from engine.errors import ConfigError, ModelMismatch, SpecError, UnknownCacheLayer
from engine.integrations.huggingface import PrefixCache, spec_of
from engine.integrations.synthetic import use_one_thread


@pytest.fixture
def make_engine() -> Iterator[Callable[..., CacheEngine]]:
    use_one_thread()
    made: list[CacheEngine] = []

    def make(spec: ModelSpec, **config: Any) -> CacheEngine:
        made.append(CacheEngine(spec, EngineConfig(**{"gpu_bytes": 8 << 20, **config})))
        return made[-1]

    yield make
    for engine in made:
        assert engine.snapshot() == []
        engine.close()


# -- refused at construction ------------------------------------------------------------------------------------------


def test_a_subclass_of_a_mapped_cache_layer_is_refused_by_its_name(monkeypatch, make_engine) -> None:
    """It may keep more than its parent does; nothing is guessed, and nothing is run."""
    engine = make_engine(spec_of(tiny_model("gemma3")))

    class RingOfMyOwn(cache_utils.DynamicSlidingWindowLayer):
        pass

    monkeypatch.setitem(cache_utils.DYNAMIC_LAYER_TYPE_MAPPING, "sliding_attention", RingOfMyOwn)
    model = tiny_model("gemma3")
    monkeypatch.setattr(model, "forward", None)
    for attach in (lambda: PrefixCache(model, engine), lambda: spec_of(model)):
        with pytest.raises(UnknownCacheLayer, match=r"cache layer 0 is a .*RingOfMyOwn"):
            attach()


@pytest.mark.parametrize(
    "layer", [cache_utils.StaticLayer, cache_utils.Fp8QuantizedLayer, cache_utils.StaticSlidingWindowLayer]
)
def test_static_and_quantized_cache_layers_are_refused_by_their_names(monkeypatch, layer) -> None:
    def make(*args: Any, **kwargs: Any) -> Any:
        return layer.__new__(layer)

    monkeypatch.setitem(cache_utils.DYNAMIC_LAYER_TYPE_MAPPING, "full_attention", make)
    with pytest.raises(UnknownCacheLayer, match=layer.__name__):
        spec_of(tiny_model("llama"))


def test_a_layer_type_without_a_cache_class_is_refused(monkeypatch) -> None:
    monkeypatch.delitem(cache_utils.DYNAMIC_LAYER_TYPE_MAPPING, "full_attention")
    with pytest.raises(UnknownCacheLayer, match="full_attention"):
        spec_of(tiny_model("llama"))


def changed(name: str, **settings: Any) -> Any:
    """The model `name` with other settings and, as far as they fit, the same weights."""
    model = tiny_model(name)
    config = copy.deepcopy(model.config)
    for key, value in settings.items():
        setattr(config, key, value)
    found = type(model)(config).eval()
    found.load_state_dict(model.state_dict())
    return found.requires_grad_(False)


def rope_of(model: Any, theta: float) -> dict[str, Any]:
    found = copy.deepcopy(model.config.rope_parameters)
    for rope in (found, *(value for value in found.values() if isinstance(value, dict))):
        if "rope_theta" in rope:
            rope["rope_theta"] = theta
    return dict(found)


OTHER_MODELS: dict[str, Callable[[], Any]] = {
    "weights": lambda: tiny_model("gemma3", seed=2),
    "dtype": lambda: tiny_model("gemma3", dtype=torch.bfloat16),
    "window": lambda: changed("gemma3", sliding_window=8),
    "rope": lambda: changed("gemma3", rope_parameters=rope_of(tiny_model("gemma3"), 5_000.0)),
    "attention implementation": lambda: changed("gemma3", _attn_implementation="sdpa"),
    "architecture": lambda: tiny_model("llama"),
}


@pytest.mark.parametrize("other", OTHER_MODELS)
def test_an_engine_that_was_built_for_another_model_is_refused(make_engine, other) -> None:
    engine = make_engine(spec_of(tiny_model("gemma3")))
    with pytest.raises(ModelMismatch, match=r"spec_of\(model\)"):
        PrefixCache(OTHER_MODELS[other](), engine)


@pytest.mark.parametrize("other", ["window", "rope", "attention implementation", "dtype", "architecture"])
def test_a_named_revision_is_a_promise_about_weights_and_nothing_else(make_engine, other) -> None:
    engine = make_engine(ModelSpec.from_hf(tiny_model("gemma3").config, revision="v1"))
    with pytest.raises(ModelMismatch):
        PrefixCache(OTHER_MODELS[other](), engine)
    PrefixCache(tiny_model("gemma3"), engine)


def test_weights_without_a_name_are_refused_with_a_disk_tier_and_taken_without(make_engine, tmp_path) -> None:
    model = tiny_model("gemma3")
    spec = ModelSpec.from_hf(model.config)
    with pytest.raises(ConfigError, match="does not name the weights"):
        PrefixCache(model, make_engine(spec, disk_bytes=8 << 20, data_dir=tmp_path))
    PrefixCache(model, make_engine(spec))
    PrefixCache(model, make_engine(ModelSpec.from_hf(model.config, revision="v1")))


@pytest.mark.parametrize("revision", ["", "v1"])
def test_an_engine_keeps_state_of_the_first_model_that_attaches(make_engine, revision) -> None:
    """Without weights in the spec nothing but this tells two models apart."""
    model = tiny_model("gemma3")
    engine = make_engine(ModelSpec.from_hf(model.config, revision=revision))
    PrefixCache(model, engine)
    PrefixCache(tiny_model("gemma3"), engine)  # the same weights in another object are the same model
    with pytest.raises(ModelMismatch, match="another model with other weights"):
        PrefixCache(tiny_model("gemma3", seed=2), engine)


def test_an_engine_that_keeps_no_bytes_is_refused(make_engine) -> None:
    model = tiny_model("gemma3")
    with pytest.raises(ConfigError, match="materialise=False"):
        PrefixCache(model, make_engine(spec_of(model), materialise=False))


def test_a_model_in_training_mode_is_refused(make_engine) -> None:
    model = tiny_model("gemma3")
    engine = make_engine(spec_of(model))
    model.train()
    with pytest.raises(ModelMismatch, match=r"model\.eval\(\)"):
        PrefixCache(model, engine)


def test_dynamic_rope_is_refused(make_engine) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
    model = changed("llama", rope_parameters=rope)
    for make in (lambda: spec_of(model), lambda: ModelSpec.from_hf(model.config, revision="v1")):
        with pytest.raises(SpecError, match="'dynamic'"):
            make()


@pytest.mark.parametrize("chunk_tokens", [0, -64, 1, 32, 65, 100])
def test_a_chunk_that_is_no_multiple_of_the_page_is_refused(make_engine, chunk_tokens) -> None:
    model = tiny_model("gemma3")
    engine = make_engine(spec_of(model))
    with pytest.raises(ConfigError, match=f"chunk_tokens is {chunk_tokens}; .* 64 tokens"):
        PrefixCache(model, engine, chunk_tokens=chunk_tokens)


# -- which model a spec names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_what_a_configuration_promises_is_what_the_model_keeps(make_engine, name, dtype) -> None:
    model = tiny_model(name, dtype=dtype)
    promised = ModelSpec.from_hf(model.config, revision="v1", dtype=dtype)
    measured = spec_of(model)
    if (name, dtype) == ("mixed", torch.bfloat16):
        # Its indexer keys stay float32 whatever the model's dtype, which no configuration says.
        with pytest.raises(ModelMismatch, match="layer 2"):
            PrefixCache(model, make_engine(promised))
    else:
        assert promised.layers == measured.layers
        assert promised.page_tokens == measured.page_tokens
        PrefixCache(model, make_engine(promised))
    PrefixCache(model, make_engine(measured))


def one_weight(model: Any) -> Any:
    next(p for n, p in model.named_parameters() if n.endswith("o_proj.weight")).view(-1)[0] += 1e-3
    return model


def a_buffer(model: Any) -> Any:
    model.register_buffer("extra", torch.ones(1))
    return model


def an_adapter(model: Any) -> Any:
    attention = model.model.layers[0].self_attn
    attention.q_proj.register_parameter("lora_A", torch.nn.Parameter(torch.zeros(2, 64), requires_grad=False))
    return model


FINGERPRINTS: dict[str, Callable[[], ModelSpec]] = {
    "as it is": lambda: spec_of(tiny_model("gemma3")),
    **{name: lambda make=make: spec_of(make()) for name, make in OTHER_MODELS.items()},
    "one weight": lambda: spec_of(one_weight(tiny_model("gemma3"))),
    "a buffer": lambda: spec_of(a_buffer(tiny_model("gemma3"))),
    "adapter": lambda: spec_of(an_adapter(tiny_model("gemma3"))),
    "page size": lambda: spec_of(tiny_model("gemma3"), page_tokens=128),
    "named": lambda: ModelSpec.from_hf(tiny_model("gemma3").config, revision="v1"),
    "named otherwise": lambda: ModelSpec.from_hf(tiny_model("gemma3").config, revision="v2"),
    "named, adapter": lambda: ModelSpec.from_hf(tiny_model("gemma3").config, revision="v1", adapter="lora"),
    "named, dtype": lambda: ModelSpec.from_hf(tiny_model("gemma3").config, revision="v1", dtype=torch.bfloat16),
}


def test_no_two_models_have_one_fingerprint_and_one_model_has_no_two() -> None:
    found = {name: make().fingerprint for name, make in FINGERPRINTS.items()}
    assert len(set(found.values())) == len(found)
    assert found == {name: make().fingerprint for name, make in FINGERPRINTS.items()}
