"""Feeds requests to an engine the way an inference server does: acquire, load, compute the rest, commit, release."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from controlplane.workload.report import Report
from controlplane.workload.request import Request
from engine.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from engine import CacheEngine
    from engine.integrations.synthetic import SyntheticModel

TICK_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverConfig:
    """How requests are fed.

    `inflight` leases stay open while later requests start, as in a running batch. `verify` compares every byte loaded.
    `speed` 1.0 keeps the requests' own times, 10 is ten times faster, None as fast as possible. `restore_deadline_s`
    is what a restore may take. `ticks` does the engine's housekeeping here; not where an agent does it.
    """

    verify: bool = True
    inflight: int = 0
    speed: float | None = None
    restore_deadline_s: float = 0.2
    ticks: bool = True


@dataclass(slots=True)
class _Running:
    request: Request
    lease: Any
    resume_tokens: int


class Driver:
    """Runs requests through one engine and a synthetic model, and counts in `report`.

    `model` None feeds an engine that keeps no bytes. `on_request` is called after each request has started. Errors of
    the engine on one request are counted by code and the request is computed from its start: a cache may fail, a
    request may not.
    """

    def __init__(
        self,
        engine: CacheEngine,
        model: SyntheticModel | None,
        config: DriverConfig | None = None,
        *,
        stop: threading.Event | None = None,
        on_request: Callable[[Report], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.report = Report()
        self._engine = engine
        self._model = model
        self._config = config or DriverConfig()
        self._stop = stop or threading.Event()
        self._on_request = on_request
        self._clock = clock
        self._running: deque[_Running] = deque()
        self._next_tick = clock()

    def run(self, requests: Iterable[Request]) -> Report:
        """Feed `requests` until they end, raise, or `stop` is set; open leases are finished, or released on stop.

        An error raised by `requests` itself passes through, after the requests before it were finished.
        """
        started = self._clock()
        try:
            for request in requests:
                self._wait_until(started, request)
                if self._stop.is_set():
                    break
                self._tick()
                self._start(request)
                while len(self._running) > self._config.inflight:
                    self._finish(self._running.popleft())
                self.report.wall_s = self._clock() - started
                if self._on_request is not None:
                    self._on_request(self.report)
        finally:
            self._drain()
            self.report.wall_s = self._clock() - started
        return self.report

    def _wait_until(self, started: float, request: Request) -> None:
        if self._config.speed is None:
            return
        due = started + request.at_s / self._config.speed
        while (left := due - self._clock()) > 0 and not self._stop.wait(min(left, TICK_S)):
            self._tick()

    def _tick(self) -> None:
        if self._config.ticks and self._clock() >= self._next_tick:
            self._next_tick = self._clock() + TICK_S
            self._engine.tick()

    def _start(self, request: Request) -> None:
        with self._timed("acquire"):
            lease = self._engine.acquire(
                request.prompt, namespace=request.namespace, deadline_s=self._config.restore_deadline_s
            )
        running = _Running(request, lease, lease.resume_tokens)
        self._running.append(running)  # from here on `_drain` releases it, whatever happens
        self.report.acquired(len(request.prompt), lease)
        if self._model is not None and lease.usable_tokens:
            self._load(running, self._model)

    def _load(self, running: _Running, model: SyntheticModel) -> None:
        try:
            with self._timed("load"):
                loaded = running.lease.load()
        except EngineError as error:
            self.report.errors[error.code] += 1
            running.resume_tokens = 0
            return
        self.report.loads += 1
        if self._config.verify:
            with self._timed("verify"):
                result = model.verify(loaded, running.request.prompt)
            self.report.verified(result.bytes_checked, result.wrong_bytes, result.lossy_bytes, result.first_wrong)
            self._engine.report_verification(result.bytes_checked, result.wrong_bytes)

    def _finish(self, running: _Running) -> None:
        try:
            self._commit(running)
        except EngineError as error:
            self.report.errors[error.code] += 1
        finally:
            with self._timed("release"):
                running.lease.release()

    def _commit(self, running: _Running) -> None:
        tokens = running.request.tokens
        checkpoints = sorted({b for b in running.lease.checkpoint_hints if b <= len(tokens)} | {len(tokens)})
        state = None
        if self._model is not None:
            # New state starts on a page boundary; a boundary inside a page means its page is computed again.
            page_tokens = self._model.spec.page_tokens
            start = running.resume_tokens // page_tokens * page_tokens
            with self._timed("prefill"):
                state = self._model.prefill(tokens, start, [b for b in checkpoints if b > start])
        with self._timed("commit"):
            result = self._engine.commit(tokens, state, lease=running.lease, checkpoints=checkpoints)
        if result.outcome == "admitted":
            self.report.committed += 1
        else:
            self.report.refusals[str(result.reason)] += 1

    def _drain(self) -> None:
        while self._running:
            running = self._running.popleft()
            if self._stop.is_set():
                running.lease.release()
            else:
                self._finish(running)

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.report.seconds[phase] += time.perf_counter() - started


def engine_facts(engine: CacheEngine) -> dict[str, Any]:
    """The engine's own view at the end of a run: hits by object kind, tiers, recoveries, broken invariants."""
    stats, counters = engine.stats(), engine.counters()
    by_kind: Counter[str] = Counter()
    for (kind, _state, _tier), (tokens, _requests) in counters.by_hit.items():
        by_kind[kind] += tokens
    kept = ("tiers", "recoveries", "fragmentation", "prefixes", "quarantined", "telemetry_dropped")
    return {name: stats[name] for name in kept} | {
        "hit_tokens_by_kind": dict(by_kind),
        "hits": [
            {"kind": kind, "state": state, "tier": tier, "tokens": tokens, "requests": requests}
            for (kind, state, tier), (tokens, requests) in sorted(counters.by_hit.items())
        ],
        "validations": counters.validations,
        "transitions": counters.transitions,
        "evictions": {f"{cause}, {kind}": count for (cause, kind), count in sorted(counters.evictions.items())},
        "violations": engine.check(),
    }
