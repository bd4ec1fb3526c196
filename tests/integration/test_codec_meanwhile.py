"""Requests and commands go on while a judge is at work, and what it judges stays."""

from __future__ import annotations

import threading

from quality_support import (
    Fixed,
    compress,
    two_prefixes,
)


class Meanwhile(Fixed):
    """Does something with the engine while it judges."""

    def __init__(self, act):
        super().__init__()
        self.act = act

    def judge(self, native, coded, tokens):
        thread = threading.Thread(target=self.act)
        thread.start()
        thread.join(30)
        assert not thread.is_alive()  # or the engine's lock is held
        return super().judge(native, coded, tokens)


def test_requests_are_served_from_the_native_pages_while_the_judge_is_at_work(make_rig):
    rig, found = make_rig("small-gpt-oss"), []
    _, child, tokens = two_prefixes(rig)
    rig.engine.set_quality_judge(Meanwhile(lambda: found.append(rig.look(tokens))))
    assert compress(rig, child) == ""
    assert [(f.usable, f.wrong_bytes, f.state) for f in found] == [(len(tokens), 0, "FULL")]
    rig.assert_clean()


def test_a_path_that_is_judged_stays(make_rig):
    rig, outcomes = make_rig("small-gpt-oss", host_bytes=1 << 20), []
    parent, child, _ = two_prefixes(rig)

    def disturb():
        outcomes.append(rig.command("evict", prefix_ids=[parent], descendants=True).status)
        outcomes.append(rig.command("offload", prefix_ids=[parent], tier="host").status)

    rig.engine.set_quality_judge(Meanwhile(disturb))
    assert compress(rig, child) == ""
    assert outcomes == ["refused", "refused"]
    assert not any(node.record.leases for node in rig.ledger.index.walk())
    rig.assert_clean()


def test_a_prefix_that_was_leased_meanwhile_stays_native(make_rig):
    rig, held = make_rig("small-gpt-oss"), []
    _, child, tokens = two_prefixes(rig)
    rig.engine.set_quality_judge(Meanwhile(lambda: held.append(rig.engine.acquire(tokens, deadline_s=60))))
    live = rig.ledger.tiers.gpu.live_bytes
    assert compress(rig, child) == "leased"
    assert rig.ledger.tiers.gpu.live_bytes == live
    assert rig.lossy.verify(held[0].load(), tokens).ok
    held[0].release()
    rig.assert_clean()
