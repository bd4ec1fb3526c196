"""What makes tier I/O safe to wait for: a time limit, a circuit breaker a tier, retries where one can help, figures.

A device call that does not come back is left after its limit (lane.py): who asked gets `TierUnavailable`, the breaker
opens at once, and what the call brings later is thrown away.
"""

from __future__ import annotations

import errno
import random
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Lock
from typing import TypeVar

import torch

from engine.clock import NS_PER_S, Clock
from engine.errors import EngineError, OutOfMemory, TierUnavailable
from engine.memory.lane import Lane, Overdue

T = TypeVar("T")

RETRYABLE_ERRNO = frozenset(
    {errno.EINTR, errno.EAGAIN, errno.EBUSY, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ETIMEDOUT}
)
"""Where a second try may go better. A missing file, a full disk or a wrong checksum will be the same again."""

SLOWEST_BYTES_PER_S = 50e6
"""A tenth of an ordinary disk: a large object is given its time on top of the limit."""

NO_MEMORY = (MemoryError, torch.OutOfMemoryError)
"""What an allocation raises that fails, on the host and on the GPU."""

IO_BOUNDS_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class Breaker(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(slots=True)
class Histogram:
    """Counts by upper bound; the last bucket is open. Plain ints, read by the metrics thread without a lock."""

    bounds: tuple[float, ...] = IO_BOUNDS_S
    counts: list[int] = field(default_factory=list)
    total: float = 0.0
    count: int = 0
    on_add: Callable[[float], None] | None = None  # a metric instrument that records the same value

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
        self.count += 1
        if self.on_add is not None:
            self.on_add(value)


@dataclass(slots=True)
class TierIo:
    """I/O of one tier in one direction."""

    seconds: Histogram = field(default_factory=Histogram)
    moved_bytes: int = 0

    def add(self, elapsed_s: float, n_bytes: int) -> None:
        self.seconds.add(elapsed_s)
        self.moved_bytes += n_bytes

    def estimate_s(self, n_bytes: int, default_bytes_per_s: float) -> float:
        """Expected seconds for `n_bytes`, from what was measured so far."""
        if self.moved_bytes < 1 << 20 or self.seconds.total <= 0:
            return n_bytes / default_bytes_per_s
        return n_bytes * self.seconds.total / self.moved_bytes


class CircuitBreaker:
    """Opens after `limit` failures in a row; after `cool_down_s` one trial is let through (half-open).

    A failure is one of the device (an OS error, a time-out), not of one object: a corrupt file says nothing about
    the next one.
    """

    def __init__(self, tier: str, clock: Clock, limit: int = 5, cool_down_s: float = 5.0) -> None:
        self.tier = tier
        self._clock = clock
        self._limit = limit
        self._cool_down_ns = int(cool_down_s * NS_PER_S)
        self._failures = 0
        self._opened_ns = 0
        self._trial = False
        self._lock = Lock()

    @property
    def state(self) -> Breaker:
        if self._failures < self._limit:
            return Breaker.CLOSED
        waited = self._clock.monotonic_ns() - self._opened_ns
        return Breaker.HALF_OPEN if waited >= self._cool_down_ns else Breaker.OPEN

    @property
    def rung(self) -> int:
        """0 closed, 1 half open, 2 open."""
        return (Breaker.CLOSED, Breaker.HALF_OPEN, Breaker.OPEN).index(self.state)

    def admits(self) -> bool:
        """May a transfer start? In half-open state only one at a time."""
        with self._lock:
            state = self.state
            if state is Breaker.CLOSED:
                return True
            if state is Breaker.OPEN or self._trial:
                return False
            self._trial = True
            return True

    @property
    def closed(self) -> bool:
        return self._failures < self._limit

    def succeeded(self) -> None:
        with self._lock:
            self._failures, self._trial = 0, False

    def undecided(self) -> None:
        """The call ended without an answer of the device: a trial is over, and the next one may begin."""
        with self._lock:
            self._trial = False

    def trip(self) -> None:
        """Open at once: a call that does not come back says more than one that fails."""
        with self._lock:
            self._failures = max(self._failures, self._limit)
            self._trial = False
            self._opened_ns = self._clock.monotonic_ns()

    def failed(self) -> None:
        with self._lock:
            self._failures += 1
            self._trial = False
            if self._failures >= self._limit:
                self._opened_ns = self._clock.monotonic_ns()


def no_memory() -> OutOfMemory:
    """Of a GPU copy's own room, where nothing was written yet."""
    return OutOfMemory("gpu: no memory for a copy to pass through; nothing was changed")


class Transfer:
    """Runs one tier's reads and writes with its breaker, its retries, its time limit and its figures.

    With a `lane` each call has `limit_s` seconds, and more for many bytes; without one it is waited for.
    """

    def __init__(
        self,
        tier: str,
        clock: Clock,
        *,
        attempts: int = 3,
        backoff_s: float = 0.005,
        lane: Lane | None = None,
        limit_s: float = 5.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.tier = tier
        self.read = TierIo()
        self.write = TierIo()
        self.breaker = CircuitBreaker(tier, clock)
        self.lane = lane
        self.retries = 0
        self._clock = clock
        self._attempts = attempts
        self._backoff_s = backoff_s
        self._limit_s = limit_s
        self._sleep = sleep
        self._jitter = random.Random(tier)

    def run(
        self,
        io: TierIo,
        n_bytes: int,
        work: Callable[[], T],
        deadline_ns: int | None = None,
        discard: Callable[[T], object] | None = None,
    ) -> T:
        """The result of `work`. Raises `TierUnavailable` for device failures and calls that do not come back,
        `OutOfMemory`, and the engine's own errors as they are.

        A retry waits with jitter and never past the deadline. `discard` undoes what a call did that came back too late.
        """
        if self.lane is not None and self.lane.full:
            raise TierUnavailable(f"{self.tier}: {self.lane.stuck} calls have not come back; it waits for one of them")
        if not self.breaker.admits():
            raise TierUnavailable(
                f"{self.tier}: the breaker is open after repeated I/O failures; it tries again by itself"
            )
        for attempt in range(1, self._attempts + 1):
            started = self._clock.monotonic_ns()
            try:
                result = self.bounded(work, n_bytes, discard)
            except EngineError:
                self.breaker.succeeded()  # the device answered; the object was bad
                raise
            except NO_MEMORY as error:  # of the host or the GPU, not of the device: that may be as good as ever
                self.breaker.undecided()
                raise OutOfMemory(f"{self.tier}: no memory for {n_bytes:,} bytes to pass through") from error
            except Overdue as error:
                self.breaker.trip()
                raise TierUnavailable(f"{self.tier}: a call did not come back within its time") from error
            except OSError as error:
                self.breaker.failed()
                if not self._worth_a_retry(error, attempt, deadline_ns):
                    raise TierUnavailable(
                        f"{self.tier}: {error.strerror or error} ({error.filename or 'no file'})"
                    ) from error
                self._wait(attempt, deadline_ns)
                continue
            except BaseException:  # not known to be harmless, and a trial in half-open state must end
                self.breaker.failed()
                raise
            self.breaker.succeeded()
            io.add((self._clock.monotonic_ns() - started) / NS_PER_S, n_bytes)
            return result
        raise AssertionError("unreachable: the last attempt returns or raises")

    def bounded(
        self,
        work: Callable[[], T],
        n_bytes: int = 0,
        discard: Callable[[T], object] | None = None,
        *,
        patience: float = 1.0,
    ) -> T:
        """The result of one device call without breaker and retries. Raises `Overdue`, after `patience` limits."""
        if self.lane is None:
            return work()
        return self.lane.call(work, patience * self._limit_s + n_bytes / SLOWEST_BYTES_PER_S, discard)

    def _worth_a_retry(self, error: OSError, attempt: int, deadline_ns: int | None) -> bool:
        late = deadline_ns is not None and self._clock.monotonic_ns() >= deadline_ns
        return attempt < self._attempts and error.errno in RETRYABLE_ERRNO and self.breaker.closed and not late

    def _wait(self, attempt: int, deadline_ns: int | None) -> None:
        self.retries += 1
        wait_s = self._backoff_s * 2 ** (attempt - 1) * (0.5 + self._jitter.random())
        if deadline_ns is not None:
            wait_s = min(wait_s, max(0.0, (deadline_ns - self._clock.monotonic_ns()) / NS_PER_S))
        self._sleep(wait_s)


class CopyStream:
    """Copies between devices off the compute stream: an own CUDA stream on a GPU, the calling thread on a CPU."""

    def __init__(self, device: str) -> None:
        cuda = device.startswith("cuda")
        self._stream = torch.cuda.Stream(device) if cuda else None  # type: ignore[no-untyped-call]

    def run(self, work: Callable[[], T]) -> T:
        """Runs `work` on the stream and waits for it, so that what follows may read the bytes."""
        if self._stream is None:
            return work()
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            result = work()
        self._stream.synchronize()
        return result

    def follow(self) -> None:
        """What the caller's own stream was given so far reads pages: what runs here from now on comes after it, so
        that pages are not overwritten before those reads are done."""
        if self._stream is None or torch.cuda.is_current_stream_capturing():  # a capture runs nothing yet
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))

    def finish_reads(self) -> None:
        """Wait for reads the caller's own stream was given: until then the pages they read must not be freed."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).synchronize()
