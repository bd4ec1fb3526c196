"""The hot path's only telemetry call: append a compact tuple to a bounded ring.

Three rings by how much a loss hurts. `checks` (successful validations) drops its oldest first; `requests` (acquire,
commit and other spans) drops its oldest when validations can give no more; `vital` (transitions, commands, whatever
failed) is never dropped: when it is full, the appending thread drains it through the pump itself.
Every drop is counted. Tuples are read only by `pump.py`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import getrandbits
from typing import Any, NamedTuple

from engine.consistency.prefix import Transition
from engine.telemetry.registry import SPANS

VITAL = frozenset(name for name, kind in SPANS.items() if kind.vital)


class SpanContext(NamedTuple):
    """Ids of a span that others may be children of or caused by; zeros mean none.

    `sampled` and `tracestate` (W3C) are those of the trace's beginning. `continued`: the trace was begun by the caller;
    `remote`: the span itself is the caller's.
    """

    trace_id: int
    span_id: int
    sampled: bool = True
    tracestate: str = ""
    continued: bool = False
    remote: bool = False

    @property
    def hex_trace(self) -> str:
        return f"{self.trace_id:032x}" if self.trace_id else ""

    @property
    def hex_span(self) -> str:
        return f"{self.span_id:016x}" if self.span_id else ""


NO_SPAN = SpanContext(0, 0)


def new_span(parent: SpanContext = NO_SPAN) -> SpanContext:
    """A span id in the parent's trace, or in a new trace."""
    if not parent.trace_id:
        return SpanContext(getrandbits(128) | 1, getrandbits(64) | 1)
    return SpanContext(
        parent.trace_id, getrandbits(64) | 1, parent.sampled, parent.tracestate, parent.continued, False
    )  # fmt: skip


@dataclass(slots=True)
class Tally:
    """What was recorded and what was dropped, in spans. `recorded` - `dropped` must reach the receivers."""

    recorded: int = 0
    by_name: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    dropped_checks: int = 0
    dropped_requests: int = 0


class Ring:
    """Appends come from threads that hold the engine lock or not: `deque.append` is atomic."""

    def __init__(self, capacity: int, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self.capacity = capacity
        self.checks: deque[tuple[Any, ...]] = deque()
        self.requests: deque[tuple[Any, ...]] = deque()
        self.vital: deque[tuple[Any, ...]] = deque()
        self.tally = Tally()
        self.drain: Callable[[], None] = lambda: None

    def check_batch(
        self,
        parent: SpanContext,
        prefix_id: str,
        boundary: int,
        phase: str,
        checks: tuple[Any, ...],
        times: tuple[int, ...],
    ) -> None:
        """Validations of one boundary: `checks` are `Check`s, `times` one more clock reading than checks."""
        if not self.enabled:
            return
        record = ("checks", parent, prefix_id, boundary, phase, checks, times)
        if any(c.failed for c in checks):
            self._vital(record)
        else:
            if len(self.checks) >= self.capacity:
                self.tally.dropped_checks += len(self.checks.popleft()[5])
            self.checks.append(record)
        self._count("kvcache.validate", len(checks))

    def request(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext,
        start_ns: int,
        end_ns: int,
        attributes: tuple[Any, ...],
        failed: str = "",
    ) -> None:
        """A span with its own ids. `attributes` are alternating names and values; `failed` is the error's sentence."""
        if not self.enabled:
            return
        record = ("span", name, context, parent, start_ns, end_ns, attributes, failed)
        if failed or name in VITAL:
            self._vital(record)
        else:
            if len(self.requests) >= self.capacity:
                if self.checks:
                    self.tally.dropped_checks += len(self.checks.popleft()[5])
                else:
                    self.requests.popleft()
                    self.tally.dropped_requests += 1
            self.requests.append(record)
        self._count(name, 1)

    def transition(self, context: SpanContext, parent: SpanContext, start_ns: int, step: Transition) -> None:
        if not self.enabled:
            return
        self._vital(("transition", context, parent, start_ns, step))
        self._count("kvcache.transition", 1)

    def _vital(self, record: tuple[Any, ...]) -> None:
        if len(self.vital) >= self.capacity:
            self.drain()
        self.vital.append(record)

    def _count(self, name: str, n: int) -> None:
        tally = self.tally
        tally.recorded += n
        # No call between reading and writing: threads change places at calls, and a count would be lost.
        tally.by_name[name] += n

    @property
    def waiting(self) -> int:
        return len(self.checks) + len(self.requests) + len(self.vital)
