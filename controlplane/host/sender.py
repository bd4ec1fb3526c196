"""Sends finished spans in batches: bounded in memory, patient with a receiver that is down, quick to end.

The SDK's batch processor drops what an unsampled caller's trace holds, gives a failed batch up, and takes 30 seconds
to end without a receiver. The history needs every span, and an inference process must end when it is told to.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, Context, attach, set_value
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

MOST_SPANS = 131_072
BATCH_SPANS = 2_048
EVERY_SECONDS = 0.5
LONGEST_PAUSE = 8  # times as long, for a receiver that stays down
DOUBT_EVERY = 8  # failures in a row
SAID_AFTER = 3  # failures in a row
LOG = logging.getLogger("kvdeck.voice")
SHUTDOWN_SECONDS = 3.0


class SpanSender(SpanProcessor):
    """Hands spans to one exporter, oldest first. `keeps` says which; all by default. One thread of its own.

    A batch that fails is sent again before newer ones, with growing pauses and in smaller parts. When `most_spans`
    wait, the oldest go and are counted in `dropped_spans`; `passed_spans` counts those that `keeps` left out.
    """

    def __init__(
        self,
        exporter: SpanExporter,
        *,
        keeps: Callable[[ReadableSpan], bool] | None = None,
        most_spans: int = MOST_SPANS,
        batch_spans: int = BATCH_SPANS,
        every_seconds: float = EVERY_SECONDS,
        name: str = "the receiver",
    ) -> None:
        self._exporter = exporter
        self._keeps = keeps
        self._most_spans = most_spans
        self._batch_spans = self._size = batch_spans
        self._name = name
        self._every_seconds = every_seconds
        self._queue: deque[ReadableSpan] = deque()
        self._out: Sequence[ReadableSpan] = ()  # the batch that is being sent
        self._next: Sequence[ReadableSpan] = ()  # the one after it, sent to see whether the first alone is refused
        self._failures = 0  # in a row
        self._changed = threading.Condition()
        self._asked = False  # to send what there is, and not to wait
        self._closing = False
        self.sent_spans = 0
        self.dropped_spans = 0
        self.passed_spans = 0
        self._thread = threading.Thread(target=self._run, name="kvdeck-spans", daemon=True)
        self._thread.start()

    @property
    def waiting_spans(self) -> int:
        """Spans that were taken and have not been sent."""
        with self._changed:
            return len(self._queue) + len(self._out) + len(self._next)

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Spans arrive finished."""

    def on_end(self, span: ReadableSpan) -> None:
        if self._keeps is not None and not self._keeps(span):
            self.passed_spans += 1
            return
        with self._changed:
            if self._closing:
                self.dropped_spans += 1
                return
            if self.waiting_spans >= self._most_spans and self._queue:
                self._queue.popleft()
                self.dropped_spans += 1
            self._queue.append(span)
            if len(self._queue) == self._batch_spans:
                self._changed.notify_all()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Sends what there is; whether all of it was taken in time."""
        until = time.monotonic() + timeout_millis / 1000
        with self._changed:
            self._asked = True
            self._changed.notify_all()
            while self.waiting_spans and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            return not self.waiting_spans

    def shutdown(self) -> None:
        """Sends what can still be sent, in a few seconds at most, and ends; what is left then is counted as dropped."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._changed.notify_all()
        self._thread.join(SHUTDOWN_SECONDS)
        self._exporter.shutdown()  # a send that still waits for the receiver is broken off
        if left := self.waiting_spans:
            self.dropped_spans += left
            LOG.warning("%d spans were not taken by %s and are lost", left, self._name)

    def _run(self) -> None:
        attach(set_value(_SUPPRESS_INSTRUMENTATION_KEY, True))  # sending spans makes no spans
        while True:
            with self._changed:
                if not self._ready():
                    self._changed.wait(self._pause())
                closing, everything = self._closing, self._closing or self._asked
                self._asked = False
            self._send(everything=everything)
            if closing:
                return

    def _ready(self) -> bool:
        full = len(self._queue) >= self._batch_spans and not self._failures
        return self._closing or self._asked or full

    def _pause(self) -> float:
        return self._every_seconds * float(min(LONGEST_PAUSE, 2**self._failures))

    def _send(self, *, everything: bool) -> None:
        """One batch and then whole ones, or all that waits; ends when the receiver does not take one."""
        first = True
        while first or everything or len(self._queue) >= self._batch_spans:
            first = False
            with self._changed:
                self._out = self._front()
            if not self._out:
                return
            if self._take(self._out):
                self._settled()
            elif not self._failed():
                return

    def _settled(self) -> None:
        if self._failures >= SAID_AFTER:
            LOG.warning("%s takes spans again", self._name)
        self._size = min(self._batch_spans, 2 * self._size)
        with self._changed:
            self._out, self._next, self._failures = (), (), 0
            self._changed.notify_all()

    def _failed(self) -> bool:
        """Whether to go on all the same: what was to be sent was given up, as the next batch went through."""
        self._failures += 1
        if self._failures == SAID_AFTER:
            LOG.warning("%s does not take spans; %d wait and are sent again", self._name, self.waiting_spans)
        if self._failures % DOUBT_EVERY == 0:
            with self._changed:
                self._next = self._front()
            if self._next and self._take(self._next):
                self.dropped_spans += len(self._out)
                self._settled()
                return True
        with self._changed:
            self._queue.extendleft(reversed([*self._out, *self._next]))
            self._out = self._next = ()
        # A receiver that is slow, or limits the size of a message, takes smaller ones.
        self._size = max(1, self._size // 2)
        return False

    def _take(self, batch: Sequence[ReadableSpan]) -> bool:
        taken = self._exporter.export(batch) is SpanExportResult.SUCCESS
        self.sent_spans += len(batch) if taken else 0
        return taken

    def _front(self) -> Sequence[ReadableSpan]:
        """Takes a batch off the queue. Under the lock."""
        return [self._queue.popleft() for _ in range(min(self._size, len(self._queue)))]
