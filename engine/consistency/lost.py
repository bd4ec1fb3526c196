"""What was lost lately, and to what: enough to tell, of tokens the index does not know, the evicted from the new.

A lost run of pages is found by its path and a hash of its first page, and compared page by page by a mix of four
of each page's tokens. That tells where a prompt parts from the run; a collision only names a wrong cause.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import numpy as np

RUN_BYTES, PAGE_BYTES = 512, 8
"""What a remembered run takes, and each of its pages more."""


class LostRun(NamedTuple):
    """Pages that were held, or offered and not kept. `prefix_id` names the prefix they ended, "" for none; `marks` are
    `PAGE_BYTES` a page."""

    cause: str
    prefix_id: str
    marks: bytes

    @property
    def pages(self) -> int:
        return len(self.marks) // PAGE_BYTES


class LostMemory:
    """Forgets the oldest first; holds at most `budget_bytes`. Guarded by the engine lock.

    A run hangs under the path that ends where it begins: a prefix id, or the space (index/space.py) at the start.
    """

    def __init__(self, page_tokens: int, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._page_bytes = page_tokens * 4
        # Two tokens a word where a page has an even number of them.
        self._word = np.dtype("<u8" if page_tokens % 2 == 0 else "<u4")
        self._words = self._page_bytes // self._word.itemsize
        # Any odd factor mixes; a random one cannot be aimed at by a tenant.
        self._factor = self._word.type(int(np.random.default_rng().integers(1 << 20, 1 << 31)) * 2 + 1)
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
        first = hash(pages[: self._page_bytes])
        key = path, first
        self._forget(key)
        run = LostRun(cause, prefix_id, self._marks(pages))
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
        run = self._runs.get((path, hash(pages[: self._page_bytes])))
        if run is None:
            return None
        mine = self._marks(pages[: run.pages * self._page_bytes])
        if run.marks.startswith(mine):
            return run, len(mine) // PAGE_BYTES
        other = np.frombuffer(run.marks, "<u8")[: len(mine) // PAGE_BYTES]
        return run, int(np.argmax(np.frombuffer(mine, "<u8") != other))

    def _marks(self, pages: bytes) -> bytes:
        words = np.frombuffer(pages, self._word).reshape(-1, self._words)
        mixed = words[:, self._words // 2] ^ (words[:, -1] * self._factor)
        found: bytes = mixed.astype(np.uint64, copy=False).tobytes()
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
    return RUN_BYTES + len(run.marks)
