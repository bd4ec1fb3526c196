"""Measures what a lossy codec does to a model: logits over coded KV against logits over native KV."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine.integrations.huggingface.cachemap import CacheMap
from engine.memory.state import LoadedState
from engine.schedule.quality import Quality

CONTINUED_TOKENS = 32


class LogitJudge:
    """A `QualityJudge` that runs the model itself.

    Both states are continued with the same tokens in one call: the last of the prefix once more, so that what follows
    reads like the prefix. All logits of all continued positions count.
    """

    def __init__(self, model: Any, cache_map: CacheMap) -> None:
        self._model = model
        self._map = cache_map

    def judge(self, native: LoadedState, coded: LoadedState, tokens: npt.NDArray[np.int32]) -> Quality:
        ids = torch.from_numpy(tokens[-CONTINUED_TOKENS:].astype(np.int64)).to(self._model.device).unsqueeze(0)
        truth, other = (self._logits(state, ids) for state in (native, coded))
        log_p, log_q = truth.log_softmax(-1), other.log_softmax(-1)
        divergence = (log_p.exp() * (log_p - log_q)).sum(-1)
        return Quality(
            logit_error=float((truth - other).abs().max()), kl=float(divergence.mean()), positions=ids.shape[1]
        )

    def _logits(self, state: LoadedState, ids: torch.Tensor) -> torch.Tensor:
        """float64 [positions, vocabulary]."""
        with torch.no_grad():
            cache = self._map.filled(state)
            logits: torch.Tensor = self._model(input_ids=ids, past_key_values=cache, use_cache=True).logits
        return logits[0].double()
