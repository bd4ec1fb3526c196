"""The engine's small parts by themselves: states, tokens, queues, breakers, graph windows, orders, clocks."""

from __future__ import annotations

import errno
import threading
from array import array
from itertools import product

import numpy as np
import pytest
import torch

from engine.clock import ManualClock, SystemClock
from engine.consistency.admission import Caps, Usage, refusal, shortfall
from engine.consistency.graph import GraphGuard, PageTable
from engine.consistency.orders import LeastRecentlyUsed
from engine.consistency.prefix import CauseOf, PrefixRecord
from engine.consistency.state import TERMINAL, TRANSITIONS, Cause, State
from engine.errors import (
    ConfigError,
    CorruptObject,
    GraphStale,
    IllegalTransition,
    OutOfMemory,
    StateMismatch,
    TierUnavailable,
)
from engine.memory.arena import Arena
from engine.memory.transfer import Breaker, Transfer
from engine.schedule.queues import Form, FormQueue, QueueFull
from engine.tokens import token_bytes


def record_in(state):
    record = PrefixRecord("a" * 32, "", "n", 1, 0, 1, 64, {})
    record.state, record.version = state, 3
    return record


def move(record, after, cause):
    return record.move(after, CauseOf(cause), bytes_moved=0, wall_ns=0, monotonic_ns=0)


ALL_STEPS = list(product(State, State, Cause))
LEGAL = {(a, b, cause) for (a, b), causes in TRANSITIONS.items() for cause in causes}


@pytest.mark.parametrize(("before", "after", "cause"), sorted(LEGAL))
def test_every_edge_of_the_table_is_legal_with_its_causes_and_counts_one_version(before, after, cause):
    record = record_in(before)
    step = move(record, after, cause)
    assert (record.state, record.version, step.version, step.before) == (after, 4, 4, before)


def test_every_other_step_raises_and_changes_nothing():
    illegal = [step for step in ALL_STEPS if step not in LEGAL]
    assert len(illegal) + len(LEGAL) == len(State) ** 2 * len(Cause)
    for before, after, cause in illegal:
        record = record_in(before)
        with pytest.raises(IllegalTransition):
            move(record, after, cause)
        assert (record.state, record.version) == (before, 3)


def test_nothing_leaves_a_terminal_state_and_every_other_state_can_reach_one():
    assert not [a for a, _ in TRANSITIONS if a in TERMINAL]
    reach = set(TERMINAL)
    while more := {a for a, b in TRANSITIONS if b in reach} - reach:
        reach |= more
    assert reach == set(State)


# -- tokens -----------------------------------------------------------------------------------------------------------

IDS = [0, 5, 2**31 - 1]


@pytest.mark.parametrize(
    "tokens",
    [
        IDS, tuple(IDS), array("i", IDS), array("q", IDS), np.array(IDS), np.array(IDS, dtype=np.uint64),
        np.array(IDS, dtype=">i4"), np.array([*IDS, 7])[:-1], np.repeat(np.array(IDS, dtype=np.int32), 2)[::2],
        torch.tensor(IDS), torch.tensor(IDS, dtype=torch.int32),
    ],
    ids=lambda t: f"{type(t).__name__}-{getattr(t, 'dtype', '')}",
)  # fmt: skip
def test_tokens_of_every_type_are_the_same_bytes(tokens):
    assert token_bytes(tokens) == np.array(IDS, dtype="<i4").tobytes()


@pytest.mark.parametrize(
    "tokens",
    [
        [-1], [2**31], [2**63], [2**80], [1.5], [True, False], ["a"], [[1, 2], [3, 4]], 5, None, "abc", b"abcd",
        np.array([-5], dtype=np.int8), torch.tensor([1.0]), torch.tensor(3), [[1, 2], [3]], [None],
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_list_of_token_ids_is_refused(tokens):
    with pytest.raises(StateMismatch):
        token_bytes(tokens)


def test_no_tokens_are_no_bytes():
    for empty in ([], (), np.empty(0), array("i"), torch.empty(0, dtype=torch.int64)):
        assert token_bytes(empty) == b""


# -- queues -----------------------------------------------------------------------------------------------------------


def test_a_queue_keeps_its_order_counts_failures_and_refuses_at_its_bound():
    queue = FormQueue(Form.RESIDENT, 2, SystemClock())
    gate, running, done = threading.Event(), threading.Event(), []

    def first():
        running.set()
        gate.wait(30)

    def failing():
        raise ValueError("no")

    queue.submit(first)
    assert running.wait(30)
    broken, second = queue.submit(failing), queue.submit(lambda: done.append(2))
    with pytest.raises(QueueFull):
        queue.submit(lambda: done.append(3))
    gate.set()
    second.result(30)
    with pytest.raises(ValueError, match="no"):
        broken.result(30)
    assert (done, queue.failures, queue.depth) == ([2], 1, 0)
    last = queue.submit(lambda: done.append(4))
    queue.close()
    assert last.done()
    with pytest.raises(QueueFull):
        queue.submit(lambda: None)


# -- tier I/O ---------------------------------------------------------------------------------------------------------


def failing_with(error):
    def work():
        raise error

    return work


@pytest.fixture
def transfer():
    clock = ManualClock()
    return Transfer("disk", clock, backoff_s=0.0), clock


def test_a_breaker_opens_after_failures_in_a_row_tries_once_and_closes_again(transfer):
    io, clock = transfer
    broken = failing_with(OSError(errno.ENOSPC, "full"))
    for _ in range(5):
        assert io.breaker.state is Breaker.CLOSED
        with pytest.raises(TierUnavailable, match="full"):
            io.run(io.read, 1, broken)
    assert io.breaker.state is Breaker.OPEN
    with pytest.raises(TierUnavailable, match="breaker"):
        io.run(io.read, 1, lambda: 1)
    clock.advance(5)
    assert io.breaker.state is Breaker.HALF_OPEN
    with pytest.raises(TierUnavailable, match="full"):
        io.run(io.read, 1, broken)
    assert io.breaker.state is Breaker.OPEN
    clock.advance(5)
    assert io.run(io.read, 1, lambda: 7) == 7
    assert io.breaker.state is Breaker.CLOSED


def test_in_half_open_state_only_one_trial_is_let_through(transfer):
    io, clock = transfer
    for _ in range(5):
        io.breaker.failed()
    clock.advance(5)
    assert io.breaker.admits()
    assert not io.breaker.admits()


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (RuntimeError("device assert"), RuntimeError),
        (MemoryError(), OutOfMemory),
        (CorruptObject("bad page"), CorruptObject),
    ],
)
def test_a_trial_that_ends_in_any_error_is_over(transfer, error, raised):
    io, clock = transfer
    for _ in range(5):
        io.breaker.failed()
    clock.advance(5)
    with pytest.raises(raised):
        io.run(io.read, 1, failing_with(error))
    clock.advance(5)
    assert io.run(io.read, 1, lambda: 7) == 7


def test_a_corrupt_object_says_nothing_about_the_device(transfer):
    io, _ = transfer
    for _ in range(20):
        with pytest.raises(CorruptObject):
            io.run(io.read, 1, failing_with(CorruptObject("bad page")))
    assert io.breaker.state is Breaker.CLOSED


@pytest.mark.parametrize(("code", "tries"), [(errno.EIO, 3), (errno.ENOSPC, 1), (errno.ENOENT, 1)])
def test_only_what_may_go_better_is_tried_again(transfer, code, tries):
    io, _ = transfer
    seen = []

    def work():
        seen.append(1)
        raise OSError(code, "no")

    with pytest.raises(TierUnavailable):
        io.run(io.read, 1, work)
    assert len(seen) == tries


def test_no_retry_begins_past_the_deadline(transfer):
    io, clock = transfer
    seen = []

    def work():
        seen.append(1)
        clock.advance(1)
        raise OSError(errno.EIO, "no")

    with pytest.raises(TierUnavailable):
        io.run(io.read, 1, work, clock.monotonic_ns() + 1)
    assert len(seen) == 1


# -- graphs -----------------------------------------------------------------------------------------------------------


def test_work_waits_for_the_end_of_the_last_window():
    guard, done = GraphGuard(), []
    with guard.window():
        with guard.window():
            assert not guard.at_safe_point(lambda: done.append(1))
        assert done == []
    assert done == [1]
    assert guard.at_safe_point(lambda: done.append(2))
    assert done == [1, 2]


def test_a_window_ends_and_its_work_runs_even_when_the_replay_fails():
    guard, done = GraphGuard(), []

    def replay():
        with guard.window():
            guard.at_safe_point(lambda: done.append(1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        replay()
    assert (guard.in_window, done) == (False, [1])


def test_a_stale_epoch_opens_no_window():
    guard = GraphGuard()
    epoch = guard.epoch
    guard.changed()
    with pytest.raises(GraphStale), guard.window(epoch):
        pass
    assert not guard.in_window


def test_a_page_table_keeps_its_address_and_refuses_what_does_not_fit():
    table = PageTable(4, "cpu")
    address = table.offsets.data_ptr()
    table.fill(torch.arange(3))
    table.fill(torch.arange(2) + 7)
    assert (table.length, table.offsets[:2].tolist(), table.offsets.data_ptr()) == (2, [7, 8], address)
    with pytest.raises(ConfigError):
        table.fill(torch.arange(5))


# -- orders and caps --------------------------------------------------------------------------------------------------


def test_the_oldest_that_may_leave_comes_first_and_the_others_keep_their_place():
    order = LeastRecentlyUsed()
    for key in range(50):
        order.touch(key)
    order.touch(0)
    order.discard(1)
    assert next(order.oldest(lambda key: key % 2 == 0)) == 2
    assert list(order.oldest(lambda key: key > 45 or key == 0)) == [46, 47, 48, 49, 0]
    assert (len(order), 1 in order) == (49, False)


def test_one_search_looks_at_a_bounded_number():
    order, looked = LeastRecentlyUsed(), []
    for key in range(10_000):
        order.touch(key)
    assert list(order.oldest(lambda key: bool(looked.append(key)))) == []
    assert len(looked) <= 4096


def test_shortfall_and_refusal_count_what_is_new():
    caps, usage = Caps(prefixes=3, gpu_bytes=100), Usage(prefixes=3, gpu_bytes=90, host_bytes=0, disk_bytes=0)
    short = shortfall(caps, usage, 1, 20)
    assert (short.prefixes, short.gpu_bytes) == (1, 10)
    assert shortfall(Caps(), usage, 99, 1 << 40).none
    assert refusal(caps, 4, 0) == "over_prefix_cap"
    assert refusal(caps, 1, 101) == "over_gpu_cap"
    assert refusal(caps, 3, 100) == ""


# -- arenas: the GPU tier on a CPU and the host tier are the same code ------------------------------------------------


@pytest.mark.parametrize("total", [0, 100])
def test_an_arena_that_holds_no_slab_is_a_config_error(total):
    with pytest.raises(ConfigError):
        Arena("gpu", total, 128, {"a": 64})


def test_a_slot_wider_than_a_slab_is_a_config_error():
    with pytest.raises(ConfigError):
        Arena("gpu", 1024, 128, {"a": 129})


def test_a_class_takes_over_slabs_that_another_emptied():
    arena = Arena("gpu", 256, 128, {"a": 64, "b": 32})
    a = arena.take("a", 4)
    assert arena.take("b", 1) is None
    arena.give("a", a[:2])
    assert arena.take("b", 5) is None
    assert len(arena.take("b", 4)) == 4
    assert arena.violations() == []


def test_fragmentation_counts_free_bytes_inside_partly_used_slabs():
    arena = Arena("gpu", 1024, 256, {"a": 64})
    slots = arena.take("a", 5)
    usage = arena.usage()["a"]
    assert (usage.slabs, usage.used_slots, usage.fragmentation_ratio) == (2, 5, pytest.approx(3 / 8))
    arena.give("a", slots)
    assert arena.release_empty_slabs() == 2
    assert arena.usage()["a"].fragmentation_ratio == 0
