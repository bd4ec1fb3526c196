"""What was lost lately, and to what: enough to tell, of tokens the index does not know, the evicted from the new.

Holds no tokens: a lost run of pages is found by its path and a hash of its first page, and compared page by page by a
sum over a few of each page's tokens. That tells where a prompt parts from the run; a collision only names
a wrong cause.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_SAMPLED_TOKENS = 4
"""Tokens of a page that its sum is made of."""
RUN_BYTES, PAGE_BYTES = 512, 8
"""What a remembered run takes, and each of its pages more."""

_U64 = npt.NDArray[np.uint64]


class LostRun(NamedTuple):
    """Pages that were held, or offered and not kept. `prefix_id` names the prefix they ended, "" for none."""

    cause: str
    prefix_id: str
    sums: _U64


class LostMemory:
    """Forgets the oldest first; holds at most `budget_bytes`. Guarded by the engine lock.

    A run hangs under the path that ends where it begins: a prefix id, or the space (index/space.py) at the start.
    """

    def __init__(self, page_tokens: int, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._page_tokens = page_tokens
        self._step = -(-page_tokens // _SAMPLED_TOKENS)
        # Any fixed odd factors make the sum a hash; random ones a hash that no tenant can aim at.
        factors = np.random.default_rng().integers(0, 1 << 63, len(range(0, page_tokens, self._step)), dtype=np.uint64)
        self._factors: _U64 = factors * np.uint64(2) + np.uint64(1)
        self._runs: OrderedDict[tuple[str, int], LostRun] = OrderedDict()
        self._first_pages: dict[int, int] = {}
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def enabled(self) -> bool:
        return self._budget_bytes > 0

    def remember(self, path: str, pages: bytes, cause: str, prefix_id: str = "") -> None:
        """`pages` (whole pages of token bytes) under `path` are no longer held, or were not kept."""
        first = hash(pages[: self._page_tokens * 4])
        key = path, first
        self._forget(key)
        run = LostRun(cause, prefix_id, self._sums(pages))
        self._runs[key] = run
        self._first_pages[first] = self._first_pages.get(first, 0) + 1
        self.held_bytes += _bytes_of(run)
        while self.held_bytes > self._budget_bytes:
            self._forget(next(iter(self._runs)))

    def may_have(self, first_page: bytes) -> bool:
        """Whether some run begins with this page: asked first, as what it is asked of is mostly new."""
        return hash(first_page) in self._first_pages

    def find(self, path: str, pages: bytes) -> tuple[LostRun, int] | None:
        """The run under `path` that `pages` begin with, and how many pages they share."""
        run = self._runs.get((path, hash(pages[: self._page_tokens * 4])))
        if run is None:
            return None
        mine = self._sums(pages[: len(run.sums) * self._page_tokens * 4])
        differs = np.flatnonzero(mine != run.sums[: len(mine)])
        return run, int(differs[0]) if len(differs) else len(mine)

    def _sums(self, pages: bytes) -> _U64:
        """uint64 [pages]."""
        tokens = np.frombuffer(pages, "<u4").reshape(-1, self._page_tokens)
        found: _U64 = tokens[:, :: self._step].astype(np.uint64) @ self._factors
        return found

    def _forget(self, key: tuple[str, int]) -> None:
        run = self._runs.pop(key, None)
        if run is None:
            return
        self.held_bytes -= _bytes_of(run)
        left = self._first_pages[key[1]] - 1
        if left:
            self._first_pages[key[1]] = left
        else:
            del self._first_pages[key[1]]


def _bytes_of(run: LostRun) -> int:
    return RUN_BYTES + PAGE_BYTES * len(run.sums)
