"""Faults of bytes and files, caused: damage is found, set aside and never served.

What each fault leads to is promised in docs/reference/faults.md, which names the tests here.
"""

from __future__ import annotations

import pytest
from fault_support import (
    whole,
)

from engine.errors import CorruptObject
from engine.memory.faults import At, Fault, What
from engine.memory.movers import copy_from
from engine.memory.quarantine import quarantined


@pytest.mark.parametrize(
    "fault",
    [
        Fault(what=What.BIT_FLIP, at=At.READ, where="compressed_kv"),
        Fault(what=What.BIT_FLIP, at=At.WRITE, where="compressed_kv", nth=5),
        Fault(what=What.BIT_FLIP, at=At.WRITE, where="compressed_kv", nth=2),
        Fault(what=What.BIT_FLIP, at=At.WRITE, where="swa_window", nth=5),
        Fault(what=What.TRUNCATE, at=At.READ, where="compressed_kv"),
        Fault(what=What.MISSING, at=At.OPEN, where="compressed_kv", nth=2),
        Fault(what=What.FOREIGN, at=At.OPEN, where="compressed_kv", nth=2),
    ],
    ids=lambda fault: f"{fault.what}@{fault.at}-{fault.nth}",
)
def test_damage_on_the_way_is_found_set_aside_and_never_served(faulty, fault):
    rig, tokens, faults = faulty(fault)
    found = rig.look(tokens)
    assert sum(faults.fired.values()) == 1
    assert found.wrong_bytes == 0
    assert found.usable < len(tokens)
    assert rig.states == {"QUARANTINED": 1}
    rig.assert_clean()
    aside = quarantined(rig.engine.config.data_dir / "quarantine")
    if fault.what is not What.MISSING:
        assert [(q.kind, len(q.prefix_id)) for q in aside] == [(fault.where, 32)]
        assert aside[0].why not in ("", "damaged", "not recorded")
    assert rig.commit(tokens).outcome == "admitted"
    whole(rig, tokens)


def test_a_file_shorter_than_what_was_written_is_not_published(faulty):
    """The device said that all was written, and half was."""
    rig, tokens, faults = faulty(Fault(what=What.TRUNCATE, at=At.WRITE, nth=5, times=None), offload=None)
    prefix_id = rig.commit(tokens).prefix_id
    assert rig.command("offload", prefix_ids=[prefix_id], tier="disk").outcome["refused"]
    assert rig.files() == []
    whole(rig, tokens)
    faults.disarm()
    assert rig.command("offload", prefix_ids=[prefix_id], tier="disk").outcome["offloaded"] == 1
    whole(rig, tokens)


def test_short_reads_and_writes_are_nobodys_business(faulty):
    rig, tokens, faults = faulty(
        Fault(what=What.SHORT, at=At.READ, times=None), Fault(what=What.SHORT, at=At.WRITE, times=None)
    )
    whole(rig, tokens)
    assert faults.fired[What.SHORT, At.READ] > 1
    assert faults.fired[What.SHORT, At.WRITE] > 1


@pytest.mark.parametrize("tier", ["gpu", "host"])
def test_a_bit_that_flips_in_memory_is_found_and_never_served(faulty, tier):
    rig, tokens, _ = faulty(
        Fault(what=What.BIT_FLIP, at=At(f"{tier}_write"), where="compressed_kv"),
        offload="host" if tier == "host" else None,
        host_bytes=1 << 20,
    )
    if tier == "gpu":
        rig.commit(tokens)
        with pytest.raises(CorruptObject):
            rig.look(tokens)
    found = rig.look(tokens)
    assert found.wrong_bytes == 0
    assert found.usable < len(tokens)
    rig.assert_clean()
    assert rig.commit(tokens).outcome == "admitted"
    whole(rig, tokens)


def test_bytes_that_change_on_their_way_from_the_host_are_not_mapped_and_the_host_keeps_its_own(faulty, monkeypatch):
    rig, tokens, _ = faulty(offload="host", host_bytes=1 << 20)

    def changed(source):
        move = copy_from(source)

        def moved(piece, offset):
            move(piece, offset)
            piece[0] ^= 1

        return moved

    with monkeypatch.context() as patch:
        patch.setattr("engine.memory.tiers.copy_from", changed)
        assert rig.look(tokens).reason == "tier_unavailable"
    assert rig.states == {"PARTIAL_OFFLOAD": 1}
    assert rig.ledger.tiers.gpu.live_bytes == 0
    whole(rig, tokens)
