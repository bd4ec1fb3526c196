"""Work on many prefixes: in bounded steps, at a pace, told as it goes, and stopped between two steps when asked to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event
from typing import Any

from engine.clock import NS_PER_S, Clock
from engine.consistency.prefix import CauseOf
from engine.errors import EngineClosed, EngineError
from engine.telemetry.ring import SpanContext

Progress = Callable[[dict[str, Any]], None]
BURST_S = 1.0
"""So much work may be done at once: a command on a few prefixes is not slowed down."""
LOOK_S = 0.1


class BadCommand(EngineError):
    """A command's kind or arguments are not what this engine takes. Nothing was done; correct and send it again."""

    code = "bad_command"


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRequest:
    """One command: what, on what, by whom, until when, the operator's trace, and whether it is wanted no more."""

    id: str
    kind: str
    arguments: dict[str, Any] = field(default_factory=dict)
    epoch: int = 0
    expires_at_unix_s: float = 0.0
    traceparent: str | None = None
    actor: str = ""
    cancelled: Callable[[], bool] = field(default=_never, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """How fast bulk work goes unless a command says otherwise."""

    prefixes_per_s: float
    bytes_per_s: float


class Ticket:
    """One command under way. `step` after each prefix: it tells, and waits as long as the pace wants."""

    def __init__(
        self, request: CommandRequest, cause: CauseOf, span: SpanContext, progress: Progress, rates: Rates,
        clock: Clock, closing: Event,
    ) -> None:  # fmt: skip
        self.request, self.cause, self.span = request, cause, span
        self._progress = progress
        self._clock = clock
        self._closing = closing
        self._start_ns = clock.monotonic_ns()
        self._prefixes_per_s = self._rate("prefixes_per_s", rates.prefixes_per_s)
        self._bytes_per_s = self._rate("bytes_per_s", rates.bytes_per_s)
        self._waited_s = 0.0
        self.cut_short = False  # some work was left undone because of `stopped`

    @property
    def arguments(self) -> dict[str, Any]:
        return self.request.arguments

    @property
    def stopped(self) -> str:
        """Why no further step may begin; empty when one may."""
        if self.request.cancelled():
            return "cancelled"
        return EngineClosed.code if self._closing.is_set() else ""

    def goes_on(self) -> bool:
        """Whether the next step may begin. Once it may not, the command ends as cut short."""
        self.cut_short = self.cut_short or bool(self.stopped)
        return not self.cut_short

    def tell(self, **progress: Any) -> None:
        """Progress, without a wait."""
        self._progress(progress)

    def step(self, done: int, of: int, n_bytes: int = 0) -> None:
        """`done` of `of` prefixes are done, `n_bytes` moved or freed so far; waits until that is within the pace."""
        self.tell(done=done, of=of, bytes=n_bytes)
        if done < of:
            self.wait(max(done / self._prefixes_per_s, n_bytes / self._bytes_per_s) - BURST_S - self._elapsed_s())

    def wait(self, seconds: float) -> None:
        """Sleeps, but no longer than the command is wanted."""
        while seconds > 0 and not self.stopped:
            slice_s = min(LOOK_S, seconds)
            self._closing.wait(slice_s)
            seconds -= slice_s
            self._waited_s += slice_s

    def _elapsed_s(self) -> float:
        # A clock that only moves when told has not seen the waits.
        return max(self._waited_s, (self._clock.monotonic_ns() - self._start_ns) / NS_PER_S)

    def _rate(self, name: str, usual: float) -> float:
        rate = float(self.arguments.get(name) or usual)
        if not rate > 0:
            raise BadCommand(f"{name} is {rate!r}; it must be above 0")
        return rate
