"""Who leaves first. An order proposes, the engine applies; the same order runs live and in a simulation."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Generic, TypeVar

K = TypeVar("K")
_NEAR = 16
"""Almost always one of the first few may leave, so that many are copied before the rest are looked at."""


class LeastRecentlyUsed(Generic[K]):
    """Oldest first. Touch a path from its end to its start: a parent is then always younger than its children, so
    tails leave before heads and leaves before parents."""

    def __init__(self) -> None:
        self._order: OrderedDict[K, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, key: K) -> bool:
        return key in self._order

    def touch(self, key: K) -> None:
        """Make `key` the youngest, adding it if it is new."""
        self._order[key] = None
        self._order.move_to_end(key)

    def discard(self, key: K) -> None:
        self._order.pop(key, None)

    def oldest(self, may_leave: Callable[[K], bool], *, look_at: int = 4096) -> Iterator[K]:
        """Keys that may leave, oldest first. Looks at no more than `look_at` keys, so that one call is bounded.

        Keys that may not leave now (leased, pinned) keep their place. The order may change between items.
        """
        for first, last in ((0, _NEAR), (_NEAR, look_at)):
            for key in list(islice(self._order, first, last)):
                if key in self._order and may_leave(key):
                    yield key
