"""Turns ring records into SDK spans in a background thread and hands them to ordinary OpenTelemetry processors."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from threading import Event, Lock, Thread
from typing import Any
from urllib.parse import quote

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanKind, TraceFlags, TraceState
from opentelemetry.trace import SpanContext as OtelContext
from opentelemetry.trace.status import Status, StatusCode

from engine.clock import Clock
from engine.consistency.prefix import Transition
from engine.telemetry.registry import SCHEMA_URL, SCOPE_NAME, SCOPE_VERSION
from engine.telemetry.ring import VITAL, Ring, SpanContext, new_span

_SCOPE = InstrumentationScope(SCOPE_NAME, SCOPE_VERSION, SCHEMA_URL)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_NOT_SAMPLED = TraceFlags(TraceFlags.DEFAULT)
_NO_STATE = TraceState()
_OK = Status(StatusCode.UNSET)
_BATCH = 512


class EngineSpan(ReadableSpan):
    """A span of the engine. `continued`: its trace was begun by the caller, who decided whether it is sampled."""

    def __init__(self, *, continued: bool, **parts: Any) -> None:
        super().__init__(**parts)
        self.continued = continued


class Pump:
    """One thread. `flush` empties the rings into the processors; `close` flushes and ends the thread.

    Wall-clock span times are monotonic readings moved by one offset taken at start, so that a clock jump cannot turn a
    span inside out.
    """

    def __init__(
        self,
        ring: Ring,
        processors: Sequence[SpanProcessor],
        resource: Resource,
        clock: Clock,
        interval_s: float = 0.05,
        dashboard_url: str = "",
    ) -> None:
        self._ring = ring
        self._dashboard = DashboardLinks(dashboard_url, resource) if dashboard_url else None
        self._state = ("", _NO_STATE)
        self._processors = tuple(processors)
        self._resource = resource
        self._offset_ns = clock.wall_ns() - clock.monotonic_ns()
        self._interval_s = interval_s
        self._stop = Event()
        self._drain_lock = Lock()
        self.failures = 0
        ring.drain = self.flush
        self._thread = Thread(target=self._run, name="kvdeck-telemetry", daemon=True)
        self._thread.start()

    def flush(self) -> None:
        """Hand over everything recorded so far. Safe from any thread."""
        with self._drain_lock:
            for queue in (self._ring.vital, self._ring.requests, self._ring.checks):
                for _ in range(len(queue)):
                    self._hand_over(queue)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self.flush()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            while self._ring.waiting and not self._stop.is_set():
                self._some()

    def _some(self) -> None:
        with self._drain_lock:
            for queue in (self._ring.vital, self._ring.requests, self._ring.checks):
                for _ in range(min(_BATCH, len(queue))):
                    self._hand_over(queue)

    def _hand_over(self, queue: deque[tuple[Any, ...]]) -> None:
        try:
            record = queue.popleft()
        except IndexError:  # the appending thread made room meanwhile
            return
        if not self._processors:
            return
        for span in self._spans(record):
            for processor in self._processors:
                try:
                    processor.on_end(span)
                except Exception:  # top of a thread: an exporter must not stop the telemetry; it is counted
                    self.failures += 1

    def _spans(self, record: tuple[Any, ...]) -> Iterator[ReadableSpan]:
        if record[0] == "checks":
            yield from self._check_spans(*record[1:])
        elif record[0] == "span":
            yield self._span(*record[1:])
        else:
            yield self._transition_span(*record[1:])

    def _check_spans(
        self,
        parent: SpanContext,
        prefix_id: str,
        boundary: int,
        phase: str,
        checks: tuple[Any, ...],
        times: tuple[int, ...],
    ) -> Iterator[ReadableSpan]:
        for i, check in enumerate(checks):
            attributes: dict[str, Any] = {
                "kvcache.prefix.id": prefix_id,
                "kvcache.validation": str(check.validation),
                "kvcache.object.kind": str(check.kind),
                "kvcache.boundary": boundary,
                "kvcache.verdict": str(check.verdict),
                "kvcache.reason": check.reason,
                "kvcache.phase": phase,
            }
            failed = f"{check.validation}: {check.reason}" if check.failed else ""
            yield self._build("kvcache.validate", new_span(parent), parent, times[i], times[i + 1], attributes, failed)

    def _span(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext,
        start_ns: int,
        end_ns: int,
        attributes: tuple[Any, ...],
        failed: str,
    ) -> ReadableSpan:
        pairs: Iterable[tuple[Any, Any]] = zip(attributes[0::2], attributes[1::2], strict=True)
        return self._build(name, context, parent, start_ns, end_ns, dict(pairs), failed)

    def _transition_span(
        self, context: SpanContext, parent: SpanContext, start_ns: int, step: Transition
    ) -> ReadableSpan:
        links: tuple[Link, ...] = ()
        cause = step.cause
        if cause.trace_id and cause.span_id:
            links = (Link(OtelContext(int(cause.trace_id, 16), int(cause.span_id, 16), False, _SAMPLED)),)
        return self._build(
            "kvcache.transition", context, parent, start_ns, step.monotonic_ns, transition_attributes(step), "", links
        )

    def _build(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext,
        start_ns: int,
        end_ns: int,
        attributes: dict[str, Any],
        failed: str,
        links: Sequence[Link] = (),
    ) -> ReadableSpan:
        if self._dashboard is not None:
            self._dashboard.add(name, attributes)
        # A failure or a transition is kept whatever the caller decided of its trace.
        sampled = context.sampled or bool(failed) or name in VITAL
        state = self._state_of(context.tracestate)
        flags = _SAMPLED if sampled else _NOT_SAMPLED
        above = None
        if parent.trace_id:
            above = OtelContext(
                parent.trace_id, parent.span_id, parent.remote, _SAMPLED if parent.sampled else _NOT_SAMPLED, state
            )
        return EngineSpan(
            continued=context.continued,
            name=name,
            context=OtelContext(context.trace_id, context.span_id, False, flags, state),
            parent=above,
            resource=self._resource,
            attributes=attributes,
            links=links,
            kind=SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, failed) if failed else _OK,
            start_time=start_ns + self._offset_ns,
            end_time=max(end_ns, start_ns) + self._offset_ns,
            instrumentation_scope=_SCOPE,
        )

    def _state_of(self, tracestate: str) -> TraceState:
        if tracestate != self._state[0]:  # spans of one request come together
            self._state = (tracestate, TraceState.from_header([tracestate]) if tracestate else _NO_STATE)
        return self._state[1]


class DashboardLinks:
    """Adds where the dashboard shows what a span is about: the prefix, or for a command the audit."""

    def __init__(self, base_url: str, resource: Resource) -> None:
        self._base = base_url.rstrip("/")
        self._engine = quote(str(resource.attributes.get("kvdeck.engine.id", "")), safe="")

    def add(self, name: str, attributes: dict[str, Any]) -> None:
        """Sets `kvcache.dashboard.url` on the few spans people open."""
        if name == "kvcache.command":
            attributes["kvcache.dashboard.url"] = f"{self._base}/audit?engine={self._engine}"
        elif name in ("kvcache.transition", "kvcache.acquire") and (prefix_id := attributes.get("kvcache.prefix.id")):
            attributes["kvcache.dashboard.url"] = f"{self._base}/prefixes?prefix={self._engine}/{prefix_id}"


def transition_attributes(step: Transition) -> dict[str, Any]:
    """The attributes of docs/reference/wire.md; absent ids are left out. A snapshot is made of the same."""
    cause = step.cause
    found: dict[str, Any] = {
        "kvcache.prefix.id": step.prefix_id,
        "kvcache.namespace": step.namespace,
        "kvcache.life": step.life,
        "kvcache.version": step.version,
        "kvcache.state.from": str(step.before),
        "kvcache.state.to": str(step.after),
        "kvcache.basis": "approximate" if step.approximate else "exact",
        "kvcache.cause": str(cause.cause),
        "kvcache.reason": cause.reason or "none",
        "kvcache.tokens": step.tokens,
        "kvcache.pages": step.pages,
        "kvcache.bytes": step.bytes_moved,
        "kvcache.objects": json.dumps(step.objects, separators=(",", ":")),
        "kvcache.checkpoints": json.dumps(
            [{"id": i, "boundary": b, "kinds": list(k), "tiers": list(t)} for i, b, k, t in step.checkpoints],
            separators=(",", ":"),
        ),
        "kvcache.pinned": step.pinned,
        "kvcache.monotonic_ns": step.monotonic_ns,
    }
    for tier in ("gpu", "host", "disk"):
        found[f"kvcache.bytes.{tier}"] = sum(
            row.get(tier, 0) for kind, row in step.objects.items() if kind != "disk_prefix"
        )
    optional = {
        "kvcache.parent.id": step.parent_id,
        "kvcache.cause.trace_id": cause.trace_id,
        "kvcache.cause.span_id": cause.span_id,
        "kvcache.command.id": cause.command_id,
    }
    return found | {name: value for name, value in optional.items() if value}
