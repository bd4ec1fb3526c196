"""A Hugging Face model with a prefix cache: the engine is the store of record, cache objects are throw-away.

The path of a prompt: acquire a lease, load it into a new cache object, run the rest in chunks, capture boundary objects
at the positions the lease asks for, commit. Chunks end at fixed positions, whatever was reused, so that a resumed run
makes the very calls that an uninterrupted run would have made from there on: that is why its bits are the same.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from engine.consistency.lease import Lease
from engine.engine import CacheEngine
from engine.errors import (
    CodecRefused,
    ConfigError,
    CorruptObject,
    LeaseExpired,
    ModelMismatch,
    StalePointer,
    StateMismatch,
)
from engine.integrations.huggingface.cachemap import CacheMap, new_cache
from engine.integrations.huggingface.generation import Generation, TokenStream, as_streamer, checked_arguments
from engine.integrations.huggingface.judge import LogitJudge
from engine.integrations.huggingface.prefill import Prefill, Timings, TokenArray
from engine.integrations.huggingface.replay import replaying
from engine.integrations.huggingface.spec import prove_match
from engine.integrations.huggingface.weights import WeightsWatch, weights_revision
from engine.memory.state import NewState
from engine.model.huggingface import config_digest, text_config
from engine.schedule.publish import CommitResult

_LOAD_ATTEMPTS = 3
"""A hit whose bytes turn out damaged or gone is asked for again; what was found damaged is not offered twice."""


class PrefixCache:
    """Prefix reuse for `model` through `engine`. Thread-safe as far as the model is.

    `chunk_tokens` (a multiple of the engine's page; default one page) is where prefill is cut. Larger chunks are faster
    to compute; branch points then fall inside them, and a branch recomputed there replaces its sibling's pages, because
    one path is always of one run. Raises `UnknownCacheLayer`, `ModelMismatch` or `ConfigError`.
    """

    def __init__(self, model: Any, engine: CacheEngine, *, chunk_tokens: int | None = None) -> None:
        if model.training:
            raise ModelMismatch("the model is in training mode, where dropout makes KV random; call model.eval() first")
        self.model = model
        self.engine = engine
        self._page_tokens = engine.spec.page_tokens
        self.chunk_tokens = self._checked_chunk(chunk_tokens)
        self._map = CacheMap.measure(model)
        prove_match(model, self._map, engine)
        self._attached = self._now = self._identity()
        engine.set_quality_judge(LogitJudge(model, self._map))  # a lossy codec is measured before it is believed
        self._watch = WeightsWatch(model)
        self._watch_lock = threading.Lock()
        self._changes = 0
        self._accepts = frozenset(inspect.signature(model.forward).parameters)

    def _checked_chunk(self, chunk_tokens: int | None) -> int:
        chunk = self._page_tokens if chunk_tokens is None else chunk_tokens
        if chunk < self._page_tokens or chunk % self._page_tokens:
            raise ConfigError(
                f"chunk_tokens is {chunk}; it must be a multiple of the page of {self._page_tokens} tokens"
            )
        return chunk

    # -- generation -------------------------------------------------------------------------------------------------

    def generate(
        self,
        tokens: Any,
        *,
        namespace: str = "default",
        deadline_s: float = 1.0,
        traceparent: str | None = None,
        approximate: bool = False,
        streamer: Any = None,
        **arguments: Any,
    ) -> Generation:
        """Continue one prompt. `arguments` go to the model's own `generate` (sampling, stopping, `max_new_tokens`...).

        What was computed is kept: the prompt before the first token comes out, the output at the end, with checkpoints
        at both ends. `streamer` is one of transformers', or a callable that gets each token id. Raises `StateMismatch`
        for arguments that do not decode one plain sequence.
        """
        arguments = checked_arguments(self.model, arguments)
        with self.prefill(
            tokens, namespace=namespace, deadline_s=deadline_s, traceparent=traceparent, approximate=approximate
        ) as prefill:
            ids = torch.from_numpy(prefill.tokens.astype(np.int64)).to(self.model.device).unsqueeze(0)
            output = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                past_key_values=prefill.past_key_values,
                streamer=as_streamer(streamer),
                return_dict_in_generate=True,
                use_cache=True,  # a generation_config may say otherwise
                **arguments,
            )
            prompt_tokens = len(prefill.tokens)
            sequence = as_prompt(output.sequences)
            # The last token was sampled and never run: the cache ends one before it.
            commit = self.commit(prefill, sequence[:-1])
        return Generation(
            sequence=sequence,
            prompt_tokens=prompt_tokens,
            usable_tokens=prefill.usable_tokens,
            replay_tokens=prefill.replay_tokens,
            computed_tokens=prefill.computed_tokens,
            explanation=prefill.explanation,
            timings=prefill.timings,
            commit=commit,
            output=output,
        )

    def generate_batch(self, prompts: Iterable[Any], **arguments: Any) -> list[Generation]:
        """Continue many prompts, of any lengths and prefixes, each as `generate` would.

        One after another: rows of one batched call would be padded, which moves windows and compressor buffers, and
        would give each prompt other bits than it has alone. What one leaves behind the next may reuse.
        """
        return [self.generate(prompt, **arguments) for prompt in as_prompts(prompts)]

    def stream(self, tokens: Any, **arguments: Any) -> TokenStream:
        """`generate` as an iterator of token ids; its `result` is the `Generation`."""
        if "streamer" in arguments:
            raise StateMismatch("streamer: a stream has its own; use generate(..., streamer=...)")
        return TokenStream(lambda on_token: self.generate(tokens, streamer=on_token, **arguments))

    # -- prefill ----------------------------------------------------------------------------------------------------

    def prefill(
        self,
        tokens: Any,
        *,
        namespace: str = "default",
        deadline_s: float = 1.0,
        traceparent: str | None = None,
        approximate: bool = False,
    ) -> Prefill:
        """State of `tokens` but the last in a new cache object, reused as far as it is proven, and committed.

        `tokens` is one prompt: a list, an array, a tensor [n] or [1, n]. Restores are waited for up to `deadline_s`.
        `approximate` opts in to replays of one window only (see docs/howto/attach-your-model.md).
        """
        prompt = as_prompt(tokens)
        self._check_vocabulary(prompt)
        timings = Timings()
        prefill = self._resume(prompt, namespace, deadline_s, traceparent, approximate, timings)
        try:
            self._compute(prefill)
            if prefill.computed_tokens:
                self.engine.report_prefill(prefill.computed_tokens, prefill.timings.model_s)
                self._commit_new(prefill)
        except BaseException:
            prefill.release()
            raise
        return prefill

    def commit(self, prefill: Prefill, tokens: Any) -> CommitResult:
        """Keep what `prefill.past_key_values` holds now: `tokens` are all it has seen, prompt and output.

        Adds a checkpoint at their end. Raises `StateMismatch` when the cache has seen other than that many.
        """
        seen = as_prompt(tokens)
        if not np.array_equal(seen[: prefill.position], prefill.tokens[: prefill.position]):
            raise StateMismatch("the tokens to commit do not begin with those of the prompt")
        if (length := seen_tokens(prefill.past_key_values)) not in (None, len(seen)):
            raise StateMismatch(f"the cache has seen {length} tokens, {len(seen)} are to be committed")
        with prefill.timings.measure("capture_s"):  # before anything is noted: it raises for a cache at another place
            self._map.entries(prefill.past_key_values, len(seen), len(seen))
            boundary = self._map.boundary(prefill.past_key_values, len(seen))
        # However the caller ran what came after the prompt, it was not a page a call.
        self._note_call(prefill, prefill.position, len(seen), whole=False)
        prefill.tokens, prefill.position = seen, len(seen)
        prefill.checkpoints[len(seen)] = boundary
        return self._commit_new(prefill)

    def _check_vocabulary(self, prompt: TokenArray) -> None:
        """Raises `StateMismatch` for an id the model has no embedding for: on a GPU it would end the process."""
        size = getattr(self.model.get_input_embeddings(), "num_embeddings", None)
        if size is not None and int(prompt.max()) >= size:
            raise StateMismatch(
                f"token id {int(prompt.max())} at {int(prompt.argmax())} is none of the model's {size}; "
                "was the prompt made with another tokenizer?"
            )

    def _resume(
        self,
        prompt: TokenArray,
        namespace: str,
        deadline_s: float,
        traceparent: str | None,
        approximate: bool,
        timings: Timings,
    ) -> Prefill:
        """A prefill at the lease's resume point, everything before it loaded."""
        refuse, changes = self._model_changed(), self._changes
        forget_images(self.model)
        for attempt in range(_LOAD_ATTEMPTS):
            with timings.measure("acquire_s"):
                lease = self.engine.acquire(
                    prompt[:-1],
                    namespace=namespace,
                    deadline_s=deadline_s,
                    traceparent=traceparent,
                    approximate=approximate,
                    refuse=refuse or ("load_failed" if attempt == _LOAD_ATTEMPTS - 1 else ""),
                )
            try:
                with timings.measure("load_s"):
                    prefill = self._loaded(prompt, lease, timings)
                    prefill.changes = changes
                    return prefill
            except (CorruptObject, CodecRefused, StalePointer, LeaseExpired):
                lease.release()
            except BaseException:
                lease.release()
                raise
        raise AssertionError("unreachable: the last attempt is a miss, which loads nothing")

    def _loaded(self, prompt: TokenArray, lease: Lease, timings: Timings) -> Prefill:
        if not lease.usable_tokens:
            return Prefill(prompt, new_cache(self.model.config), 0, 0, lease, timings)
        state = lease.load()
        if not lease.replay_tokens:
            start = lease.usable_tokens // self._page_tokens * self._page_tokens
            return Prefill(prompt, self._map.filled(state), lease.usable_tokens, start, lease, timings)
        start = lease.resume_tokens // self._page_tokens * self._page_tokens
        prefill = Prefill(prompt, self._map.filled_for_replay(state, start), start, start, lease, timings)
        with replaying(self._map, prefill.past_key_values, state):
            self._run_to(prefill, lease.usable_tokens)
        return prefill

    def _compute(self, prefill: Prefill) -> None:
        """Run the rest of the prompt, all but its last token, capturing boundary objects on the way."""
        end = len(prefill.tokens) - 1
        for position in self._checkpoints(prefill, end):
            if position > prefill.position:
                self._run_to(prefill, position)
            if position == prefill.position:
                with prefill.timings.measure("capture_s"):
                    prefill.checkpoints[position] = self._map.boundary(prefill.past_key_values, position)
        self._run_to(prefill, end)

    def _checkpoints(self, prefill: Prefill, end: int) -> list[int]:
        """Where the lease wants boundary objects: at the end exactly, elsewhere where a chunk ends anyway."""
        hints = (h if h == end else h // self._page_tokens * self._page_tokens for h in prefill.lease.checkpoint_hints)
        return sorted({h for h in hints if prefill.position <= h <= end and h > prefill.lease.resume_tokens})

    def _run_to(self, prefill: Prefill, end: int) -> None:
        """Run the model from the prefill's position to `end`, cut where every run of these tokens is cut."""
        device = self.model.device
        with prefill.timings.measure("model_s"), torch.no_grad():
            for start, stop in self._chunks(prefill.position, end):
                ids = torch.from_numpy(prefill.tokens[start:stop].astype(np.int64)).to(device).unsqueeze(0)
                self.model(input_ids=ids, past_key_values=prefill.past_key_values, use_cache=True, **self._extra())
                self._note_call(prefill, start, stop)
            if device.type == "cuda":  # kernels were only given to the stream so far, and plans go by this time
                torch.cuda.current_stream(device).synchronize()
        prefill.computed_tokens += max(0, end - prefill.position)
        prefill.position = max(prefill.position, end)

    def _note_call(self, prefill: Prefill, start: int, stop: int, *, whole: bool = True) -> None:
        """Remember the pages of a call that was not exactly one page: no exact replay may run over them."""
        page = self._page_tokens
        if start < stop and not (whole and start % page == 0 and stop == start + page):
            prefill.odd_pages.update(range(start // page, -(-stop // page)))

    def _chunks(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        while start < end:
            stop = min(end, (start // self.chunk_tokens + 1) * self.chunk_tokens)
            yield start, stop
            start = stop

    def _extra(self) -> dict[str, Any]:
        """Not every model takes it: no logits but the last, as they are not used. Positions are the model's own to
        count, from the cache: some count from 1."""
        return {"logits_to_keep": 1} if "logits_to_keep" in self._accepts else {}

    # -- commit -----------------------------------------------------------------------------------------------------

    def _commit_new(self, prefill: Prefill) -> CommitResult:
        """Hand everything from `start_tokens` to the engine, what an earlier commit handed over included: pages that
        the lease does not hold are compared again, as another run may have taken their place. Once the lease is over
        (given back, or expired while a long answer was decoded) it holds none."""
        end = prefill.position
        with prefill.timings.measure("capture_s"):
            start = 0 if prefill.lease.approximate or prefill.lease.released else prefill.start_tokens
            state = NewState(
                start_tokens=start,
                end_tokens=end,
                entries=self._map.entries(prefill.past_key_values, start, end),
                checkpoints=prefill.checkpoints,
                odd_pages=frozenset(prefill.odd_pages),
            )
        with prefill.timings.measure("commit_s"):
            # Asked again: an adapter merged by another thread meanwhile would be in what was computed.
            refuse = self._model_changed() or ("weights_changed" if prefill.changes != self._changes else "")
            result = self.engine.commit(prefill.tokens[:end], state, lease=prefill.lease, refuse=refuse)
        prefill.checkpoints = {}
        return result

    def _model_changed(self) -> str:
        """`weights_changed` when the model is no longer the one that was attached: nothing kept may then be used."""
        with self._watch_lock:
            if self.model.training:
                raise ModelMismatch("the model was put in training mode; call model.eval() first")
            if self._watch.changed():
                self._changes += 1
                self._now = self._identity()
            return "" if self._now == self._attached else "weights_changed"

    def _identity(self) -> tuple[str, str]:
        return weights_revision(self.model), config_digest(text_config(self.model.config))


def forget_images(model: Any) -> None:
    """Multimodal models remember position offsets of the last request with images; text has none."""
    for module in (model, *(x for x in (getattr(model, "model", None),) if x is not None)):
        if getattr(module, "rope_deltas", None) is not None:
            module.rope_deltas = None


def seen_tokens(cache: Any) -> int | None:
    """How many tokens the cache object has seen; None for one of linear layers alone, which does not count."""
    try:
        return int(cache.get_seq_length())
    except ValueError:
        return None


def as_prompt(tokens: Any) -> TokenArray:
    """One prompt as int32 [n]. Raises `StateMismatch` for none, for a batch, and for what is no token id."""
    if isinstance(tokens, str) or hasattr(tokens, "keys"):
        raise StateMismatch("a prompt is token ids, not text or a tokenizer's output; pass tokenizer(text).input_ids")
    try:
        array = tokens.detach().cpu().numpy() if isinstance(tokens, torch.Tensor) else np.asarray(tokens)
    except ValueError as error:
        raise StateMismatch("a prompt is one sequence of token ids; these are several (see generate_batch)") from error
    if not array.size:
        raise StateMismatch("a prompt is one sequence of token ids; this one is empty")
    if array.ndim == 2 and len(array) == 1:
        array = array[0]
    if array.ndim != 1 or not len(array) or array.dtype.kind not in "iu":
        raise StateMismatch(
            f"a prompt is one sequence of token ids; got {array.dtype} {list(array.shape)} "
            "(a batch goes to generate_batch)"
        )
    if array.min() < 0 or array.max() > np.iinfo(np.int32).max:
        raise StateMismatch("token ids must lie in [0, 2**31)")
    return np.ascontiguousarray(array, dtype=np.int32)


def as_prompts(prompts: Any) -> list[TokenArray]:
    """A list of prompts, or a tensor or array [b, n] of prompts of one length."""
    shape = list(prompts.shape) if isinstance(prompts, torch.Tensor) else None
    if not isinstance(prompts, Iterable) or (shape is not None and len(shape) != 2):
        what = shape if shape is not None else type(prompts).__name__
        raise StateMismatch(f"a batch is a list of prompts or a tensor [b, n]; got {what}")
    return [as_prompt(prompt) for prompt in prompts]
