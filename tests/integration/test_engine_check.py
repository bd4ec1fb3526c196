"""What proves that the books balance must itself see each way in which they may not."""

from __future__ import annotations

import pytest
from engine_support import fork, prompt

from engine.consistency.state import State
from engine.memory.holding import Tier


class Books:
    """An engine with a prefix on the GPU, one child of it on the host, another on disk: books to be falsified."""

    def __init__(self, rig):
        self.rig, self.ledger, self.tiers = rig, rig.ledger, rig.ledger.tiers
        trunk = prompt(4 * rig.page)
        ids = [rig.commit(trunk).prefix_id]
        for seed, tier in ((1, "host"), (2, "disk")):
            ids.append(rig.commit(fork(trunk, len(trunk), 6 * rig.page, seed)).prefix_id)
            rig.command("offload", prefix_ids=ids[-1:], tier=tier)
        self.trunk, self.warm, self.cold = (rig.node(prefix_id) for prefix_id in ids)
        self.ids = ids
        self.gpu = self.tiers.gpu

    @property
    def pages(self):
        return self.trunk.record.spans["compressed_kv"].gpu

    @property
    def slots(self):
        return self.gpu._classes["compressed_kv"]

    @property
    def file(self):
        return next(iter(self.tiers.disk.files.values()))

    def write(self, name):
        (self.tiers.disk._objects / name).write_bytes(b"x")


def a_slab_too_few(b):
    b.gpu._free_slabs.pop()


def a_used_slot_too_many(b):
    b.slots.used_slots += 1


def a_slot_free_twice(b):
    b.slots.stack[b.slots.top - 1] = b.slots.stack[b.slots.top - 2]


def a_free_slot_of_another_slab(b):
    b.slots.stack[b.slots.top - 1] = len(b.slots.generation) - 1


def a_live_byte_too_many(b):
    b.gpu.live_bytes += 1


def a_slot_of_two_objects(b):
    b.pages.slots[0] = b.pages.slots[1]


def a_slot_of_none(b):
    b.gpu.take("compressed_kv", 1)


def a_slot_that_its_taker_forgot(b):
    b.ledger.underway.take(Tier.GPU, "compressed_kv", 3)  # nobody keeps what it gave


def a_slot_on_its_way_that_is_free(b):
    b.slot = b.ledger.underway.take(Tier.GPU, "compressed_kv", 1)
    b.gpu.give("compressed_kv", b.slot)


def a_checkpoint_that_its_taker_forgot(b):
    b.ledger.underway.take(Tier.GPU, "swa_window", 1)


def a_byte_reserved_for_no_file(b):
    b.tiers.disk.reserve(100)


def a_page_without_a_slot(b):
    b.pages.slots = b.pages.slots[:-1]


def a_file_of_nobody(b):
    b.write("stray.safetensors")


def a_temporary_file_of_nobody(b):
    b.write("stray.tmp")


def a_byte_on_disk_too_many(b):
    b.tiers.disk.used_bytes += 1


def a_live_page_too_many(b):
    b.file.live_pages += 1


def a_file_that_is_referred_to_and_unknown(b):
    del b.tiers.disk.files[b.cold.record.spans["compressed_kv"].disk.file.name]


def a_state_that_no_object_bears_out(b):
    b.ledger.states[State.FULL] -= 1
    b.ledger.states[State.COMPRESSED] += 1
    b.trunk.record.state = State.COMPRESSED


def a_restore_that_nobody_runs(b):
    b.ledger.states[State.PARTIAL_OFFLOAD] -= 1
    b.ledger.states[State.FULL_RESTORE] += 1
    b.warm.record.state = State.FULL_RESTORE


def a_state_counted_wrong(b):
    b.ledger.states[State.FULL] += 1


def a_prefix_that_its_id_does_not_find(b):
    b.ledger.nodes[b.ids[1]] = b.ledger.nodes[b.ids[2]]


def a_prefix_in_the_tree_alone(b):
    del b.ledger.nodes[b.ids[1]]


def a_prefix_that_begins_elsewhere(b):
    b.warm.record.first_page += 1


def a_lease_that_pins_nothing(b):
    b.rig.engine.acquire(prompt(4 * b.rig.page))
    b.trunk.record.own_leases = 0


def a_byte_of_a_namespace_too_few(b):
    b.ledger.namespaces.gpu_bytes["default"] -= 1


def a_prefix_of_a_namespace_too_few(b):
    b.ledger.namespaces.prefixes["default"] -= 1


def a_byte_of_all_namespaces_too_many(b):
    b.ledger.namespaces.total_bytes += 1


def a_byte_booked_on_a_prefix_too_many(b):
    b.trunk.record.gpu_bytes += 1


def a_checkpoint_byte_too_many(b):
    b.ledger.checkpoints.gpu_bytes += 1


def a_prefix_in_no_order_of_leaving(b):
    b.ledger.orders[Tier.GPU].discard(b.trunk)


def a_tail_that_nobody_may_ask_for(b):
    order = b.ledger.orders[Tier.HOST]
    order._rest.discard(b.warm, order.touched(b.warm))


def a_pin_in_no_books(b):
    b.trunk.record.pinned_until_ns = 1 << 62


BREACHES = {
    a_slab_too_few: "free slabs are not",
    a_used_slot_too_many: "used slots are not the slabs'",
    a_slot_free_twice: "a slot is free twice",
    a_free_slot_of_another_slab: "a free slot lies in a slab of another class",
    a_live_byte_too_many: "live bytes counted",
    a_slot_of_two_objects: "a slot belongs to two objects",
    a_slot_of_none: "slots are used, objects own",
    a_slot_that_its_taker_forgot: "slots are used, objects own",
    a_slot_on_its_way_that_is_free: "1 are on their way",
    a_checkpoint_that_its_taker_forgot: "0 are in somebody's hand",
    a_byte_reserved_for_no_file: "0 are reserved",
    a_page_without_a_slot: "a holding of 4 pages has 3 slots",
    a_file_of_nobody: "1 files nobody refers to, e.g. stray.safetensors",
    a_temporary_file_of_nobody: "1 temporary files nobody writes, e.g. stray.tmp",
    a_byte_on_disk_too_many: "bytes counted, files have",
    a_live_page_too_many: "live pages, prefixes refer to",
    a_file_that_is_referred_to_and_unknown: "prefixes refer to 1 files that are not in the books",
    a_state_that_no_object_bears_out: "state COMPRESSED, its objects say FULL",
    a_restore_that_nobody_runs: "FULL_RESTORE, but no restore is in flight",
    a_state_counted_wrong: "prefixes are FULL",
    a_prefix_that_its_id_does_not_find: "or not found by its id",
    a_prefix_in_the_tree_alone: "3 nodes in the tree, 2 by id",
    a_prefix_that_begins_elsewhere: "not where its parent ends",
    a_lease_that_pins_nothing: "count fewer leases than run through them",
    a_byte_of_a_namespace_too_few: "are held, fewer are in the books",
    a_prefix_of_a_namespace_too_few: "are held, fewer are in the books",
    a_byte_of_all_namespaces_too_many: "by name",
    a_byte_booked_on_a_prefix_too_many: "GPU bytes are booked, it holds",
    a_checkpoint_byte_too_many: "checkpoints:",
    a_prefix_in_no_order_of_leaving: "order of gpu: it has 0 prefixes, 1 have bytes there",
    a_tail_that_nobody_may_ask_for: "order of host: 1 prefixes have no child in it, 0 may be asked for",
    a_pin_in_no_books: "1 of",
}


@pytest.mark.parametrize("breach", BREACHES, ids=lambda breach: breach.__name__)
def test_a_check_says_what_is_wrong_with(make_rig, tmp_path, monkeypatch, breach):
    books = Books(make_rig(host_bytes=1 << 20, disk_bytes=4 << 20, data_dir=tmp_path))
    assert books.rig.engine.check() == []
    breach(books)
    found = books.rig.engine.check()
    assert any(BREACHES[breach] in line for line in found), found
    monkeypatch.setattr(books.rig.engine._adopter, "persist", lambda _: 0)  # books like these write nothing
