"""An operator's command as an engine takes it: run under the operator's trace, ended in an outcome and a span."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Event
from typing import Any

from engine.clock import NS_PER_S
from engine.commands.asking import foresee, inspect
from engine.commands.breaking import fault
from engine.commands.evicting import drain, evict
from engine.commands.pinning import pin, unpin
from engine.commands.reach import Reach
from engine.commands.reforming import compress, offload
from engine.commands.restoring import warm
from engine.commands.ticket import BadCommand, CommandRequest, Progress, Rates, Ticket
from engine.commands.upkeep import compact, scrub
from engine.consistency.prefix import CauseOf
from engine.consistency.state import Cause
from engine.errors import EngineClosed, EngineError
from engine.telemetry.context import parse_traceparent
from engine.telemetry.ring import SpanContext, new_span

Kind = Callable[[Reach, Ticket], dict[str, Any]]
KINDS: Mapping[str, Kind] = {
    "evict": evict, "warm": warm, "restore": warm, "pin": pin, "unpin": unpin, "compress": compress,
    "offload": offload, "compact": compact, "scrub": scrub, "drain": drain, "foresee": foresee, "inspect": inspect,
    "fault": fault,
}  # fmt: skip
"""What each kind does: in steps that a ticket paces, on the agent's worker, ended with what was done."""
NO_PROGRESS = frozenset({"bytes", "leases_left", "prefixes"})
"""Numbers in an outcome that say nothing of whether anything was done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOutcome:
    """`status` is succeeded, failed, refused, expired or cancelled; `outcome` says what was done, and what was refused
    why."""

    status: str
    outcome: dict[str, Any]


class Commands:
    """Runs commands one by one; each ends in an outcome and a `kvcache.command` span under the operator's trace."""

    def __init__(self, reach: Reach, rates: Rates) -> None:
        self._reach = reach
        self._ledger = reach.ledger
        self._rates = rates
        self._closing = Event()

    def execute(self, request: CommandRequest, progress: Progress) -> CommandOutcome:
        """Raises `BadCommand` for what cannot be a command here; everything else ends in an outcome."""
        ledger = self._ledger
        parent = parse_traceparent(request.traceparent)
        span = new_span(parent)
        start_ns = ledger.clock.monotonic_ns()
        if request.kind not in KINDS:
            raise BadCommand(f"command {request.kind!r} is unknown; known: {', '.join(KINDS)}")
        if request.expires_at_unix_s and ledger.clock.wall_ns() > request.expires_at_unix_s * NS_PER_S:
            found = CommandOutcome(status="expired", outcome={"reason": "expired before it was run"})
        else:
            found = self._run(request, span, progress)
        outcome = {**found.outcome, "trace_id": span.hex_trace, "span_id": span.hex_span}
        if ledger.ring.enabled:
            reason = str(found.outcome.get("reason", ""))
            attributes = (
                "kvcache.command.id", request.id, "kvcache.command.kind", request.kind,
                "kvcache.outcome", found.status, "kvcache.reason", reason,
            )  # fmt: skip
            failed = f"{request.kind}: {found.status}" if found.status in ("failed", "refused") else ""
            ledger.ring.request(
                "kvcache.command", span, parent, start_ns, ledger.clock.monotonic_ns(), attributes, failed
            )
        return CommandOutcome(status=found.status, outcome=outcome)

    def _run(self, request: CommandRequest, span: SpanContext, progress: Progress) -> CommandOutcome:
        cause = Cause.POLICY if request.actor.startswith("policy:") else Cause.COMMAND
        why = CauseOf(cause, request.kind, span.hex_trace, span.hex_span, request.id)
        ticket = Ticket(request, why, span, progress, self._rates, self._ledger.clock, self._closing)
        if request.cancelled():
            return CommandOutcome(status="cancelled", outcome={"reason": "cancelled before it was run"})
        self._wait_for_safe_point()
        try:
            outcome = KINDS[request.kind](self._reach, ticket)
        except BadCommand:
            raise
        except EngineError as error:  # a full queue, a tier that fails: nothing (more) was done
            outcome = {"failed": [{"reason": error.code}]}
        if ticket.cut_short and ticket.request.cancelled():
            return CommandOutcome(status="cancelled", outcome={**_with_reason(outcome), "reason": "cancelled"})
        if ticket.cut_short and not outcome.get("failed"):
            outcome = {**outcome, "failed": [{"reason": EngineClosed.code}]}
        return CommandOutcome(status=_status(outcome), outcome=_with_reason(outcome))

    def _wait_for_safe_point(self) -> None:
        """Inside a CUDA-graph window nothing may move: the command is deferred to the window's end, within reason.

        After that it runs anyway, and what would move is refused one by one.
        """
        reached = Event()
        if not self._ledger.graph.at_safe_point(reached.set):
            reached.wait(self._reach.choices.timeout_s)

    def close(self) -> None:
        """Long commands end at their next step."""
        self._closing.set()


def _status(outcome: dict[str, Any]) -> str:
    """Nothing done and something refused is a refusal; nothing done and something failed is a failure."""
    numbers = [v for k, v in outcome.items() if isinstance(v, int) and k not in NO_PROGRESS]
    if any(numbers) or not (outcome.get("refused") or outcome.get("failed")):
        return "succeeded"
    return "refused" if outcome.get("refused") else "failed"


def _with_reason(outcome: dict[str, Any]) -> dict[str, Any]:
    """Adds, in one line, why items were not done: each reason with how often."""
    items = [*(outcome.get("refused") or ()), *(outcome.get("failed") or ())]
    counts: dict[str, int] = {}
    for item in items:
        counts[item["reason"]] = counts.get(item["reason"], 0) + 1
    if not counts:
        return outcome
    return {**outcome, "reason": ", ".join(f"{n} {reason}" for reason, n in counts.items())}
