"""Generation on top of a prefill: transformers' own `generate` decodes, and what it leaves behind is committed."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from transformers.generation.streamers import BaseStreamer

from engine.consistency.lease import Explanation
from engine.errors import StateMismatch
from engine.integrations.huggingface.prefill import Timings, TokenArray
from engine.schedule.publish import CommitResult

_ONE_SEQUENCE = ("num_beams", "num_return_sequences")
_OWN_CACHE = ("cache_implementation", "prompt_lookup_num_tokens", "assistant_early_exit")
_OURS = (
    "past_key_values", "input_ids", "inputs", "inputs_embeds", "attention_mask", "position_ids",
    "return_dict_in_generate", "use_cache",
)  # fmt: skip
_FOREIGN = ("assistant_model", "custom_generate", "adapter_names")


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What came of one prompt. `sequence` is prompt and output, int32 [n]; `output` is transformers' own result."""

    sequence: TokenArray
    prompt_tokens: int
    usable_tokens: int
    replay_tokens: int
    computed_tokens: int
    explanation: Explanation
    timings: Timings
    commit: CommitResult
    output: Any

    @property
    def new_tokens(self) -> TokenArray:
        return self.sequence[self.prompt_tokens :]


def checked_arguments(model: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `generate`, refused where they would decode more than one plain sequence of token ids.

    Raises `StateMismatch` naming the argument: inputs beside token ids (images, embeddings, another attention mask) are
    no part of a prefix's identity, and beams or assistants rearrange or own the cache.
    """
    for name in _OURS:
        if name in arguments:
            raise StateMismatch(f"{name} is set by PrefixCache.generate itself; leave it out")
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor) or name in _FOREIGN:
            raise StateMismatch(
                f"{name}: only token ids are part of a prefix's identity; what else goes into the model would be "
                "ignored by the cache. Call model.generate directly for this request"
            )
    config = copy(arguments.get("generation_config") or model.generation_config)
    most = arguments.get("max_new_tokens", getattr(config, "max_new_tokens", None))
    if most is not None and most < 1:
        raise StateMismatch(f"max_new_tokens is {most}; generate at least 1, or call prefill to only fill the cache")
    given = {key: value for key, value in arguments.items() if key not in ("generation_config", "streamer")}
    config.update(return_dict_in_generate=True, **given)
    for name in _ONE_SEQUENCE:
        if (getattr(config, name, None) or 1) > 1:
            raise StateMismatch(f"{name} is {getattr(config, name)}; a cached prompt continues as one sequence")
    for name in _OWN_CACHE:
        if getattr(config, name, None):
            raise StateMismatch(f"{name} is set; it brings a cache of its own, so there would be nothing to keep")
    return arguments


class CallbackStreamer(BaseStreamer):  # type: ignore[misc]  # transformers is not followed
    """Hands every new token id to `on_token`. transformers puts the prompt first; that is left out."""

    def __init__(self, on_token: Callable[[int], None]) -> None:
        self._on_token = on_token
        self._prompt = True

    def put(self, value: torch.Tensor) -> None:
        if self._prompt:
            self._prompt = False
            return
        for token in value.reshape(-1).tolist():
            self._on_token(token)

    def end(self) -> None:
        """Nothing is held back, so there is nothing to flush."""


def as_streamer(streamer: Any) -> Any:
    """A streamer of transformers as it is; a plain callable is called with each new token id."""
    return streamer if streamer is None or hasattr(streamer, "put") else CallbackStreamer(streamer)


class _Stopped(Exception):
    """The reader of a stream went away."""


class TokenStream:
    """Iterates over token ids as they come; `result` is the `Generation` once it is over.

    The model runs in a thread of its own. Leaving the loop early, or `close`, ends it at its next token.
    """

    def __init__(self, run: Callable[[Callable[[int], None]], Generation]) -> None:
        self._queue: queue.Queue[int | None] = queue.Queue()
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._result: Generation | None = None
        self._thread = threading.Thread(target=self._work, args=(run,), name="kvdeck-stream", daemon=True)
        self._thread.start()

    @property
    def result(self) -> Generation:
        """Waits for the end. Raises what the generation raised, or `StateMismatch` when the stream was closed."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        if self._result is None:
            raise StateMismatch("the stream was closed before its end; there is no result")
        return self._result

    def __iter__(self) -> Iterator[int]:
        try:
            while (token := self._queue.get()) is not None:
                yield token
            if self._error is not None:
                raise self._error
        finally:
            self.close()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _work(self, run: Callable[[Callable[[int], None]], Generation]) -> None:
        try:
            self._result = run(self._on_token)
        except _Stopped:
            pass
        except BaseException as error:  # re-raised in the reader's thread
            self._error = error
        finally:
            self._queue.put(None)

    def _on_token(self, token: int) -> None:
        if self._stop.is_set():
            raise _Stopped
        self._queue.put(token)
