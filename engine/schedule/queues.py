"""Management work in queues sharded by form: each bounded, each with one worker and its own figures.

One worker a queue keeps the order of work for one prefix. A full queue refuses at once: the caller plans without it.
A worker that dies between two items is replaced, and no item is lost or done twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from enum import StrEnum
from threading import Condition, Thread
from typing import Any

from engine.clock import NS_PER_S, Clock
from engine.errors import EngineError
from engine.memory.transfer import Histogram


class Form(StrEnum):
    RESIDENT = "resident"
    COMPRESSED = "compressed"
    WINDOWED = "windowed"
    INDEXED = "indexed"
    OFFLOADED = "offloaded"


class QueueFull(EngineError):
    """A management queue is at its bound. The work was not taken; a request is planned without that tier."""

    code = "queue_full"


_Item = tuple[int, Callable[[], Any], Future[Any]]


class FormQueue:
    """One form's bounded queue and worker. `on_take` runs before each item; only an injected fault gives one."""

    def __init__(self, form: Form, bound: int, clock: Clock, on_take: Callable[[str], None] | None = None) -> None:
        self.form = form
        self.bound = bound
        self.wait = Histogram()
        self.failures = 0
        self.deaths = 0  # workers that ended by an error outside of any item's work
        self._clock = clock
        self._on_take = on_take
        self._work: deque[_Item] = deque()
        self._ready = Condition()
        self._closed = False
        self._hire()

    @property
    def depth(self) -> int:
        return len(self._work)

    @property
    def full(self) -> bool:
        return len(self._work) >= self.bound

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        """Raises `QueueFull` at the bound; never waits."""
        future: Future[Any] = Future()
        with self._ready:
            if self._closed or self.full:
                raise QueueFull(f"the {self.form} queue holds {len(self._work)} of {self.bound} items; try again later")
            self._work.append((self._clock.monotonic_ns(), work, future))
            self._ready.notify()
        return future

    def close(self) -> None:
        """Finish what was taken, then end the worker."""
        with self._ready:
            self._closed = True
            self._ready.notify()
        while (thread := self._worker()).is_alive():  # one that dies has its successor in place by then
            thread.join()

    def _hire(self) -> None:
        with self._ready:
            self._thread = Thread(target=self._run, name=f"kvdeck-{self.form}", daemon=True)
            self._thread.start()

    def _worker(self) -> Thread:
        with self._ready:
            return self._thread

    def _run(self) -> None:
        item: _Item | None = None
        try:
            while (item := self._take()) is not None:
                since_ns, work, future = item
                if self._on_take is not None:
                    self._on_take(self.form)
                self.wait.add((self._clock.monotonic_ns() - since_ns) / NS_PER_S)
                item = None  # from here on the item is begun: its waiter hears of any error
                try:
                    future.set_result(work())
                except BaseException as error:  # the waiter gets it, the worker lives on, it is counted
                    self.failures += 1
                    future.set_exception(error)
        except BaseException:  # top of a thread: counted, and another one takes over what was not begun
            self.deaths += 1
            with self._ready:
                if item is not None:
                    self._work.appendleft(item)
            self._hire()

    def _take(self) -> _Item | None:
        with self._ready:
            while not self._work and not self._closed:
                self._ready.wait()
            return self._work.popleft() if self._work else None


class FormQueues:
    """The five queues."""

    def __init__(self, bound: int, clock: Clock, on_take: Callable[[str], None] | None = None) -> None:
        self._queues = {form: FormQueue(form, bound, clock, on_take) for form in Form}

    def __getitem__(self, form: Form) -> FormQueue:
        return self._queues[form]

    def all(self) -> tuple[FormQueue, ...]:
        return tuple(self._queues.values())

    def close(self) -> None:
        for queue in self._queues.values():
            queue.close()
