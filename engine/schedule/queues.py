"""Management work in queues sharded by form: each bounded, each with one worker and its own figures.

One worker a queue keeps the order of work for one prefix. A full queue refuses at once: the caller plans without it.
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


class FormQueue:
    """One form's bounded queue and worker."""

    def __init__(self, form: Form, bound: int, clock: Clock) -> None:
        self.form = form
        self.bound = bound
        self.wait = Histogram()
        self.failures = 0
        self._clock = clock
        self._work: deque[tuple[int, Callable[[], Any], Future[Any]]] = deque()
        self._ready = Condition()
        self._closed = False
        self._thread = Thread(target=self._run, name=f"kvdeck-{form}", daemon=True)
        self._thread.start()

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
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._ready:
                while not self._work and not self._closed:
                    self._ready.wait()
                if not self._work:
                    return
                since_ns, work, future = self._work.popleft()
            self.wait.add((self._clock.monotonic_ns() - since_ns) / NS_PER_S)
            try:
                future.set_result(work())
            except BaseException as error:  # top of a thread: the waiter gets it, the worker lives on, it is counted
                self.failures += 1
                future.set_exception(error)


class FormQueues:
    """The five queues."""

    def __init__(self, bound: int, clock: Clock) -> None:
        self._queues = {form: FormQueue(form, bound, clock) for form in Form}

    def __getitem__(self, form: Form) -> FormQueue:
        return self._queues[form]

    def all(self) -> tuple[FormQueue, ...]:
        return tuple(self._queues.values())

    def close(self) -> None:
        for queue in self._queues.values():
            queue.close()
