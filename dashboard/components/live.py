"""Parts that draw themselves again while refresh is not paused, and that say so when they cannot."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import streamlit as st

from controlplane.errors import ControlPlaneError, NotFound
from dashboard import data, session
from dashboard.components import notices


def guarded(draw: Callable[[], None]) -> Callable[[], None]:
    """The same part, with the errors of the store shown as what they mean instead of a traceback.

    Not drawn at all while the store cannot be read: caches may still have it, and the frame of the page says why.
    """

    @wraps(draw)
    def safely() -> None:
        if data.unreadable() is not None:
            notices.line("Not shown: the database cannot be read now.")
            return
        try:
            draw()
        except NotFound as error:
            notices.empty(error.message, error.hint)
        except ControlPlaneError as error:
            notices.database_unreadable(error)

    return safely


def live(draw: Callable[[], None], *, every_seconds: float | None = None) -> None:
    """Draw a part now, and again every few seconds; by itself, so that the rest of the page keeps its state."""
    seconds = session.refresh_seconds() if every_seconds is None else every_seconds
    st.fragment(guarded(draw), run_every=seconds)()
