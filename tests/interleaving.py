"""Interleavings on purpose: one operation is parked at a named point while another runs, then it goes on.

No sleeps and no timing. A point is a method, before the call or after it; the first thread that comes to it parks,
whichever works for the first operation (its own, or a queue's worker). The second operation then runs to its end, or it
is shown to wait for the first: for the engine lock, for a busy prefix, for a queue's worker or for the end of a graph
window. One that waits is held until the first has ended wherever that cannot stop the first, so the order is the same
in every run. The limits in seconds below are for a deadlock, which is a failure; no outcome depends on them.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

DEADLOCK_S = 60.0
PATIENCE_TURNS = 4
"""So many waits for a busy prefix end at once, as if their time had passed: an acquire then goes on without it."""


@dataclass(frozen=True)
class Point:
    """`owner` finds the object whose `method` the thread parks at: before the call, or `after` it.

    `locked`: the thread has the engine lock there, so nobody may get in between. `reading`: a lease is being read.
    """

    name: str
    owner: Callable[[Any], Any]
    method: str
    after: bool = False
    when: Callable[..., bool] = lambda *_, **__: True
    locked: bool = False
    reading: bool = False


@dataclass(frozen=True)
class Ended:
    """How an interleaving went. `waited` is what the second operation waited for, empty when it ran to its end."""

    reached: bool
    waited: str = ""
    locked: bool = False


class Interleaving:
    """One engine under watch; `run` may be called once. Points find their owners from `subject` (else the engine)."""

    def __init__(self, engine: Any, subject: Any = None) -> None:
        self._engine = engine
        self._subject = subject if subject is not None else engine
        self._signals: SimpleQueue[tuple[str, str]] = SimpleQueue()
        self._guard = threading.Lock()
        self._armed: Point | None = None
        self._parked: threading.Thread | None = None
        self._has_lock = False
        self._go, self._resume = threading.Event(), threading.Event()
        self._turns = 0
        self._said = False
        self._errors: list[BaseException] = []
        self._watch()

    # -- what is watched ----------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        ledger = self._engine._ledger
        self.lock = ledger.lock = _WatchedLock(ledger.lock, self)
        ledger.graph._lock = self.lock
        ledger.settled = threading.Condition(self.lock)
        self._settled_wait = ledger.settled.wait
        ledger.settled.wait = self._wait_settled
        for queue in self._engine._queues.all():
            self._watch_queue(queue)
        deferred = ledger.graph.at_safe_point

        def at_safe_point(work: Callable[[], None]) -> bool:
            ran = deferred(work)
            if not ran:
                self._say_waits("the end of a graph window")
            return bool(ran)

        ledger.graph.at_safe_point = at_safe_point

    def _watch_queue(self, queue: Any) -> None:
        submit, close = queue.submit, queue.close

        def submitting(work: Callable[[], Any]) -> Any:
            future = submit(work)
            if self._parked is queue._thread:
                self._say_waits("a queue's worker")
            return future

        def closing() -> None:
            if self._parked is queue._thread:
                self._say_waits("a queue's worker")
            close()

        queue.submit, queue.close = submitting, closing

    def _wait_settled(self, timeout: float | None = None) -> bool:
        if self._parked is None:
            return bool(self._settled_wait(timeout))
        self._turns += 1
        if self._turns <= PATIENCE_TURNS:
            return False
        self._say_waits("a busy prefix")
        while not self._resume.is_set():
            self._settled_wait(DEADLOCK_S)
        return True

    def contended(self) -> None:
        """Some thread wants the engine lock and another has it."""
        if self._parked is not None and self._has_lock:
            self._say_waits("the engine lock")
            assert self._resume.wait(DEADLOCK_S), "held for ever"

    def _say_waits(self, what: str) -> None:
        with self._guard:
            if self._parked is None or self._said:
                return
            self._said = True
        self._signals.put(("waits", what))

    # -- parking ------------------------------------------------------------------------------------------------------

    def _arm(self, point: Point) -> None:
        owner = point.owner(self._subject)
        call = getattr(owner, point.method)

        def stopping(*args: Any, **kwargs: Any) -> Any:
            if not point.after:
                self._arrive(point, *args, **kwargs)
                return call(*args, **kwargs)
            try:
                return call(*args, **kwargs)
            finally:
                self._arrive(point, *args, **kwargs)

        setattr(owner, point.method, stopping)
        self._armed = point

    def _arrive(self, point: Point, *args: Any, **kwargs: Any) -> None:
        with self._guard:
            if self._armed is not point or not point.when(*args, **kwargs):
                return
            self._armed = None
            self._has_lock = self.lock._is_owned()
            self._parked = threading.current_thread()
        self._signals.put(("parked", ""))
        assert self._go.wait(DEADLOCK_S), f"nobody let it go on from {point.name}"

    # -- the run ------------------------------------------------------------------------------------------------------

    def run(self, point: Point, first: Callable[[], Any], second: Callable[[], Any]) -> Ended:
        """Park `first` at `point`, run `second`, let `first` go on. What either returns is called once both are over
        (the second's before the first's). Raises what either raised."""
        self._arm(point)
        found: dict[str, Any] = {}
        threads = {"first": self._start("first", first, found)}
        ended: set[str] = set()
        try:
            reached = self._next(ended) == ("parked", "")
            waited, locked = "", self._has_lock
            if reached:
                threads["second"] = self._start("second", second, found)
                told, what = self._next(ended)
                waited = what if told == "waits" else ""
        finally:
            with self._guard:
                self._armed = self._parked = None
            self._go.set()
        threads["first"].join(DEADLOCK_S)
        self._resume.set()
        with self.lock:
            self._engine._ledger.settled.notify_all()
        for thread in threads.values():
            thread.join(DEADLOCK_S)
        stuck = [name for name, thread in threads.items() if thread.is_alive()]
        assert not stuck, f"{stuck} did not end:\n{_stacks()}"
        for name in ("second", "first"):
            if callable(found.get(name)):
                self._guarded(found[name])
        if self._errors:
            raise self._errors[0]
        return Ended(reached, waited, locked)

    def _start(self, name: str, work: Callable[[], Any], found: dict[str, Any]) -> threading.Thread:
        def run() -> None:
            found[name] = self._guarded(work)
            self._signals.put(("ended", name))

        thread = threading.Thread(target=run, name=f"interleaved-{name}", daemon=True)
        thread.start()
        return thread

    def _guarded(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except BaseException as error:  # the caller of `run` gets it
            self._errors.append(error)
            return None

    def _next(self, ended: set[str]) -> tuple[str, str]:
        try:
            told, what = self._signals.get(timeout=DEADLOCK_S)
        except Empty:
            raise AssertionError(f"nothing happens any more:\n{_stacks()}") from None
        if told == "ended":
            ended.add(what)
        return told, what


class _WatchedLock:
    """The engine lock; says when somebody must wait for it."""

    def __init__(self, inner: Any, watcher: Interleaving) -> None:
        self._inner = inner
        self._watcher = watcher
        self.release = inner.release
        self._release_save = inner._release_save
        self._acquire_restore = inner._acquire_restore
        self._is_owned = inner._is_owned

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._inner.acquire(blocking=False):
            return True
        if not blocking:
            return False
        self._watcher.contended()
        return bool(self._inner.acquire(timeout=timeout))

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def _stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        parts.append(f"-- {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame)[-6:])}")
    return "\n".join(parts)
