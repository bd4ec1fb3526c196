"""Threads that make one tier's device calls, so that who asked can leave a call that does not come back.

A call that is left keeps its thread until the device answers; what it then brings is thrown away. So that a dead
device cannot eat threads, no more than `MOST_STUCK` calls may be out without an asker: from then on none is begun.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Lock, Thread, current_thread
from typing import Any, TypeVar, cast

T = TypeVar("T")
MOST_STUCK = 4
_KEPT_THREADS = 8


class Overdue(Exception):
    """The call did not come back in time. It may still be at work; nobody will see what it finds."""


@dataclass(slots=True, eq=False)
class _Call:
    """Ended by its worker or left by its asker, whichever comes first under the lane's lock."""

    work: Callable[[], Any]
    discard: Callable[[Any], object] | None
    ended: Any = field(default_factory=Lock)  # held until the call has ended
    result: Any = None
    error: BaseException | None = None
    over: bool = False
    left: bool = False


_Inbox = SimpleQueue[_Call | None]


class Lane:
    """A pool that grows with its askers and keeps a few threads. They are daemons: a dead device stops no exit."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = Lock()
        self._idle: list[tuple[Thread, _Inbox]] = []
        self._closed = False
        self._when_back: Callable[[], None] | None = None
        self._out = 0
        self.stuck = 0  # calls that were left and are still out
        self.overdue = 0  # calls that were ever left

    @property
    def full(self) -> bool:
        return self.stuck >= MOST_STUCK

    def call(self, work: Callable[[], T], limit_s: float, discard: Callable[[T], object] | None = None) -> T:
        """The result of `work`, or its error. Raises `Overdue` after `limit_s`; `discard` then gets a late result."""
        call = _Call(work, discard)
        call.ended.acquire()
        if not self._begin(call):
            return work()
        if not call.ended.acquire(timeout=limit_s):
            with self._lock:
                if not call.over:
                    call.left = True
                    self.stuck += 1
                    self.overdue += 1
                    raise Overdue
            call.ended.acquire()
        if call.error is not None:
            raise call.error
        return cast(T, call.result)

    def close(self, when_back: Callable[[], None]) -> None:
        """End the threads that are idle. `when_back` is called once no call is out: now, or by the last one back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            self._when_back = when_back if self._out else None
        for thread, inbox in idle:
            inbox.put(None)
            thread.join()
        if self._when_back is None:
            when_back()

    def _begin(self, call: _Call) -> bool:
        with self._lock:
            if self._closed:
                return False
            self._out += 1
            idle = self._idle.pop() if self._idle else None
        if idle is not None:
            idle[1].put(call)
            return True
        inbox: _Inbox = SimpleQueue()
        inbox.put(call)
        thread = Thread(target=self._work, args=(inbox,), name=f"kvdeck-io-{self._name}", daemon=True)
        thread.start()
        return True

    def _work(self, inbox: _Inbox) -> None:
        while (call := inbox.get()) is not None:
            try:
                call.result = call.work()
            except BaseException as error:  # top of a thread: the asker raises it in its own
                call.error = error
            if not self._end(call, inbox):
                return

    def _end(self, call: _Call, inbox: _Inbox) -> bool:
        """Settle a call; whether its thread stays for another one."""
        with self._lock:
            call.over = True
        if call.left and call.error is None and call.discard is not None:
            with suppress(OSError):
                call.discard(call.result)
        with self._lock:
            self.stuck -= call.left
            self._out -= 1
            stays = not self._closed and len(self._idle) < _KEPT_THREADS
            if stays:
                self._idle.append((current_thread(), inbox))
            when_back = self._when_back if not self._out else None
        call.ended.release()
        if when_back is not None:
            when_back()
        return stays
