"""The order in which this process's threads write."""

from __future__ import annotations

import threading
import time

from controlplane.store.turns import Turns

LONG = 30.0


def waiter(turns: Turns, name: str, came: list[str]) -> threading.Thread:
    """A thread that waits for its turn by now."""

    def run() -> None:
        assert turns.take(LONG)
        came.append(name)
        turns.leave()

    waiting = len(turns._waiting)
    thread = threading.Thread(target=run)
    thread.start()
    while len(turns._waiting) == waiting:
        time.sleep(0.001)
    return thread


def test_whoever_waits_longest_is_next_and_nobody_slips_in_between():
    turns, came = Turns(), []
    assert turns.take(LONG)
    threads = [waiter(turns, str(number), came) for number in range(5)]
    turns.leave()
    assert turns.take(LONG)  # asked for at once after leaving, and given after the five
    assert came == [str(number) for number in range(5)]
    turns.leave()
    for thread in threads:
        thread.join()


def test_one_that_waits_in_vain_is_passed_over():
    turns, came = Turns(), []
    assert turns.take(LONG)
    assert not turns.take(0.01)
    thread = waiter(turns, "patient", came)
    turns.leave()
    thread.join()
    assert came == ["patient"]
    assert turns.take(0.0)


def test_only_one_has_it_at_a_time():
    turns, inside, most = Turns(), 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(200):
            assert turns.take(LONG)
            inside += 1
            most = max(most, inside)
            time.sleep(0)
            inside -= 1
            turns.leave()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
