"""The exporter's backlog: what is kept for a receiver that is down, and what is given up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from controlplane.host.export import DOUBT_EVERY, BacklogExporter


class Receiver(SpanExporter):
    """A receiver that may be down, and may find single spans indigestible."""

    def __init__(self) -> None:
        self.up = True
        self.bad: set[str] = set()
        self.got: list[str] = []
        self.closed = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        names = [span.name for span in spans]
        if not self.up or self.bad & set(names):
            return SpanExportResult.FAILURE
        self.got += names
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        self.closed = True


def batch(*names: str) -> Sequence[Any]:
    return [ReadableSpan(name=name) for name in names]


def test_sends_the_backlog_in_order_once_the_receiver_is_back() -> None:
    receiver = Receiver()
    exporter = BacklogExporter(receiver)
    receiver.up = False
    assert exporter.export(batch("a", "b")) is SpanExportResult.FAILURE
    assert exporter.export(batch("c")) is SpanExportResult.FAILURE
    assert exporter.waiting_spans == 3
    receiver.up = True
    assert exporter.export(batch("d")) is SpanExportResult.SUCCESS
    assert receiver.got == ["a", "b", "c", "d"]
    assert (exporter.waiting_spans, exporter.dropped_spans) == (0, 0)


def test_gives_up_the_oldest_when_the_backlog_is_full_and_counts_them() -> None:
    receiver = Receiver()
    receiver.up = False
    exporter = BacklogExporter(receiver, most_spans=4)
    for names in ("ab", "cd", "ef"):
        exporter.export(batch(*names))
    receiver.up = True
    exporter.export(batch("g"))
    assert receiver.got == ["d", "e", "f", "g"] or receiver.got == ["e", "f", "g"]
    assert exporter.dropped_spans + len(receiver.got) == 7


def test_a_batch_the_receiver_never_takes_does_not_hold_up_the_others() -> None:
    receiver = Receiver()
    receiver.bad = {"poison"}
    exporter = BacklogExporter(receiver)
    exporter.export(batch("poison"))
    for number in range(DOUBT_EVERY + 1):
        exporter.export(batch(str(number)))
    assert exporter.dropped_spans == 1
    assert sorted(receiver.got, key=int) == [str(number) for number in range(DOUBT_EVERY + 1)]
    assert exporter.waiting_spans == 0


def test_a_receiver_that_is_only_down_loses_nothing_to_doubt() -> None:
    receiver = Receiver()
    receiver.up = False
    exporter = BacklogExporter(receiver)
    for number in range(5 * DOUBT_EVERY):
        exporter.export(batch(str(number)))
    assert (exporter.waiting_spans, exporter.dropped_spans) == (5 * DOUBT_EVERY, 0)


def test_shutdown_ends_the_wrapped_exporter() -> None:
    receiver = Receiver()
    BacklogExporter(receiver).shutdown()
    assert receiver.closed
