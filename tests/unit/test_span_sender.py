"""The sender of spans: what is kept for a receiver that is down, what is given up, and that nothing else is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from controlplane.host.sender import DOUBT_EVERY, SpanSender

Make = Callable[..., SpanSender]


class Receiver(SpanExporter):
    """A receiver that may be down, slow, or find single spans indigestible."""

    def __init__(self) -> None:
        self.up = True
        self.bad: set[str] = set()
        self.got: list[str] = []
        self.sizes: list[int] = []
        self.most = 1 << 30  # spans that it takes in one message
        self.calls = 0
        self.hold = threading.Event()
        self.hold.set()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.calls += 1
        self.hold.wait(30)
        names = [span.name for span in spans]
        if not self.up or self.bad & set(names) or len(names) > self.most:
            return SpanExportResult.FAILURE
        self.got += names
        self.sizes.append(len(names))
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        self.hold.set()


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
def make(receiver: Receiver) -> Iterator[Make]:
    made: list[SpanSender] = []

    def build(**how: object) -> SpanSender:
        made.append(SpanSender(receiver, **({"every_seconds": 0.01} | how)))  # type: ignore[arg-type]
        return made[-1]

    yield build
    for sender in made:
        sender.shutdown()


def send(sender: SpanSender, *names: str) -> None:
    for name in names:
        sender.on_end(ReadableSpan(name=name))


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def test_everything_arrives_once_in_order_and_no_batch_is_over_its_size(receiver: Receiver, make: Make) -> None:
    sender = make(batch_spans=64)
    send(sender, *numbers(5000))
    assert sender.force_flush()
    assert receiver.got == numbers(5000)
    assert max(receiver.sizes) <= 64
    assert (sender.sent_spans, sender.waiting_spans, sender.dropped_spans) == (5000, 0, 0)


def test_what_was_said_during_an_outage_is_sent_afterwards_though_nothing_more_is_said(
    receiver: Receiver, make: Make
) -> None:
    receiver.up = False
    sender = make(batch_spans=2)
    send(sender, *"abcde")
    until(lambda: receiver.calls > 2)
    assert sender.waiting_spans == 5
    receiver.up = True
    until(lambda: sender.waiting_spans == 0)
    assert receiver.got == list("abcde")


def test_the_oldest_are_given_up_when_too_many_wait_and_are_counted(receiver: Receiver, make: Make) -> None:
    receiver.up = False
    sender = make(most_spans=10, batch_spans=4)
    send(sender, *numbers(50))
    until(lambda: receiver.calls > 1)
    send(sender, *numbers(50))
    assert sender.waiting_spans <= 10
    receiver.up = True
    until(lambda: sender.waiting_spans == 0)
    assert sender.dropped_spans + len(receiver.got) == 100
    assert receiver.got[-5:] == numbers(50)[-5:]


def test_a_batch_the_receiver_never_takes_does_not_hold_up_the_others(receiver: Receiver, make: Make) -> None:
    receiver.bad = {"poison"}
    sender = make(batch_spans=1, every_seconds=0.001)
    send(sender, "poison", *numbers(20))
    until(lambda: sender.waiting_spans == 0)
    assert receiver.got == numbers(20)
    assert sender.dropped_spans == 1
    assert receiver.calls >= DOUBT_EVERY


def test_a_receiver_that_takes_only_small_batches_gets_small_ones(receiver: Receiver, make: Make) -> None:
    receiver.most = 50
    sender = make(batch_spans=1000, every_seconds=0.001)
    send(sender, *numbers(3000))
    until(lambda: sender.waiting_spans == 0)
    assert receiver.got == numbers(3000)
    assert sender.dropped_spans == 0


def test_an_outage_is_said_once_and_so_is_its_end(
    receiver: Receiver, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.up = False
    sender = make(every_seconds=0.001, name="the backend")
    send(sender, "a")
    until(lambda: receiver.calls > 20)
    receiver.up = True
    until(lambda: sender.waiting_spans == 0)
    said = [record.getMessage() for record in caplog.records]
    assert said == ["the backend does not take spans; 1 wait and are sent again", "the backend takes spans again"]


def test_a_receiver_that_is_only_down_loses_nothing_to_doubt(receiver: Receiver, make: Make) -> None:
    receiver.up = False
    sender = make(batch_spans=1, every_seconds=0.001)
    send(sender, *numbers(20))
    until(lambda: receiver.calls > 3 * DOUBT_EVERY)
    assert (sender.waiting_spans, sender.dropped_spans) == (20, 0)
    receiver.up = True
    until(lambda: sender.waiting_spans == 0)
    assert receiver.got == numbers(20)


def test_shutdown_sends_what_there_is(receiver: Receiver, make: Make) -> None:
    sender = make(every_seconds=60)
    send(sender, *"abc")
    sender.shutdown()
    assert receiver.got == list("abc")
    send(sender, "late")
    assert (receiver.got, sender.dropped_spans) == (list("abc"), 1)


def test_shutdown_breaks_off_a_send_that_the_receiver_never_answers(
    receiver: Receiver, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.host.sender.SHUTDOWN_SECONDS", 0.05)
    receiver.hold.clear()
    receiver.up = False
    sender = make(batch_spans=1)
    send(sender, "a", "b")
    until(lambda: receiver.calls == 1)
    sender.shutdown()
    assert receiver.hold.is_set()
    assert sender.dropped_spans == 2


def test_only_what_is_to_be_kept_is_sent_and_the_rest_is_counted(receiver: Receiver, make: Make) -> None:
    sender = make(keeps=lambda span: span.name in "ac")
    send(sender, *"abcd")
    assert sender.force_flush()
    assert (receiver.got, sender.passed_spans, sender.dropped_spans) == (["a", "c"], 2, 0)
