"""What one call to a device may cost: which errors are tried again, how long is waited, and what comes back late."""

from __future__ import annotations

import errno
import threading

import pytest
import torch

from engine.clock import ManualClock
from engine.errors import CorruptObject, OutOfMemory, TierUnavailable
from engine.memory.lane import MOST_STUCK, Lane, Overdue
from engine.memory.transfer import RETRYABLE_ERRNO, Breaker, Transfer

SHORTLY_S = 0.02


@pytest.fixture
def lane():
    made = Lane("test")
    yield made
    made.close(lambda: None)


def failing(*errors):
    """A call that raises these one after the other and then answers 7; and how often it was made."""
    calls = []

    def work():
        calls.append(1)
        if len(calls) <= len(errors):
            raise errors[len(calls) - 1]
        return 7

    return work, calls


def os_error(code):
    return OSError(code, "no")


PASSING = {
    errno.EAGAIN: "busy for a moment",
    errno.EBUSY: "somebody else has it",
    errno.EINTR: "a signal came",
    errno.EIO: "a bus or a network that hiccups; the block may be read on the second try",
    errno.EMFILE: "another thread may close a file",
    errno.ENFILE: "another process may close a file",
    errno.ETIMEDOUT: "a network file system",
}
LASTING = {
    errno.ENOSPC: "room comes from eviction, not from waiting",
    errno.EDQUOT: "as above",
    errno.ENOENT: "a file that is gone stays gone",
    errno.EACCES: "rights do not change in milliseconds",
    errno.EPERM: "as above",
    errno.EROFS: "a file system that went read-only waits for a person",
    errno.ENODEV: "the device has left",
    errno.ESTALE: "the server knows the file no more",
    errno.ENAMETOOLONG: "the name is the same again",
    errno.EFBIG: "the object is as large again",
}


def test_every_errno_that_is_tried_again_has_its_reason():
    assert set(PASSING) == RETRYABLE_ERRNO


@pytest.mark.parametrize("code", PASSING, ids=errno.errorcode.get)
def test_an_error_that_may_pass_is_tried_again_after_a_wait_with_jitter(code):
    waits = []
    io = Transfer("disk", ManualClock(), sleep=waits.append)
    work, calls = failing(os_error(code), os_error(code))
    assert io.run(io.read, 1, work) == 7
    assert (len(calls), len(waits), io.retries) == (3, 2, 2)
    assert 0.0025 <= waits[0] <= 0.0075 < 0.015
    assert 0.005 <= waits[1] <= 0.015
    assert waits[0] not in (0.005, waits[1] / 2)  # jitter: many that failed at once do not come back at once
    assert io.breaker.state is Breaker.CLOSED


@pytest.mark.parametrize("code", LASTING, ids=errno.errorcode.get)
def test_an_error_that_lasts_is_tried_once(code):
    io = Transfer("disk", ManualClock(), sleep=pytest.fail)
    work, calls = failing(os_error(code))
    with pytest.raises(TierUnavailable):
        io.run(io.read, 1, work)
    assert len(calls) == 1


def test_a_wait_ends_at_the_deadline():
    clock, waits = ManualClock(), []
    io = Transfer("disk", clock, sleep=waits.append, backoff_s=10.0)
    work, _ = failing(os_error(errno.EIO))
    assert io.run(io.read, 1, work, clock.monotonic_ns() + 1_000_000) == 7
    assert waits == [0.001]


def test_a_trial_is_one_call():
    clock = ManualClock()
    io = Transfer("disk", clock, sleep=pytest.fail)
    io.breaker.trip()
    assert (io.breaker.state, io.breaker.rung) == (Breaker.OPEN, 2)
    clock.advance(5)
    assert (io.breaker.state, io.breaker.rung) == (Breaker.HALF_OPEN, 1)
    work, calls = failing(*[os_error(errno.EIO)] * 3)
    with pytest.raises(TierUnavailable):
        io.run(io.read, 1, work)
    assert (len(calls), io.breaker.state) == (1, Breaker.OPEN)
    clock.advance(5)
    assert io.run(io.read, 1, lambda: 7) == 7
    assert (io.breaker.state, io.breaker.rung) == (Breaker.CLOSED, 0)


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("no room")])
def test_a_lack_of_memory_says_nothing_about_the_device(error):
    clock = ManualClock()
    io = Transfer("disk", clock)
    for _ in range(9):
        with pytest.raises(OutOfMemory):
            io.run(io.read, 1, failing(error)[0])
    assert io.breaker.state is Breaker.CLOSED
    io.breaker.trip()
    clock.advance(5)
    with pytest.raises(OutOfMemory):
        io.run(io.read, 1, failing(error)[0])
    assert io.breaker.state is Breaker.HALF_OPEN  # neither better nor worse: the next call is a trial too
    assert io.run(io.read, 1, lambda: 7) == 7


# -- lanes -----------------------------------------------------------------------------------------------------------


class Hanging:
    """A call that does not end before it is let go."""

    def __init__(self, answer=7):
        self.go, self.begun, self.answer = threading.Event(), threading.Event(), answer

    def __call__(self):
        self.begun.set()
        self.go.wait()
        return self.answer


def back(lane):
    while lane.stuck:
        threading.Event().wait(0.001)


def test_a_lane_gives_results_and_errors_to_who_asked(lane):
    assert lane.call(lambda: 7, 10) == 7
    with pytest.raises(CorruptObject, match="bad"):
        lane.call(failing(CorruptObject("bad"))[0], 10)
    assert (lane.stuck, lane.overdue) == (0, 0)


def test_a_call_that_does_not_come_back_opens_the_breaker_at_once_and_its_result_is_discarded(lane):
    io = Transfer("disk", ManualClock(), lane=lane, limit_s=SHORTLY_S)
    hanging, late = Hanging(), []
    with pytest.raises(TierUnavailable, match="did not come back"):
        io.run(io.read, 1, hanging, discard=late.append)
    assert (lane.stuck, lane.overdue, io.breaker.state) == (1, 1, Breaker.OPEN)
    assert late == []
    hanging.go.set()
    back(lane)
    assert late == [7]
    assert io.breaker.state is Breaker.OPEN  # an answer that late closes nothing; a trial does


def test_a_lane_is_full_after_a_few_calls_that_are_out_and_serves_again_when_they_are_back(lane):
    io = Transfer("disk", ManualClock(), lane=lane, limit_s=SHORTLY_S)
    out = [Hanging() for _ in range(MOST_STUCK)]
    for hanging in out:
        with pytest.raises(Overdue):
            lane.call(hanging, SHORTLY_S)
    work, calls = failing()
    with pytest.raises(TierUnavailable, match=f"{MOST_STUCK} calls"):
        io.run(io.read, 1, work)
    assert calls == []
    for hanging in out:
        hanging.go.set()
    back(lane)
    assert io.run(io.read, 1, work) == 7


def test_many_bytes_are_given_more_time(lane):
    io = Transfer("disk", ManualClock(), lane=lane, limit_s=0.0)
    gate = threading.Event()
    threading.Timer(SHORTLY_S, gate.set).start()
    assert io.run(io.read, 10 << 30, gate.wait)


def test_a_late_error_is_nobodys(lane):
    hanging = Hanging()

    def failing_late():
        hanging()
        raise OSError(errno.EIO, "no")

    with pytest.raises(Overdue):
        lane.call(failing_late, SHORTLY_S, pytest.fail)
    hanging.go.set()
    back(lane)
    assert lane.call(lambda: 7, 10) == 7


def test_a_closed_lane_says_when_its_last_call_is_back():
    lane, told = Lane("test"), []
    hanging = Hanging()
    assert lane.call(lambda: 7, 10) == 7
    with pytest.raises(Overdue):
        lane.call(hanging, SHORTLY_S)
    lane.close(lambda: told.append("back"))
    assert told == []
    hanging.go.set()
    while not told:
        threading.Event().wait(0.001)
    idle = Lane("test")
    idle.close(lambda: told.append("at once"))
    assert told == ["back", "at once"]
