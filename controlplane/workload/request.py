"""One request as the driver sees it, whatever it came from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt, int32 [n], and the output the model will give, int32 [m]; due `at_s` seconds after the start."""

    at_s: float
    namespace: str
    session: str
    prompt: Tokens
    output: Tokens

    @property
    def tokens(self) -> Tokens:
        """Prompt and output, int32 [n + m]: what the cache holds once the request is done."""
        return np.concatenate([self.prompt, self.output]) if len(self.output) else self.prompt
