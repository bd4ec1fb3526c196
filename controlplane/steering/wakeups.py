"""Hints that something is waiting for an engine, from any thread to the long polls of this process.

A hint may be missed (another process wrote, or the poll was between two looks): pollers look in the store anyway, now
and then. So nothing here is ever relied on for correctness, only for speed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Wakeups:
    """Who waits for which engine. `notify` is safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[asyncio.Event, tuple[str, asyncio.AbstractEventLoop]] = {}
        self.closed = False  # once true, pollers answer at once: the process is about to stop

    @contextmanager
    def waiting(self, engine_id: str) -> Iterator[asyncio.Event]:
        """An event that `notify` for this engine sets. Call inside a running event loop."""
        event = asyncio.Event()
        with self._lock:
            self._waiting[event] = (engine_id, asyncio.get_running_loop())
        try:
            yield event
        finally:
            with self._lock:
                del self._waiting[event]

    def notify(self, engine_id: str | None) -> None:
        """Wakes the polls of one engine, or of every engine (None). Call it after the commit, never before."""
        with self._lock:
            events = [(e, loop) for e, (who, loop) in self._waiting.items() if engine_id in (None, who)]
            for event, loop in events:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(event.set)

    def close(self) -> None:
        """Lets every poll answer now and none wait again, so that a stopping server has no open requests."""
        self.closed = True
        self.notify(None)


WAKEUPS = Wakeups()
