"""A conversation on a hybrid model with a prefix cache: the same tokens for a fraction of the prefill.

    python examples/attach_model.py                         # a small Gemma-3-shaped model with random weights
    python examples/attach_model.py --model /path/to/model  # a folder as save_pretrained or a download left it
    python examples/attach_model.py --deck http://127.0.0.1:8410 --token TOKEN   # and watch it on a running deck

Nothing is downloaded. The last turn is asked once more of an engine that reuses nothing, to compare times and logits.
"""

from __future__ import annotations

import argparse
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine import CacheEngine, EngineConfig
from engine.integrations.huggingface import Generation, PrefixCache, spec_of

SYSTEM_TOKENS, TURN_TOKENS, ANSWER_TOKENS, TURNS = 1500, 60, 16, 4


def random_model() -> Any:
    """Five sliding layers to one full layer, as in Gemma 3; 20 M parameters."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=4096, hidden_size=384, intermediate_size=1536, num_hidden_layers=6, num_attention_heads=6,
        num_key_value_heads=2, head_dim=64, sliding_window=128, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        layer_types=["sliding_attention"] * 5 + ["full_attention"],
    )  # fmt: skip
    return Gemma3ForCausalLM(config).eval()


def stored_model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()


def opened(model: Any, a: argparse.Namespace) -> AbstractContextManager[CacheEngine]:
    """An engine for the model; on a deck where one is named."""
    spec, settings = spec_of(model), EngineConfig(engine_id=a.engine_id, gpu_bytes=256 << 20)
    if not a.deck:
        return CacheEngine(spec, settings)
    from controlplane.host.deck import engine_on_deck

    return engine_on_deck(spec, settings, url=a.deck, token=a.token)


def said(model: Any, rng: np.random.Generator, n: int) -> list[int]:
    """What a user says: random tokens, as the model has no tokenizer here."""
    return rng.integers(3, model.config.get_text_config().vocab_size, n).tolist()


def turn(cache: PrefixCache, tokens: list[int]) -> tuple[Generation, float]:
    """One answer, and the milliseconds to its first token."""
    first: list[float] = []
    start = time.perf_counter()
    done = cache.generate(
        tokens,
        max_new_tokens=ANSWER_TOKENS,
        do_sample=False,
        output_logits=True,
        streamer=lambda _: first.append(time.perf_counter()),
    )
    return done, (first[0] - start) * 1e3


def largest_difference(one: Generation, other: Generation) -> float:
    pairs = zip(one.output.logits, other.output.logits, strict=False)
    return max(float((a - b).abs().max()) for a, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="folder of a model; default: a small one with random weights")
    parser.add_argument("--deck", help="URL of a control plane: the API line that `make up` prints")
    parser.add_argument("--token", default="", help="token of role engine: kvdeck token create NAME --role engine")
    parser.add_argument("--engine-id", default="example")
    a = parser.parse_args()

    if a.model and not (a.model / "config.json").is_file():
        parser.error(f"{a.model} holds no config.json: name the folder of a model")
    if a.deck and not a.token:
        parser.error("--deck needs --token; make one: kvdeck token create example --role engine")
    model = stored_model(a.model) if a.model else random_model()
    rng = np.random.default_rng(0)
    with opened(model, a) as engine:
        cache = PrefixCache(model, engine)  # the three lines: spec_of, CacheEngine, PrefixCache
        conversation = said(model, rng, SYSTEM_TOKENS)
        for number in range(TURNS):
            conversation += said(model, rng, TURN_TOKENS)
            done, first_ms = turn(cache, conversation)
            why = done.explanation
            print(
                f"turn {number + 1}: {len(conversation):,} tokens, {done.usable_tokens:,} reused ({why.outcome}), "
                f"first token after {first_ms:,.0f} ms; kvdeck took {done.timings.kvdeck_s * 1e3:,.1f} ms in all"
            )
            asked, conversation = conversation, done.sequence.tolist()
        print(f"engine.check(): {engine.check() or 'nothing wrong'}")
    with CacheEngine(spec_of(model), EngineConfig(mode="bypass")) as engine:
        alone, slow_ms = turn(PrefixCache(model, engine), asked)
    same = np.array_equal(done.sequence, alone.sequence)
    print(f"the last turn without reuse: first token after {slow_ms:,.0f} ms instead of {first_ms:,.0f}")
    print(f"the same tokens: {same}; largest difference of a logit: {largest_difference(done, alone):.1e}")
    print(
        "(not 0: earlier answers were decoded token by token, and are computed in pages here. Runs that are cut alike"
    )
    print("are equal to the bit: docs/reference/exactness.md)")


if __name__ == "__main__":
    main()
