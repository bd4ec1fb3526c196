"""How long what was read of a time range may be shown: as long as it makes no difference to who looks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

import streamlit as st

P = ParamSpec("P")
R = TypeVar("R")

TTL_SECONDS = 3
KEPT_SECONDS = ((60, TTL_SECONDS), (6 * 60, 15), (24 * 60, 60))
"""(up to so many minutes of range, seconds): a point of a day's chart stands for 15 minutes, and reading it takes as
long as a hundred of the last quarter of an hour."""
MOST_KEPT = 32


class RangeCache(Generic[P, R]):
    """`st.cache_data` for a read whose last argument is the minutes of its range.

    Read again in the background: whoever looks every few seconds never waits for a long range.
    """

    def __init__(self, read: Callable[P, R]) -> None:
        self.__wrapped__ = read
        self.__name__, self.__module__, self.__doc__ = read.__name__, read.__module__, read.__doc__
        self._kept = [(most, self._cached(read, seconds)) for most, seconds in KEPT_SECONDS]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """What was read; `args` end with the minutes."""
        minutes = args[-1]
        assert isinstance(minutes, int)  # by the type of every read that is decorated
        cached = next((cached for most, cached in self._kept if minutes <= most), self._kept[-1][1])
        return cached(*args, **kwargs)

    def clear(self) -> None:
        """Forget what was read."""
        for _, cached in self._kept:
            cached.clear()  # type: ignore[attr-defined]  # streamlit's, of a function it cached

    @staticmethod
    def _cached(read: Callable[P, R], seconds: int) -> Callable[P, R]:
        def look(*args: P.args, **kwargs: P.kwargs) -> R:
            return read(*args, **kwargs)

        look.__qualname__ = f"{read.__qualname__}_{seconds}"  # streamlit tells caches apart by it
        keep = st.cache_data(ttl=seconds, show_spinner=False, max_entries=MOST_KEPT, refresh_mode="background")
        return keep(look)
