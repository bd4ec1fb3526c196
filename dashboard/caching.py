"""How long what was read may be shown: as long as it makes no difference to who looks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, update_wrapper
from typing import Any, Generic, Literal, ParamSpec, TypeVar

import streamlit as st

P = ParamSpec("P")
R = TypeVar("R")

TTL_SECONDS = 3
KEPT_SECONDS = ((60, TTL_SECONDS), (6 * 60, 15), (24 * 60, 60))
"""(up to so many minutes of range, seconds): a point of a day's chart stands for 15 minutes, and reading it takes as
long as a hundred of the last quarter of an hour."""
MOST_KEPT = 32


class Kept(Generic[P, R]):
    """`st.cache_data` of a read, made at the first look: Streamlit chooses where entries live when it is made, and
    warns, once a read, when that is before its runtime is there. `__wrapped__` is the read without it."""

    def __init__(self, read: Callable[P, R], *, seconds: float, most: int, background: bool = False) -> None:
        update_wrapper(self, read)
        self.__wrapped__ = read
        self._seconds, self._most = seconds, most
        self._mode: Literal["background", "foreground"] = "background" if background else "foreground"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """What was read, by whoever looked first."""
        return self._cached(*args, **kwargs)  # type: ignore[no-any-return]

    def clear(self) -> None:
        """Forget what was read."""
        if "_cached" in self.__dict__:
            self._cached.clear()

    @cached_property
    def _cached(self) -> Any:
        keep = st.cache_data(ttl=self._seconds, show_spinner=False, max_entries=self._most, refresh_mode=self._mode)
        return keep(self.__wrapped__)


def kept(
    seconds: float = TTL_SECONDS, *, most: int = 16, background: bool = False
) -> Callable[[Callable[P, R]], Kept[P, R]]:
    """Show what was read for so many seconds to whoever asks the same; `most` answers. In the `background`, what is
    too old is shown once more while it is read again."""
    return lambda read: Kept(read, seconds=seconds, most=most, background=background)


class RangeCache(Generic[P, R]):
    """`kept` for a read whose last argument is the minutes of its range.

    Read again in the background: whoever looks every few seconds never waits for a long range.
    """

    def __init__(self, read: Callable[P, R]) -> None:
        update_wrapper(self, read)
        self.__wrapped__ = read
        self._kept = [(most, self._of(read, seconds)) for most, seconds in KEPT_SECONDS]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """What was read; `args` end with the minutes."""
        minutes = args[-1]
        assert isinstance(minutes, int)  # by the type of every read that is decorated
        read = next((read for most, read in self._kept if minutes <= most), self._kept[-1][1])
        return read(*args, **kwargs)

    def clear(self) -> None:
        """Forget what was read."""
        for _, read in self._kept:
            read.clear()

    @staticmethod
    def _of(read: Callable[P, R], seconds: int) -> Kept[P, R]:
        def look(*args: P.args, **kwargs: P.kwargs) -> R:
            return read(*args, **kwargs)

        look.__qualname__ = f"{read.__qualname__}_{seconds}"  # streamlit tells caches apart by it
        return Kept(look, seconds=seconds, most=MOST_KEPT, background=True)
