"""What `generate`, `prefill` and `stream` of an attached model take, what they refuse, and how a stream ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from huggingface_support import some_tokens
from ward import PAGE, Ward

from engine.errors import StateMismatch
from engine.integrations.synthetic import use_one_thread

TOKENS = some_tokens(3 * PAGE + 10)


@pytest.fixture
def ward() -> Iterator[Ward]:
    use_one_thread()
    ward = Ward("gemma3")
    yield ward
    ward.engine.close()


REFUSED: dict[str, dict[str, Any]] = {
    "num_beams": {"num_beams": 2},
    "num_return_sequences": {"num_return_sequences": 2, "do_sample": True},
    "assistant_model": {"assistant_model": object()},
    "cache_implementation": {"cache_implementation": "static"},
    "prompt_lookup_num_tokens": {"prompt_lookup_num_tokens": 3},
    "pixel_values": {"pixel_values": torch.zeros(1, 3, 8, 8)},
    "inputs_embeds": {"inputs_embeds": torch.zeros(1, 4, 64)},
    "attention_mask": {"attention_mask": torch.ones(1, 4)},
    "past_key_values": {"past_key_values": None},
    "input_ids": {"input_ids": [[1]]},
    "use_cache": {"use_cache": False},
}


def nothing_happened(ward: Ward) -> None:
    assert ward.records() == []
    assert ward.engine.counters().requests == 0
    ward.assert_clean()


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_decode_no_plain_sequence_are_refused(ward, name) -> None:
    with pytest.raises(StateMismatch, match=name):
        ward.cache.generate(TOKENS, max_new_tokens=2, **REFUSED[name])
    nothing_happened(ward)


@pytest.mark.parametrize("n", [0, -3])
def test_no_new_tokens_are_refused_before_anything_is_computed(ward, n) -> None:
    with pytest.raises(StateMismatch, match=f"max_new_tokens is {n}; generate at least 1"):
        ward.cache.generate(TOKENS, max_new_tokens=n)
    config = transformers.GenerationConfig(max_new_tokens=2)
    config.max_new_tokens = n
    with pytest.raises(StateMismatch, match="max_new_tokens"):
        ward.cache.generate(TOKENS, generation_config=config)
    nothing_happened(ward)


@pytest.mark.parametrize("call", ["generate", "prefill"])
def test_an_id_that_the_model_has_no_embedding_for_is_refused(ward, call) -> None:
    size = ward.cache.model.get_input_embeddings().num_embeddings
    prompt = TOKENS.copy()
    prompt[7] = size
    arguments = {"max_new_tokens": 2} if call == "generate" else {}
    with pytest.raises(StateMismatch, match=f"token id {size} at 7 is none of the model's {size}"):
        getattr(ward.cache, call)(prompt, **arguments)
    nothing_happened(ward)


@pytest.mark.parametrize("name", ["num_beams", "num_return_sequences", "cache_implementation"])
def test_a_generation_config_is_refused_for_the_same(ward, name) -> None:
    config = transformers.GenerationConfig(max_new_tokens=2, **REFUSED[name])
    with pytest.raises(StateMismatch, match=name):
        ward.cache.generate(TOKENS, generation_config=config)
    nothing_happened(ward)


PROMPTS: dict[str, Any] = {
    "none": [],
    "an empty array": np.empty(0, dtype=np.int32),
    "a batch": [[3, 4], [5, 6]],
    "a batch tensor": torch.ones((2, 5), dtype=torch.long),
    "a cube": np.ones((1, 1, 4), dtype=np.int64),
    "a number": 7,
    "text": "hello",
    "negative ids": [3, -1],
    "ids past int32": [3, 1 << 31],
    "float ids": [3.0, 4.0],
    "a float tensor": torch.ones(4),
    "booleans": [True, False],
    "None": None,
}


@pytest.mark.parametrize("what", PROMPTS)
@pytest.mark.parametrize("call", ["generate", "prefill"])
def test_what_is_no_prompt_is_refused(ward, what, call) -> None:
    arguments = {"max_new_tokens": 2} if call == "generate" else {}
    with pytest.raises(StateMismatch, match="token ids"):
        getattr(ward.cache, call)(PROMPTS[what], **arguments)
    nothing_happened(ward)


@pytest.mark.parametrize(
    "prompt",
    [TOKENS.tolist(), TOKENS.astype(np.int64), torch.from_numpy(TOKENS), torch.from_numpy(TOKENS).unsqueeze(0)],
    ids=["list", "int64", "[n]", "[1, n]"],
)
def test_a_prompt_may_come_in_any_shape_that_is_one_sequence(ward, prompt) -> None:
    assert np.array_equal(ward.cache.generate(prompt, max_new_tokens=2, do_sample=False).sequence[:-2], TOKENS)
    ward.assert_clean()


def test_a_model_that_fails_leaves_no_lease_and_no_pages(ward, monkeypatch) -> None:
    ward.serve(TOKENS)
    held = ward.ids()

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(ward.model, "forward", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            ward.prefill(np.concatenate([TOKENS, some_tokens(80, seed=5)]))
        with pytest.raises(RuntimeError, match="out of memory"):
            ward.cache.generate(TOKENS, max_new_tokens=2)
    assert ward.ids() == held
    ward.assert_clean()
    assert ward.serve(TOKENS).usable_tokens == len(TOKENS) - 1


# -- streams ----------------------------------------------------------------------------------------------------------


def test_a_stream_gives_the_tokens_of_generate_in_order(ward) -> None:
    wanted = ward.cache.generate(TOKENS, max_new_tokens=12, do_sample=False, namespace="other").new_tokens
    stream = ward.cache.stream(TOKENS, max_new_tokens=12, do_sample=False)
    assert list(stream) == wanted.tolist()
    assert np.array_equal(stream.result.new_tokens, wanted)
    assert stream.result.commit.outcome == "admitted"
    ward.assert_clean()


def test_a_reader_that_leaves_ends_the_models_thread_and_the_lease(ward) -> None:
    stream = ward.cache.stream(TOKENS, max_new_tokens=2000, do_sample=False, eos_token_id=None)
    for _, token in zip(range(3), stream, strict=False):
        assert 0 <= token < ward.model.config.vocab_size
    stream.close()
    assert not any(t.name == "kvdeck-stream" for t in threading.enumerate())
    with pytest.raises(StateMismatch, match="closed before its end"):
        _ = stream.result
    ward.assert_clean()
    assert ward.serve(TOKENS).usable_tokens == len(TOKENS) - 1  # the prompt was kept before the first token came out


def test_breaking_out_of_the_loop_is_enough(ward) -> None:
    for _ in ward.cache.stream(TOKENS, max_new_tokens=2000, do_sample=False, eos_token_id=None):
        break
    assert not any(t.name == "kvdeck-stream" for t in threading.enumerate())
    ward.assert_clean()


def test_an_exception_in_the_model_reaches_the_reader(ward, monkeypatch) -> None:
    calls = []
    forward = ward.model.forward

    def fail_later(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) > 8:
            raise RuntimeError("the device fell off")
        return forward(*args, **kwargs)

    monkeypatch.setattr(ward.model, "forward", fail_later)
    stream = ward.cache.stream(TOKENS, max_new_tokens=50, do_sample=False, eos_token_id=None)
    got: list[int] = []
    with pytest.raises(RuntimeError, match="fell off"):
        got.extend(stream)
    with pytest.raises(RuntimeError, match="fell off"):
        _ = stream.result
    ward.assert_clean()


def test_a_refused_argument_reaches_the_reader_of_a_stream(ward) -> None:
    with pytest.raises(StateMismatch, match="num_beams"):
        list(ward.cache.stream(TOKENS, num_beams=3))
    nothing_happened(ward)
