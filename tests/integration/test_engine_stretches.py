"""A long conversation: its path is walked in few steps, and whatever happens to one prefix of it is seen at once."""

from __future__ import annotations

import numpy as np
import pytest
from engine_support import GENEROUS_S, fork, prompt

from engine.errors import StalePointer
from engine.index.node import Stretch
from engine.index.radix import STRETCH_NODES

TURNS = 2 * STRETCH_NODES + 10
MIDDLE = STRETCH_NODES // 2


class Conversation:
    """TURNS prefixes of a page each, with a checkpoint each, in one path."""

    def __init__(self, rig):
        self.rig, self.ledger = rig, rig.ledger
        self.tokens = prompt(TURNS * rig.page)
        marks = [n * rig.page for n in range(1, TURNS + 1)]
        for turns in range(1, TURNS + 1, STRETCH_NODES):
            end = min(turns + STRETCH_NODES - 1, TURNS) * rig.page
            assert rig.commit(self.tokens[:end], [m for m in marks if m <= end]).outcome == "admitted"
        assert self.serve() == TURNS * rig.page

    @property
    def path(self):
        return self.ledger.index.match("default", self.tokens.tobytes()).nodes

    @property
    def stretches(self):
        path = self.ledger.index.match("default", self.tokens.tobytes()).path
        return [step for step in path if isinstance(step, Stretch)]

    def serve(self, tokens=None):
        """What is a hit, after every byte of it was compared; and the books must balance, proofs made again."""
        found = self.rig.look(self.tokens if tokens is None else tokens)
        assert found.wrong_bytes == 0, found.first_wrong
        assert self.rig.engine.check() == []
        return found.usable

    def proven(self):
        return [stretch.proof is not None and stretch.proof.holds for stretch in self.stretches]


@pytest.fixture
def talk(make_rig, tmp_path):
    return Conversation(
        make_rig(
            gpu_bytes=16 << 20, host_bytes=4 << 20, disk_bytes=16 << 20, data_dir=tmp_path, prefill_tokens_per_s=10.0,
            checkpoint_budget_ratio=0.8,
        )
    )  # fmt: skip


def test_a_path_of_many_prefixes_has_few_steps_and_a_lease_few_pointers(talk):
    assert len(talk.path) == TURNS
    assert [len(stretch.nodes) for stretch in talk.stretches] == [STRETCH_NODES] * 2
    assert talk.proven() == [True, True]
    with talk.rig.engine.acquire(talk.tokens) as lease:
        assert all(len(bounds) == 2 + TURNS - 2 * STRETCH_NODES for bounds in lease.spans.values())
        assert [node.record.leases for node in talk.path] == [1] * TURNS
        assert [node.record.own_leases for node in talk.path] == [0] * (2 * STRETCH_NODES) + [1] * 10
    assert not any(node.record.leases for node in talk.path)


@pytest.mark.parametrize(
    ("kind", "arguments", "still_proven"),
    [
        ("offload", {"tier": "host"}, False),
        ("offload", {"tier": "disk"}, False),
        ("compress", {"codec": "lossless"}, False),
        ("pin", {"ttl_s": 60.0}, True),
    ],
)
def test_what_a_command_does_to_one_prefix_ends_the_proof_of_its_stretch(talk, kind, arguments, still_proven):
    prefix_id = talk.path[MIDDLE].record.prefix_id
    done = talk.rig.command(kind, prefix_ids=[prefix_id], **arguments)
    assert done.status == "succeeded", done
    assert talk.serve() == TURNS * talk.rig.page
    talk.rig.command("warm", prefix_ids=[prefix_id])
    talk.serve()
    coded = kind == "compress"
    assert talk.proven() == [not coded, True]
    assert still_proven or talk.ledger.nodes[prefix_id].record.version > 1


def test_a_prompt_that_ends_or_parts_inside_a_stretch_is_served_up_to_there(talk):
    page = talk.rig.page
    for turns in (MIDDLE, STRETCH_NODES, STRETCH_NODES + 1, TURNS - 1):
        assert talk.serve(talk.tokens[: turns * page]) == turns * page
        assert talk.serve(fork(talk.tokens, turns * page, (turns + 2) * page, 7)) == turns * page


def test_a_branch_inside_a_stretch_and_its_eviction_leave_it_one(talk):
    page = talk.rig.page
    side = fork(talk.tokens, MIDDLE * page, (MIDDLE + 2) * page, 5)
    done = talk.rig.commit(side)
    assert talk.serve(side) == len(side)
    assert talk.serve() == TURNS * page
    talk.rig.command("evict", prefix_ids=[done.prefix_id])
    assert talk.serve() == TURNS * page
    assert talk.proven() == [True, True]


def test_a_lease_counts_on_every_prefix_though_its_stretches_come_and_go_under_it(talk):
    """Counted on what was no stretch yet, given back when it was one; and the other way round."""
    engine, page = talk.rig.engine, talk.rig.page
    early = engine.acquire(talk.tokens)
    longer = np.concatenate([talk.tokens, prompt(STRETCH_NODES * page, 3)])
    marks = [n * page for n in range(TURNS, TURNS + STRETCH_NODES + 1)]
    talk.rig.commit(longer, marks)
    third = talk.path[-1].stretch
    assert third is not None
    late = engine.acquire(longer)
    assert [node.record.leases for node in talk.path] == [2] * TURNS
    early.release()
    assert [node.record.leases for node in talk.path] == [1] * TURNS
    late.release()
    assert [node.record.leases for node in talk.path] == [0] * TURNS
    held = engine.acquire(talk.tokens)
    first_new = third.nodes[TURNS - 2 * STRETCH_NODES]
    done = talk.rig.command("evict", prefix_ids=[first_new.record.prefix_id], descendants=True)
    assert done.outcome["evicted"] == STRETCH_NODES
    assert talk.path[-1].stretch is None
    assert [node.record.leases for node in talk.path] == [1] * TURNS
    assert engine.check() == []
    assert talk.rig.commit(longer, marks).outcome == "admitted"
    assert talk.path[-1].stretch is not None
    assert talk.serve(longer) == len(longer)
    held.release()
    assert not any(node.record.leases for node in talk.path)


def test_damage_inside_a_stretch_is_found_and_ends_there(talk):
    gpu, node = talk.ledger.tiers.gpu, talk.path[MIDDLE]
    copy = node.record.spans["compressed_kv"].gpu
    data = gpu.read(copy.page_class, copy.slots).clone()
    gpu.write(copy.page_class, copy.slots, data ^ 1)
    with talk.rig.engine.acquire(talk.tokens, deadline_s=GENEROUS_S) as lease:
        with pytest.raises(Exception, match="checksum"):
            lease.load()
        with pytest.raises(StalePointer):
            lease.load()
    assert node.record.state == "QUARANTINED"
    assert talk.serve() == MIDDLE * talk.rig.page


def test_pages_that_compaction_moves_are_pointed_to_where_they_are(make_rig):
    rig = make_rig(gpu_bytes=16 << 20, checkpoint_budget_ratio=0.8)
    holes = [rig.commit(prompt(3 * rig.page, 100 + n)).prefix_id for n in range(40)]
    talk = Conversation(rig)
    rig.command("evict", prefix_ids=holes[::2])
    before = talk.stretches[0].proof
    assert rig.command("compact").outcome["pages"] > 0
    assert talk.serve() == TURNS * rig.page
    assert talk.stretches[0].proof is not before


def test_the_check_makes_every_proof_again(talk):
    first, second = talk.stretches
    first.proof.holds = False
    assert any("proven False, its prefixes say True" in line for line in talk.rig.engine.check())
    first.proof.holds = True
    first.edge = second.edge
    assert any("or it has other tokens" in line for line in talk.rig.engine.check())
    first.edge = b"".join(node.edge for node in first.nodes)
    first.proof.bounds = second.proof.bounds
    assert any("is not to where its prefixes are" in line for line in talk.rig.engine.check())
    first.proof = None
    first.nodes[0].record.stretch = second
    assert any("a prefix of it is of another stretch" in line for line in talk.rig.engine.check())
    first.nodes[0].record.stretch = first
    assert talk.rig.engine.check() == []
