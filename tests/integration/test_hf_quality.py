"""A lossy codec is measured on the model that will read it: logits over coded KV against logits over native KV."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine import CacheEngine, EngineConfig
from engine.commands.ticket import CommandRequest
from engine.integrations.huggingface import PrefixCache, spec_of
from tests.huggingface_support import call, page_cuts, some_tokens, tiny_model, uninterrupted

TOKENS = some_tokens(601)


def compress(engine: CacheEngine, codec: str) -> dict[str, Any]:
    ids = [row["prefix.id"] for row in engine.snapshot()]
    request = CommandRequest(id="c", kind="compress", arguments={"prefix_ids": ids, "codec": codec})
    return engine.execute(request).outcome


def coded(name: str, codec: str, **config: Any) -> tuple[Any, CacheEngine, PrefixCache, dict[str, Any]]:
    """A model whose prompt was computed, kept, and asked to be coded."""
    model = tiny_model(name)
    engine = CacheEngine(spec_of(model), EngineConfig(gpu_bytes=32 << 20, **config))
    cache = PrefixCache(model, engine)
    cache.prefill(TOKENS).release()
    return model, engine, cache, compress(engine, codec)


@pytest.mark.parametrize("name", ["gemma3", "llama", "qwen3_next"])
def test_fewer_bits_cost_more_and_the_cost_is_recorded_with_the_prefix(name):
    found = []
    for codec in ("int8", "fp8", "int4"):
        _, engine, _, outcome = coded(name, codec)
        with engine:
            row = engine.snapshot()[0]
            assert (outcome["compressed"], row["codec"]) == (1, codec)
            found.append((row["codec.logit_error"], row["codec.kl"]))
    assert found[0][0] < found[1][0] < found[2][0]
    assert found[0][1] < found[1][1] < found[2][1]


def test_what_is_recorded_is_what_a_reader_of_the_coded_prefix_gets():
    """The judge's figure bounds the error of the very next request, measured here without it."""
    model, engine, cache, _ = coded("llama", "int8")
    with engine, cache.prefill(TOKENS) as prefill:
        assert (prefill.usable_tokens, prefill.explanation.codec) == (600, "int8")
        judged = engine.snapshot()[0]["codec.logit_error"]
        # The judge continued with the prefix's last 32 tokens again; so do we.
        own, truth = prefill.past_key_values, uninterrupted(model, TOKENS[:600], page_cuts(600, 64))[0]
        ids = torch.from_numpy(TOKENS[568:600].astype("int64")).unsqueeze(0)
        with torch.no_grad():
            over_coded = model(input_ids=ids, past_key_values=own, use_cache=True).logits
            over_native = model(input_ids=ids, past_key_values=truth, use_cache=True).logits
        assert float((over_coded.double() - over_native.double()).abs().max()) == pytest.approx(judged, rel=1e-9)


def test_a_bound_keeps_a_prefix_native_and_says_why():
    model, engine, cache, outcome = coded("llama", "int4", max_logit_error=0.5)
    with engine, cache.prefill(TOKENS) as prefill:
        assert (outcome["compressed"], outcome["refused"][0]["reason"]) == (0, "quality_bound")
        assert (prefill.usable_tokens, prefill.explanation.codec) == (600, "native")
        got = call(model, TOKENS[600:], prefill.past_key_values, 600)
        assert torch.equal(got, uninterrupted(model, TOKENS, page_cuts(600, 64))[1][-1])


def test_natively_compressed_layers_are_coded_only_when_asked():
    _, engine, _, outcome = coded("deepseek_v4", "int8")
    with engine:
        assert outcome["refused"][0]["reason"] == "codec_refused"
    _, engine, _, outcome = coded("deepseek_v4", "int8", code_compressed=True)
    with engine:
        assert (outcome["compressed"], engine.snapshot()[0]["codec"]) == (1, "int8")


def test_what_follows_a_lossy_hit_is_not_kept():
    _, engine, cache, _ = coded("gemma3", "int8")
    with engine:
        before = len(engine.snapshot())
        longer = cache.generate([*TOKENS.tolist(), *some_tokens(200, 9).tolist()], max_new_tokens=2, do_sample=False)
        assert (longer.usable_tokens, longer.commit.reason, len(engine.snapshot())) == (600, "lossy_basis", before)
