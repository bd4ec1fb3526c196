"""Which spans a tracing backend gets. The history is not asked: it gets all of them."""

from __future__ import annotations

from dataclasses import dataclass

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

from engine.telemetry.ring import VITAL

ALL_TRACES = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """`ratio` of the traces that begin in the engine, by trace id: every host and backend chooses the same ones.

    `follow_caller`: of a trace that the caller began, what the caller decided. Transitions, commands and everything
    that failed are kept whatever either says.
    """

    ratio: float = ALL_TRACES
    follow_caller: bool = True

    def keeps(self, span: ReadableSpan) -> bool:
        """Whether the backend gets this span."""
        if span.name in VITAL or not span.status.is_ok:
            return True
        context = span.context
        if context is None:
            return False
        if self.follow_caller and getattr(span, "continued", False):
            return bool(context.trace_flags.sampled)
        chosen = context.trace_id & TraceIdRatioBased.TRACE_ID_LIMIT
        return bool(chosen < TraceIdRatioBased.get_bound_for_rate(self.ratio))
