"""Orders of leaving: who is older. What a request costs here does not grow with what is held, nor with its path."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Generic, TypeVar

K = TypeVar("K")
_CHUNKS = ((0, 16), (16, 64), (64, 256), (256, 4096))
"""Almost always one of the first few may leave, so that many are copied before more are looked at."""
_NUMBER = itemgetter(0)
REST = ""
"""The lane of every key that has none of its own; no namespace has this name."""


class _Lane(Generic[K]):
    """Keys by the number of their touch, smallest first: most arrive as the youngest, few in between (`insert`)."""

    __slots__ = ("_arrived", "_inserted")

    def __init__(self) -> None:
        self._arrived: OrderedDict[K, int] = OrderedDict()
        self._inserted: list[tuple[int, K]] = []  # sorted; almost always empty or short

    def __len__(self) -> int:
        return len(self._arrived) + len(self._inserted)

    def push(self, key: K, touched: int, before: int = 0) -> None:
        """The youngest; `before` is the number it had in the lane, if any."""
        if before and self._inserted:
            self._uninsert(key, before)
        self._arrived[key] = touched
        self._arrived.move_to_end(key)

    def insert(self, key: K, touched: int) -> None:
        """A new key between those touched before and after."""
        oldest = next(iter(self._arrived.values()), touched + 1)
        if touched < oldest and not self._inserted:
            self._arrived[key] = touched
            self._arrived.move_to_end(key, last=False)
        else:
            insort(self._inserted, (touched, key), key=_NUMBER)

    def discard(self, key: K, touched: int) -> None:
        if self._arrived.pop(key, None) is None and self._inserted:
            self._uninsert(key, touched)

    def _uninsert(self, key: K, touched: int) -> None:
        at = bisect_left(self._inserted, touched, key=_NUMBER)
        while at < len(self._inserted) and self._inserted[at][0] == touched:
            if self._inserted[at][1] is key:
                del self._inserted[at]
                return
            at += 1

    def items(self) -> Iterator[tuple[int, K]]:
        arrived = ((touched, key) for key, touched in self._arrived.items())
        return merge(arrived, self._inserted, key=_NUMBER) if self._inserted else arrived


class LeastRecentlyUsed(Generic[K]):
    """Oldest first.

    `lane_of` names a key's lane (its namespace). Lanes are separate orders that can be asked alone or together; only
    those named by `separate` exist, all other keys share one. A touch is O(1) with any number of lanes.
    """

    def __init__(self, lane_of: Callable[[K], str] | None = None) -> None:
        self._lane_of = lane_of
        self._rest: _Lane[K] = _Lane()
        self._own: dict[str, _Lane[K]] = {}
        self._touched: dict[K, int] = {}
        self._touches = 0

    def __len__(self) -> int:
        return len(self._touched)

    def __contains__(self, key: K) -> bool:
        return key in self._touched

    @property
    def lanes(self) -> tuple[str, ...]:
        return (REST, *self._own)

    def touch(self, key: K) -> None:
        """Make `key` the youngest, adding it if it is new."""
        self._touches += 1
        before = self._touched.get(key, 0)
        self._touched[key] = self._touches
        self._lane(key).push(key, self._touches, before)

    def discard(self, key: K) -> None:
        if touched := self._touched.pop(key, 0):
            self._lane(key).discard(key, touched)

    def touched(self, key: K) -> int:
        """The number of the key's last touch: larger is younger, across lanes."""
        return self._touched[key]

    def separate(self, names: Iterable[str]) -> None:
        """Give each name a lane of its own, and everything else the shared one; the order of keys stays. O(n)."""
        pairs = sorted((pair for lane in (self._rest, *self._own.values()) for pair in lane.items()), key=_NUMBER)
        self._rest, self._own = _Lane(), {name: _Lane() for name in names}
        for touched, key in pairs:
            self._lane(key).push(key, touched)

    def oldest(self, may_leave: Callable[[K], bool], *, lane: str | None = None, look_at: int = 4096) -> Iterator[K]:
        """Keys that may leave, oldest first, of one lane or of all. Looks at no more than `look_at` keys, so that one
        call is bounded.

        Keys that may not leave now (leased, pinned) keep their place. The order may change between items.
        """
        for key in self._walk(self._of(lane), look_at):
            if may_leave(key):
                yield key

    def _of(self, lane: str | None) -> list[_Lane[K]]:
        return [self._rest, *self._own.values()] if lane is None else [self._own.get(lane, self._rest)]

    def _lane(self, key: K) -> _Lane[K]:
        if not self._own or self._lane_of is None:
            return self._rest
        return self._own.get(self._lane_of(key), self._rest)

    def _walk(self, lanes: list[_Lane[K]], look_at: int) -> Iterator[K]:
        for first, last in _CHUNKS:
            if first >= look_at:
                return
            pairs = lanes[0].items() if len(lanes) == 1 else merge(*(each.items() for each in lanes), key=_NUMBER)
            chunk = list(islice(pairs, first, min(last, look_at)))
            for touched, key in chunk:
                if self._touched.get(key) == touched:
                    yield key
            if len(chunk) < min(last, look_at) - first:
                return


class TailsFirst(LeastRecentlyUsed[K]):
    """Keys of a tree: tails leave before heads. A touch of a key is one of every key above it too, at no cost.

    Only keys without a child in the order stand in its lanes. When the last child leaves, its parent takes the age it
    has by then: of its own last touch or of the youngest that left below it, whichever is later.
    """

    def __init__(
        self,
        parent_of: Callable[[K], K | None],
        children_of: Callable[[K], Iterable[K]],
        lane_of: Callable[[K], str] | None = None,
    ) -> None:
        super().__init__(lane_of)
        self._parent_of = parent_of
        self._children_of = children_of
        self._below: dict[K, int] = {}  # how many children of a key are in the order; only of those that have any

    def touch(self, key: K) -> None:
        if key in self._touched:
            if key not in self._below:
                super().touch(key)
            else:
                self._touches += 1
                self._touched[key] = self._touches
            return
        if below := sum(child in self._touched for child in self._children_of(key)):
            self._below[key] = below
        self._adopt(self._parent_of(key))
        if below:
            self._touches += 1
            self._touched[key] = self._touches
        else:
            super().touch(key)

    def touch_path(self, key: K | None) -> None:
        """The lowest key of the order on the way up from `key` was used, and with it all above."""
        while key is not None and self._touched:
            if key in self._touched:
                return self.touch(key)
            key = self._parent_of(key)
        return None

    def discard(self, key: K) -> None:
        """To be called while the key still hangs in its tree."""
        touched = self._touched.pop(key, 0)
        if not touched:
            return
        if self._below.pop(key, 0):
            touched = self._touches  # nobody knows how young what stays below it is
        else:
            self._lane(key).discard(key, touched)
        parent = self._parent_of(key)
        if parent is None or parent not in self._touched:
            return
        self._touched[parent] = max(self._touched[parent], touched)
        self._below[parent] -= 1
        if not self._below[parent]:
            del self._below[parent]
            self._lane(parent).insert(parent, self._touched[parent])

    def insert_above(self, upper: K, key: K) -> None:
        """`upper` is new between `key` and what was its parent: as old as it."""
        if key in self._touched:
            self._touched[upper] = self._touched[key]
            self._below[upper] = 1

    def oldest(self, may_leave: Callable[[K], bool], *, lane: str | None = None, look_at: int = 4096) -> Iterator[K]:
        """As above; and once no tail is left that may leave, what lies above those that may not (pinned, being worked
        on), lowest first."""
        tails = []
        for key in self._walk(self._of(lane), look_at):
            tails.append(key)
            if may_leave(key):
                yield key
        seen: set[K] = set()
        for key in tails:
            parent = self._parent_of(key)
            while parent is not None and parent in self._touched and parent not in seen and len(seen) < look_at:
                seen.add(parent)
                if may_leave(parent):
                    yield parent
                parent = self._parent_of(parent)

    def violations(self) -> list[str]:
        """Keys in the lanes are those without a child in the order; nobody else's count is wrong."""
        below = {key: n for key in self._touched if (n := sum(c in self._touched for c in self._children_of(key)))}
        standing = {key: touched for lane in self._of(None) for touched, key in lane.items()}
        tails = {key: touched for key, touched in self._touched.items() if key not in below}
        if below == self._below and standing == tails:
            return []
        return [f"{len(tails)} prefixes have no child in it, {len(standing)} may be asked for; {len(below)} have one"]

    def _adopt(self, parent: K | None) -> None:
        if parent is None or parent not in self._touched:
            return
        self._below[parent] = self._below.get(parent, 0) + 1
        if self._below[parent] == 1:
            self._lane(parent).discard(parent, self._touched[parent])
