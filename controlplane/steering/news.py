"""Whether anybody, in any process, has steered lately: one small question a second for all the polls of this one."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from sqlalchemy import func, select

from controlplane.store.models import Command, DesiredState
from controlplane.store.session import Store

FRESH_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Stamp:
    """What moves with every revision and every command. Two that are equal: nothing was asked for in between."""

    revision: int
    commanded_us: int


class News:
    """The newest stamp of one store, read at most once a second. Safe to share between threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._read_at = 0.0
        self._stamp = Stamp(0, 0)

    def known(self) -> Stamp | None:
        """The stamp of less than a second ago, if there is one. Never waits."""
        return self._stamp if self._is_fresh() else None

    def stamp(self) -> Stamp:
        """The stamp of now, or of less than a second ago. Both questions are answered by an index alone."""
        with self._lock:
            if not self._is_fresh():
                with self._store.read() as session:
                    revision = session.scalar(select(func.max(DesiredState.revision))) or 0
                    commanded = session.scalar(select(func.max(Command.created_at)))
                self._stamp = Stamp(revision, 0 if commanded is None else int(commanded.timestamp() * 1e6))
                self._read_at = time.monotonic()
            return self._stamp

    def _is_fresh(self) -> bool:
        return time.monotonic() - self._read_at < FRESH_SECONDS
