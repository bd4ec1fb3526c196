"""One prefix asked of its engine: who holds it, which generations its slots have, and that looking changes nothing."""

from __future__ import annotations

import pytest
from engine_support import GENEROUS_S, prompt

from engine.commands.execute import KINDS
from engine.commands.ticket import BadCommand
from engine.schedule import inspection
from engine.telemetry.registry.spans import COMMANDS


def look(rig, prefix_id):
    done = rig.command("inspect", prefix_id=prefix_id)
    assert done.status == "succeeded"
    return done.outcome


def spans_of(said, tier="gpu"):
    return [row for row in said["objects"] if row["tier"] == tier and row["boundary"] is None]


def test_a_lease_that_is_held_is_seen_with_its_age_and_its_deadline(make_rig):
    rig = make_rig(lease_s=60.0)
    tokens = prompt(4 * rig.page, seed=1)
    done = rig.commit(tokens)
    assert look(rig, done.prefix_id)["oldest_leases"] == []
    with rig.engine.acquire(tokens, deadline_s=GENEROUS_S) as lease:
        rig.clock.advance(5.0)
        said = look(rig, done.prefix_id)
        assert (said["leases"], said["state"], said["version"]) == (1, "FULL", rig.node(done.prefix_id).record.version)
        (row,) = said["oldest_leases"]
        assert (row["lease_id"], row["usable_tokens"], row["current"]) == (lease.lease_id, len(tokens), True)
        assert (row["age_s"], row["left_s"]) == pytest.approx((5.0, 55.0))
        assert any(row["current"] for row in spans_of(said))
        rig.clock.advance(56.0)
        assert look(rig, done.prefix_id)["oldest_leases"][0]["left_s"] == pytest.approx(-1.0)
    after = look(rig, done.prefix_id)
    assert (after["leases"], after["oldest_leases"]) == (0, [])
    rig.assert_clean()


def test_a_lease_on_a_long_conversation_is_found_from_each_of_its_prefixes_and_from_no_other(make_rig):
    rig = make_rig(gpu_bytes=32 << 20)
    turns = 40
    tokens = prompt(turns * rig.page, seed=2)
    ids = [rig.serve(tokens[: n * rig.page]).commit.prefix_id for n in range(1, turns + 1)]
    other = rig.commit(prompt(2 * rig.page, seed=3)).prefix_id
    middle = tokens[: (turns // 2) * rig.page]
    with rig.engine.acquire(tokens, deadline_s=GENEROUS_S), rig.engine.acquire(middle, deadline_s=GENEROUS_S):
        assert any(rig.node(prefix_id).stretch is not None for prefix_id in ids)
        for n, prefix_id in enumerate(ids, 1):
            said = look(rig, prefix_id)
            assert said["leases"] == len(said["oldest_leases"]) == (2 if n <= turns // 2 else 1)
        assert look(rig, other)["oldest_leases"] == []


def test_the_generation_of_a_slot_grows_when_it_is_used_again(make_rig):
    rig = make_rig()
    tokens = prompt(4 * rig.page, seed=4)
    first = rig.commit(tokens)
    before = {row["kind"]: row for row in spans_of(look(rig, first.prefix_id))}
    assert {row["pages"] for row in before.values()} == {rig.node(first.prefix_id).n_pages}
    rig.command("evict", prefix_ids=[first.prefix_id], descendants=True)
    again = rig.commit(tokens)
    after = {row["kind"]: row for row in spans_of(look(rig, again.prefix_id))}
    assert after.keys() == before.keys()
    assert all(after[kind]["generation_min"] > before[kind]["generation_max"] for kind in before)


def test_copies_of_spans_and_checkpoints_are_told_by_tier(make_rig):
    rig = make_rig(host_bytes=4 << 20)
    done = rig.commit(prompt(3 * rig.page + 7, seed=5))
    said = look(rig, done.prefix_id)
    assert {row["boundary"] for row in said["objects"]} == {None, 3 * rig.page + 7}
    assert sum(row["bytes"] for row in said["objects"]) == sum(
        sum(tiers.values()) for tiers in rig.node(done.prefix_id).record.objects().values()
    )
    rig.command("offload", prefix_ids=[done.prefix_id], tier="host")
    below = look(rig, done.prefix_id)
    assert {row["tier"] for row in below["objects"]} == {"host"}
    assert below["pinned_until_unix_s"] is None


def test_a_pin_is_told_with_its_end(make_rig):
    rig = make_rig()
    done = rig.commit(prompt(2 * rig.page, seed=6))
    rig.command("pin", prefix_ids=[done.prefix_id], ttl_s=100)
    said = look(rig, done.prefix_id)
    assert said["pinned_until_unix_s"] - said["at_unix_s"] == pytest.approx(100.0)


def test_what_is_told_has_a_bound_and_says_so(make_rig, monkeypatch):
    rig = make_rig()
    tokens = prompt(2 * rig.page, seed=7)
    done = rig.commit(tokens)
    held = [rig.engine.acquire(tokens, deadline_s=GENEROUS_S) for _ in range(inspection.MOST_LEASES + 3)]
    said = look(rig, done.prefix_id)
    assert (said["leases"], len(said["oldest_leases"])) == (len(held), inspection.MOST_LEASES)
    assert [row["lease_id"] for row in said["oldest_leases"]] == [x.lease_id for x in held[: inspection.MOST_LEASES]]
    monkeypatch.setattr(inspection, "MOST_SLOTS", 0)
    assert look(rig, done.prefix_id)["oldest_leases"][0]["current"] is None
    monkeypatch.setattr(inspection, "MOST_STEPS", 3)
    assert len(look(rig, done.prefix_id)["oldest_leases"]) == 3
    for lease in held:
        lease.release()


def test_looking_changes_nothing_and_what_is_not_held_is_refused(make_rig):
    rig = make_rig()
    done = rig.commit(prompt(2 * rig.page, seed=8))
    before = rig.engine.snapshot()
    look(rig, done.prefix_id)
    assert rig.engine.snapshot() == before
    unknown = rig.command("inspect", prefix_id="0" * 32)
    assert (unknown.status, unknown.outcome["reason"]) == ("refused", "1 unknown_prefix")
    with pytest.raises(BadCommand, match="the id of one prefix"):
        rig.command("inspect", prefix_ids=[done.prefix_id])


def test_every_command_an_engine_takes_is_a_kind_that_its_spans_may_have(make_rig):
    taken = set(KINDS)
    assert taken | {"reconfigure"} == set(COMMANDS)
