"""How bytes get into slots that nobody can reach yet: proven where they have arrived, and never in another's memory."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.errors import CorruptObject, TierUnavailable
from engine.memory.arena import Arena
from engine.memory.checksum import page_sums
from engine.memory.codec import NATIVE_META
from engine.memory.device import SystemDevice
from engine.memory.disk import DiskTier
from engine.memory.diskfile import ObjectHeader
from engine.memory.holding import SlotCopy
from engine.memory.landing import Landing
from engine.memory.movers import PIECE_BYTES, Movers, batches, copy_from

PAGE_BYTES = 4096
HEADER = ObjectHeader(
    fingerprint="f", namespace="default", kind="compressed_kv", prefix_id="p", boundary=384, first_page=0, n_pages=6,
    page_class="compressed_kv", content_version=1, built_from=1, codec=NATIVE_META, written_ns=1,
)  # fmt: skip


@pytest.fixture
def movers():
    made = Movers()
    yield made
    made.close()


@pytest.fixture
def disk(tmp_path):
    made = DiskTier(tmp_path, 1 << 30)
    yield made
    made.let_go()


def random_pages(n, page_bytes=PAGE_BYTES):
    return torch.randint(0, 256, (n, page_bytes), dtype=torch.uint8)


def published(disk, data):
    header = replace(HEADER, n_pages=len(data))
    file = disk.publish(disk.next_name(header), header, data, page_sums(data), np.arange(384, dtype=np.int32))
    disk.record(file)
    return file


def anything(_):
    """A header that is accepted whatever it says."""


# -- moved and hashed by two threads ----------------------------------------------------------------------------------

SIZES = [16, 4096, PIECE_BYTES // 3, PIECE_BYTES, PIECE_BYTES + 16, 3 * PIECE_BYTES]


@pytest.mark.parametrize("page_bytes", SIZES)
@pytest.mark.parametrize("n", [0, 1, 2, 7])
@pytest.mark.parametrize("apart", [False, True])
def test_pages_moved_in_pieces_are_whole_and_have_the_checksums_they_had(movers, n, page_bytes, apart):
    data = random_pages(n, page_bytes)
    source = random_pages(2 * n, page_bytes).numpy()[::2] if apart else data.numpy()
    source[:] = data.numpy()
    targets = [np.zeros((k, page_bytes), dtype=np.uint8) for k in (n // 2, n - n // 2)]
    sums = movers.move(targets, copy_from(source))
    assert np.array_equal(np.concatenate(targets), data.numpy())
    assert sums.dtype == np.uint64
    assert np.array_equal(sums, page_sums(data))


def test_batches_are_small_views_of_whole_pages():
    rows = np.zeros((700, 4096), dtype=np.uint8)
    found = list(batches(rows))
    assert sum(map(len, found)) == 700
    assert all(part.nbytes <= PIECE_BYTES and np.shares_memory(part, rows) for part in found)


def in_turns(move, *, stop=lambda thread: False):
    """The caller's first piece waits until the helper has one, and the other way round, so that both have work."""
    both, seen = threading.Barrier(2), set()

    def moving(piece, offset):
        me = threading.current_thread()
        if me not in seen:
            seen.add(me)
            both.wait(30)
        if stop(me):
            raise OSError("the device failed")
        move(piece, offset)

    return moving


def test_the_helper_takes_its_part(movers):
    data = random_pages(9, PIECE_BYTES)
    target = np.zeros((9, PIECE_BYTES), dtype=np.uint8)
    sums = movers.move([target], in_turns(copy_from(data.numpy())))
    assert np.array_equal(target, data.numpy())
    assert np.array_equal(sums, page_sums(data))


@pytest.mark.parametrize("who", ["the caller", "the helper"])
def test_what_either_thread_raises_is_raised_once_nobody_writes_any_more(movers, who):
    data = random_pages(9, PIECE_BYTES)
    target = np.zeros((9, PIECE_BYTES), dtype=np.uint8)
    me = threading.current_thread()
    with pytest.raises(OSError, match="the device failed"):
        movers.move(
            [target], in_turns(copy_from(data.numpy()), stop=lambda thread: (thread is me) == (who == "the caller"))
        )
    assert movers._free.acquire(timeout=30)  # it is free again
    movers._free.release()
    assert np.array_equal(movers.move([target], copy_from(data.numpy())), page_sums(data))


def test_while_the_helper_is_kept_by_a_device_others_work_alone(movers):
    data = random_pages(9, PIECE_BYTES)
    kept, back = threading.Event(), threading.Event()

    def keep(piece, offset):
        if threading.current_thread().name == "kvdeck-mover":
            kept.set()
            assert back.wait(30)
        else:
            assert kept.wait(30)

    stuck = threading.Thread(target=lambda: movers.move([np.zeros((2, PIECE_BYTES), dtype=np.uint8)], keep))
    stuck.start()
    assert kept.wait(30)
    target = np.zeros((9, PIECE_BYTES), dtype=np.uint8)
    assert np.array_equal(movers.move([target], copy_from(data.numpy())), page_sums(data))
    movers.close()  # does not wait for it
    back.set()
    stuck.join(30)
    assert not stuck.is_alive()


def test_who_comes_after_the_end_works_alone():
    movers, data = Movers(), random_pages(5, PIECE_BYTES)
    movers.close()
    target = np.zeros((5, PIECE_BYTES), dtype=np.uint8)
    assert np.array_equal(movers.move([target], copy_from(data.numpy())), page_sums(data))
    assert movers._thread is None


def test_without_a_thread_to_be_had_one_works_alone_and_asks_again(movers, monkeypatch):
    def none_left(_):
        raise RuntimeError("can't start new thread")

    data = random_pages(5, PIECE_BYTES)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", none_left)
        target = np.zeros((5, PIECE_BYTES), dtype=np.uint8)
        assert np.array_equal(movers.move([target], copy_from(data.numpy())), page_sums(data))
    assert np.array_equal(target, data.numpy())
    assert movers._thread is None
    movers.move([target], copy_from(data.numpy()))
    assert movers._thread is not None


# -- a file read into slots -------------------------------------------------------------------------------------------


def test_a_part_of_a_file_is_read_to_where_it_belongs(disk, movers):
    data = random_pages(6)
    file = published(disk, data)
    targets = [np.zeros((1, PAGE_BYTES), dtype=np.uint8), np.zeros((2, PAGE_BYTES), dtype=np.uint8)]
    sums = disk.reads.pages(file, 2, targets, movers, anything)
    assert np.array_equal(np.concatenate(targets), data.numpy()[2:5])
    assert np.array_equal(sums, page_sums(data)[2:5])


@pytest.mark.parametrize("page", [2, 3, 4])
def test_a_flipped_bit_in_any_page_that_is_read_is_found(disk, movers, page):
    data = random_pages(6)
    file = published(disk, data)
    raw = bytearray(disk.path(file).read_bytes())
    raw[len(raw) - (6 - page) * PAGE_BYTES + 100] ^= 1
    disk.path(file).write_bytes(raw)
    with pytest.raises(CorruptObject, match=f"page {page - 2} of 3"):
        disk.reads.pages(file, 2, [np.zeros((3, PAGE_BYTES), dtype=np.uint8)], movers, anything)
    with pytest.raises(CorruptObject, match=f"page {page} of 6"):
        disk.reads.whole(file)


def test_what_the_header_says_is_judged_before_a_byte_of_the_target_changes(disk, movers):
    file = published(disk, random_pages(6))
    target = np.full((6, PAGE_BYTES), 7, dtype=np.uint8)

    def refuse(header):
        assert header == HEADER
        raise CorruptObject("another form")

    with pytest.raises(CorruptObject, match="another form"):
        disk.reads.pages(file, 0, [target], movers, refuse)
    with pytest.raises(CorruptObject, match="not those asked"):
        disk.reads.pages(file, 1, [target], movers, anything)
    with pytest.raises(CorruptObject, match="not those asked"):
        disk.reads.pages(file, 0, [target.reshape(3, -1)], movers, anything)
    assert (target == 7).all()


# -- slots that a call may still write to -----------------------------------------------------------------------------


class Slots:
    """An arena of two slots, one of which is landing, and the engine lock."""

    def __init__(self):
        self.arena = Arena("gpu", 2 * PAGE_BYTES, 2 * PAGE_BYTES, {"compressed_kv": PAGE_BYTES})
        self.slots = self.arena.take("compressed_kv", 1)
        self.lock = threading.RLock()
        copy = SlotCopy("compressed_kv", PAGE_BYTES, self.slots, NATIVE_META, None)
        self.landing = Landing(copy, self.lock, lambda slots: self.arena.give("compressed_kv", slots))

    @property
    def taken(self):
        return self.arena.live_bytes // PAGE_BYTES


def test_slots_that_are_given_up_while_a_call_fills_them_are_free_only_after_it():
    its = Slots()
    seen = []

    def left_in_the_middle():
        its.landing.give_up()
        its.landing.give_up()
        seen.append(its.taken)

    its.landing.fill(left_in_the_middle)
    assert (seen, its.taken) == ([1], 0)
    assert its.arena.violations() == []


def test_a_call_that_fails_after_it_was_left_frees_its_slots_too():
    its = Slots()

    def fails():
        its.landing.give_up()
        raise OSError("late")

    with pytest.raises(OSError, match="late"):
        its.landing.fill(fails)
    assert its.taken == 0


def test_a_call_that_begins_after_it_was_left_writes_nothing():
    its = Slots()
    its.landing.give_up()
    assert its.taken == 0
    with pytest.raises(TierUnavailable, match="after it was left"):
        its.landing.fill(lambda: pytest.fail("it wrote to slots that are another's by now"))


def test_a_call_may_be_tried_again_and_what_arrived_stays():
    its = Slots()
    with pytest.raises(OSError, match="busy"):
        its.landing.fill(lambda: (_ for _ in ()).throw(OSError("busy")))
    assert its.landing.fill(lambda: 7) == 7
    assert its.taken == 1


def test_a_read_that_is_short_goes_on_where_it_ended(disk, movers):
    class Short(SystemDevice):
        def read(self, fd, into, offset):
            return super().read(fd, into[: max(1, len(into) // 3)], offset)

    data = random_pages(6)
    file = published(disk, data)
    disk.reads._device = Short()
    target = np.zeros((6, PAGE_BYTES), dtype=np.uint8)
    disk.reads.pages(file, 0, [target], movers, anything)
    assert np.array_equal(target, data.numpy())
