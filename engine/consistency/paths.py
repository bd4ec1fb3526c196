"""What the sampler tells pages by: a hash of the whole path that ends at each, and a memory of long paths."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

LONG_PAGES = 256
"""Shorter paths are not remembered: to sum them up again takes a few microseconds."""
REMEMBERED_PAGES = 1 << 20

U64 = npt.NDArray[np.uint64]
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_POSITION = np.uint64(0x9E3779B97F4A7C15)


class PageSums:
    """One sum a page, in which every token counts: any fixed odd factors make it a hash."""

    def __init__(self, page_tokens: int) -> None:
        self.page_bytes = 4 * page_tokens
        # Two token ids at a time where a page has an even number of them.
        self._word = np.dtype("<u8" if page_tokens % 2 == 0 else "<u4")
        words = self.page_bytes // self._word.itemsize
        factors = np.random.default_rng(0x5AAD5).integers(0, 1 << 63, words, dtype=np.uint64)
        self._factors: U64 = factors * np.uint64(2) + np.uint64(1)

    def of(self, tokens: bytes, first: int) -> U64:
        """Of whole pages from page `first` on."""
        step, size, pages = self.page_bytes, self._word.itemsize, len(tokens) // self.page_bytes - first
        words = np.frombuffer(tokens, self._word, pages * step // size, first * step)
        found: U64 = words.reshape(pages, len(self._factors)).dot(self._factors)
        return found


class Told(NamedTuple):
    """Hash and chain of the paths that end at some neighbouring pages, and the chain before the first of them."""

    hashes: U64
    chains: U64
    start: int

    def chain_at(self, page: int) -> int:
        """The chain after so many of the pages."""
        return int(self.chains[page - 1]) if page else self.start

    @property
    def end(self) -> int:
        return self.chain_at(len(self.chains))


def tell(sums: Sequence[U64], firsts: Sequence[int], starts: Sequence[int]) -> list[Told]:
    """Paths from the sums of their pages, the first of which is page `firsts`, and from the chains before these.

    The chain is a running sum of mixed page sums, the position mixed in so that order counts. All paths are told in one
    pass: numpy costs by the call here, not by the page.
    """
    if not sums:
        return []
    lengths = np.array([len(each) for each in sums], dtype=np.int64)
    ends = np.cumsum(lengths)
    begins = ends - lengths
    places = np.arange(ends[-1], dtype=np.int64) + np.repeat(np.array(firsts, dtype=np.int64) - begins, lengths)
    running = np.cumsum(_mix(np.concatenate(sums) ^ (places.astype(np.uint64) * _POSITION)), dtype=np.uint64)
    padded = np.concatenate([np.zeros(1, np.uint64), running])
    chains = running + np.repeat(np.array(starts, dtype=np.uint64) - padded[begins], lengths)
    hashes = _mix(chains)
    cuts = zip(begins.tolist(), ends.tolist(), starts, strict=True)
    return [Told(hashes[first:last], chains[first:last], start) for first, last, start in cuts]


def _mix(x: U64) -> U64:
    """The finaliser of splitmix64 (Steele et al., OOPSLA 2014): every bit in moves every bit out."""
    x = (x ^ (x >> np.uint64(30))) * _MIX[0]
    x = (x ^ (x >> np.uint64(27))) * _MIX[1]
    return x ^ (x >> np.uint64(31))


class Point(NamedTuple):
    """A place that no other path goes through: so many pages of the path to a prefix. Ids outlive every split."""

    prefix_id: str
    pages: int


class Path(NamedTuple):
    """The hash of the path that ends at each page, from the start on, and the chain at its end."""

    hashes: U64
    chain: int


class PathMemory:
    """Long paths by where they end, and those of prompts by their lease: 8 bytes a page of `REMEMBERED_PAGES`. The one
    used longest ago goes first. Written by one thread at a time; anyone may `get`."""

    def __init__(self) -> None:
        self._paths: OrderedDict[Point | int, Path] = OrderedDict()
        self._pages = 0

    def get(self, name: Point | int | None) -> Path | None:
        return None if name is None else self._paths.get(name)

    def keep(self, name: Point | int, path: Path) -> None:
        """As the one used last. Too short a path is not kept."""
        if name in self._paths:
            self._paths.move_to_end(name)
        elif len(path.hashes) >= LONG_PAGES:
            own = path.hashes if path.hashes.base is None else path.hashes.copy()  # a view holds all that was told
            self._paths[name] = path._replace(hashes=own)
            self._pages += len(own)
            while self._pages > REMEMBERED_PAGES:
                self._pages -= len(self._paths.popitem(last=False)[1].hashes)
