"""Tiers full of what must stay: a search for room ends after one look at each prefix, and says so."""

from __future__ import annotations

import numpy as np
from engine_support import prompt


def test_a_host_full_of_parents_that_cannot_be_written_is_given_up_on(make_rig, tmp_path, monkeypatch):
    rig = make_rig(gpu_bytes=2 << 20, slab_bytes=64 << 10, host_bytes=256 << 10, disk_bytes=1 << 20, data_dir=tmp_path)
    asked: list[object] = []
    disk = rig.engine._adopter._room.disk
    monkeypatch.setattr(type(disk), "write", lambda self, node, **_: bool(asked.append(node)))  # a disk that is full
    heads = [prompt(100 * rig.page, seed) for seed in range(2)]
    parents = [rig.commit(tokens, []).prefix_id for tokens in heads]
    longer = [np.concatenate([tokens, prompt(40 * rig.page, 50 + seed)]) for seed, tokens in enumerate(heads)]
    children = [rig.commit(tokens, []).prefix_id for tokens in longer]
    # The parents fill the host. Their children, still on the GPU, would follow: no parent may go to make room for them.
    assert rig.command("offload", prefix_ids=parents[:1], tier="host").outcome["offloaded"] == 1
    done = [rig.command("offload", prefix_ids=[child], tier="host") for child in (*children, parents[1])]
    assert "no_room_below" in {item["reason"] for found in done for item in found.outcome["refused"]}
    assert 0 < len(asked) <= 3 * len(parents)
    assert [rig.look(tokens).wrong_bytes for tokens in (*heads, *longer)] == [0, 0, 0, 0]
    rig.assert_clean()
