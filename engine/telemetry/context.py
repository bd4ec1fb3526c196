"""W3C trace context: whose trace a request belongs to."""

from __future__ import annotations

import re

from opentelemetry import trace

from engine.consistency.lease import Lease
from engine.telemetry.ring import NO_SPAN, SpanContext

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_SAMPLED = 1
_LONGEST_TRACESTATE = 512  # what the W3C text asks everyone to pass on; longer ones may be dropped


def parse_traceparent(text: str | None, tracestate: str = "") -> SpanContext:
    """W3C trace context `00-<32 hex>-<16 hex>-<2 hex>`; anything else is no parent, as the W3C text asks."""
    found = _TRACEPARENT.fullmatch(text) if text else None
    if found is None:
        return NO_SPAN
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more):
        return NO_SPAN
    if not (int(trace_id, 16) and int(span_id, 16)):
        return NO_SPAN
    kept = tracestate if len(tracestate) <= _LONGEST_TRACESTATE else ""
    return SpanContext(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & _SAMPLED), kept, True, True)


def caller_context(traceparent: str | None, tracestate: str = "") -> SpanContext:
    """The caller's span: what it passed, or else the span that is current in its OpenTelemetry context."""
    if traceparent is not None:
        return parse_traceparent(traceparent, tracestate)
    current = trace.get_current_span().get_span_context()
    if not current.is_valid:
        return NO_SPAN
    state = current.trace_state.to_header() if current.trace_state else ""
    return SpanContext(current.trace_id, current.span_id, current.trace_flags.sampled, state, True, True)


def lease_context(lease: Lease) -> SpanContext:
    """The acquire that gave a lease: what is done with it later belongs under it."""
    why = lease.explanation
    return SpanContext(int(why.trace_id, 16), int(why.span_id, 16), why.sampled, why.tracestate, why.continued)
