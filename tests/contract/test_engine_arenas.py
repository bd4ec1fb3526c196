"""One suite for the arenas of an engine: the GPU tier (on a CPU or on a GPU) and the host tier behave alike."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from engine import Tier
from engine.errors import StalePointer


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return request.param


@pytest.fixture(params=["gpu", "host"])
def arena(request, make_rig, device):
    rig = make_rig(device=device, gpu_bytes=512 << 10, host_bytes=512 << 10)
    return rig.ledger.tiers.arena(Tier(request.param))


CLASSES = ("compressed_kv", "indexer_state", "swa_window", "uncompressed_tail", "compressed_kv+lossless")


@pytest.mark.parametrize("page_class", CLASSES)
def test_what_is_written_is_read_back_in_any_order(arena, page_class):
    slots = arena.take(page_class, 9)
    data = torch.randint(0, 256, (9, arena.slot_bytes(page_class)), dtype=torch.uint8)
    arena.write(page_class, slots, data)
    order = np.random.default_rng(0).permutation(9)
    assert torch.equal(arena.read(page_class, slots[order]).cpu(), data[order])


def test_reading_gives_a_copy(arena):
    slots = arena.take("swa_window", 1)
    arena.write("swa_window", slots, torch.zeros((1, arena.slot_bytes("swa_window")), dtype=torch.uint8))
    before = arena.read("swa_window", slots)
    arena.write("swa_window", slots, torch.ones((1, arena.slot_bytes("swa_window")), dtype=torch.uint8))
    assert int(before.sum()) == 0


def test_taking_is_all_or_nothing(arena):
    live = arena.live_bytes
    assert arena.take("swa_window", 10_000) is None
    assert arena.live_bytes == live
    assert arena.violations() == []


def test_a_freed_slot_makes_its_pointer_stale_even_when_it_is_taken_again(arena):
    slots = arena.take("swa_window", 2)
    pointer = arena.point("swa_window", slots)
    arena.check_current(pointer)
    arena.give("swa_window", slots[:1])
    assert arena.take("swa_window", 1).tolist() == slots[:1].tolist()
    with pytest.raises(StalePointer):
        arena.check_current(pointer)


def test_addresses_lie_inside_the_buffer_and_apart(arena):
    at = []
    for page_class in CLASSES:
        size = arena.slot_bytes(page_class)
        at += [(int(a), int(a) + size) for a in arena.addresses(page_class, arena.take(page_class, 5))]
    at.sort()
    assert all(end <= start for (_, end), (start, _) in pairwise(at))
    assert at[-1][1] <= arena.total_bytes


def test_bytes_come_from_and_go_to_the_tier_s_own_device(arena, device):
    wanted = device if arena.name == "gpu" else "cpu"
    slots = arena.take("swa_window", 2)
    data = torch.full((2, arena.slot_bytes("swa_window")), 7, dtype=torch.uint8, device=device)
    arena.write("swa_window", slots, data)
    found = arena.read("swa_window", slots)
    assert (found.device.type, int(found.sum())) == (wanted, 7 * data.numel())


def test_freed_slots_are_counted_for_ever(arena):
    for _ in range(2):
        arena.give("swa_window", arena.take("swa_window", 3))
    assert arena.freed_slots == 6


def test_a_view_shows_what_lies_in_the_slots_and_copies_only_when_they_lie_unevenly(arena):
    even, scattered = arena.take("compressed_kv", 6), arena.take("compressed_kv", 7)[[0, 1, 3, 6]]
    for slots in (even, scattered, even[:1], even[:0]):
        data = torch.randint(0, 256, (len(slots), arena.slot_bytes("compressed_kv")), dtype=torch.uint8)
        arena.write("compressed_kv", slots, data.to(arena.buffer.device))
        assert torch.equal(arena.view("compressed_kv", slots).cpu(), data)
        assert torch.equal(arena.view("compressed_kv", slots).cpu(), arena.read("compressed_kv", slots).cpu())


@pytest.mark.parametrize("page_class", CLASSES)
def test_what_is_put_where_slots_lie_is_read_back_in_their_order(arena, page_class):
    taken = arena.take(page_class, 12)
    data = torch.randint(0, 256, (12, arena.slot_bytes(page_class)), dtype=torch.uint8)
    for chosen in (slice(0, 12), [0, 1, 4, 5, 9], [7], slice(0, 0)):
        slots, wanted = taken[chosen], data[chosen]

        def put(stretches, wanted=wanted):
            done = 0
            for rows in stretches:
                assert rows.flags.c_contiguous
                rows[:] = wanted[done : done + len(rows)].numpy()
                done += len(rows)
            return done

        arena.write(page_class, taken, torch.zeros_like(data))
        assert arena.fill(page_class, slots, put) == len(wanted)
        assert torch.equal(arena.read(page_class, slots).cpu(), wanted)
        others = np.setdiff1d(taken, slots)
        assert not arena.read(page_class, others).any()
