"""A prompt on its way into a cache object: what was reused, what was computed, and what it took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.consistency.lease import Explanation, Lease
from engine.memory.state import Tensors

TokenArray = npt.NDArray[np.int32]


@dataclass(slots=True)
class Timings:
    """Seconds of one request, by what they were spent on. `model` is the model's own prefill."""

    acquire_s: float = 0.0
    load_s: float = 0.0
    model_s: float = 0.0
    capture_s: float = 0.0
    commit_s: float = 0.0

    @property
    def kvdeck_s(self) -> float:
        """Everything but the model."""
        return self.acquire_s + self.load_s + self.capture_s + self.commit_s

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, name, getattr(self, name) + time.perf_counter() - start)


@dataclass(slots=True, eq=False)
class Prefill:
    """`past_key_values` has seen the first `position` tokens: at first all of the prompt but its last.

    The last token is the caller's: running it yields the first logits. Pages from `start_tokens` on were computed, or
    loaded behind a page boundary; `checkpoints` are captured and not yet committed. Give it back with `release`, or use
    it as a context manager.
    """

    tokens: TokenArray
    past_key_values: Any
    position: int
    start_tokens: int
    lease: Lease
    timings: Timings
    checkpoints: dict[int, Tensors] = field(default_factory=dict)
    odd_pages: set[int] = field(default_factory=set)  # computed otherwise than in one call of exactly that page
    changes: int = 0  # of the model that had been seen when it began: state that spans one is of no model
    computed_tokens: int = 0  # that ran through the model, replayed ones included

    @property
    def usable_tokens(self) -> int:
        """The hit. It may be less than the lease's where a load failed: see `explanation`."""
        return self.lease.usable_tokens

    @property
    def replay_tokens(self) -> int:
        return self.lease.replay_tokens

    @property
    def explanation(self) -> Explanation:
        return self.lease.explanation

    def release(self) -> None:
        self.lease.release()

    def __enter__(self) -> Prefill:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
