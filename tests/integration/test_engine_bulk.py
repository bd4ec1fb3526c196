"""Commands on many prefixes: paced, stopped between two steps, drained, and foreseen."""

from __future__ import annotations

import dataclasses
import time

import pytest
from engine_support import prompt

from engine import CommandRequest
from engine.commands.ticket import BadCommand


def ask(rig, kind, *, cancelled=lambda: False, told=lambda _: None, **arguments):
    request = CommandRequest(id="c", kind=kind, arguments=arguments, cancelled=cancelled)
    return rig.engine.execute(request, told)


def filled(make_rig, n=6, pages=2, **config):
    """A rig with `n` prefixes that have nothing in common, oldest first, and their prompts."""
    rig = make_rig(**config)
    prompts = [prompt(pages * rig.page, seed=100 + i) for i in range(n)]
    return rig, prompts, [rig.commit(tokens).prefix_id for tokens in prompts]


@pytest.mark.parametrize("kind", ["evict", "offload", "pin", "compress"])
def test_a_command_that_is_cancelled_ends_at_its_next_step_and_says_what_it_did(make_rig, kind, tmp_path):
    rig, _, ids = filled(make_rig, host_bytes=4 << 20)
    seen = []
    done = ask(
        rig, kind, prefix_ids=ids, tier="host", cancelled=lambda: len(seen) >= 2 or (kind == "pin" and bool(held(rig))),
        told=seen.append,
    )  # fmt: skip
    assert done.status == "cancelled"
    assert done.outcome["reason"] == "cancelled"
    verb = {"evict": "evicted", "offload": "offloaded", "pin": "pinned", "compress": "compressed"}[kind]
    assert 0 < done.outcome[verb] < len(ids)
    rig.assert_clean()


def gpu_bytes(rig):
    return rig.engine.stats()["tiers"]["gpu"]["live_bytes"]


def held(rig):
    return len(rig.engine._ledger.pins)


def test_a_command_that_was_cancelled_before_it_ran_does_nothing(make_rig):
    rig, _, ids = filled(make_rig)
    done = ask(rig, "evict", prefix_ids=ids, cancelled=lambda: True)
    assert (done.status, len(rig.engine.snapshot())) == ("cancelled", len(ids))


def test_bulk_work_waits_for_its_pace(make_rig, monkeypatch):
    rig, _, ids = filled(make_rig)
    waits = []
    monkeypatch.setattr("engine.commands.ticket.Ticket.wait", lambda self, seconds: waits.append(seconds))
    assert ask(rig, "evict", prefix_ids=ids, prefixes_per_s=2).status == "succeeded"
    # One second's worth goes at once; the clock of the rig stands still, so what is due only grows.
    assert [round(wait, 3) for wait in waits] == [-0.5, 0.0, 0.5, 1.0, 1.5]
    with pytest.raises(BadCommand, match="prefixes_per_s is -1"):
        ask(rig, "evict", prefix_ids=ids, prefixes_per_s=-1)


def test_bulk_work_at_a_pace_takes_its_time_and_no_longer_than_it_is_wanted(make_rig):
    rig, _, ids = filled(make_rig)
    began = time.monotonic()
    done = ask(rig, "evict", prefix_ids=ids, bytes_per_s=1, cancelled=lambda: time.monotonic() - began > 0.3)
    assert (done.status, done.outcome["evicted"]) == ("cancelled", 1)


@pytest.mark.parametrize("kind", ["evict", "warm", "offload", "compress", "pin"])
def test_no_kind_touches_a_prefix_that_moved_on(make_rig, kind):
    rig, _, ids = filled(make_rig, n=2, host_bytes=4 << 20)
    before = rig.engine.snapshot()
    done = ask(rig, kind, prefix_ids=ids[:1], tier="host", expect_versions={ids[0]: 7})
    assert (done.status, done.outcome["reason"]) == ("refused", "1 version_moved_on")
    assert [row["version"] for row in rig.engine.snapshot()] == [row["version"] for row in before]


def test_an_engine_is_drained_in_its_mode_alone(make_rig):
    rig, _, _ = filled(make_rig)
    done = ask(rig, "drain", then="evict")
    assert (done.status, done.outcome["reason"]) == ("refused", "1 mode_is_normal")


def test_a_drained_engine_serves_nothing_keeps_nothing_new_and_lets_leases_end(make_rig):
    rig, prompts, ids = filled(make_rig)
    lease = rig.engine.acquire(prompts[0])
    rig.engine.reconfigure({"mode": "drain"}, revision=1)
    with rig.engine.acquire(prompts[1]) as missed:
        assert (missed.usable_tokens, missed.explanation.reason) == (0, "mode_drain")
    left = ask(rig, "drain", then="evict", wait_s=0.05)
    assert (left.status, left.outcome["leases_left"]) == ("succeeded", 1)
    assert (left.outcome["evicted"], left.outcome["reason"]) == (len(ids) - 1, "1 leased")
    lease.release()
    assert ask(rig, "drain", then="evict").outcome["evicted"] == 1
    assert rig.engine.snapshot() == []
    refused = rig.commit(prompts[0])
    assert (refused.outcome, refused.reason) == ("refused", "mode_drain")
    rig.engine.reconfigure({}, revision=2)
    assert rig.commit(prompts[0]).outcome == "admitted"


def test_a_drain_may_take_everything_off_the_gpu_and_lose_nothing(make_rig, tmp_path):
    rig, prompts, ids = filled(make_rig, disk_bytes=8 << 20, data_dir=tmp_path)
    rig.engine.reconfigure({"mode": "drain"}, revision=1)
    done = ask(rig, "drain", then="offload", tier="disk")
    assert (done.outcome["offloaded"], rig.states) == (len(ids), {"PARTIAL_OFFLOAD": len(ids)})
    rig.engine.reconfigure({}, revision=2)
    found = rig.look(prompts[0])
    assert found.usable > 0
    assert found.wrong_bytes == 0
    rig.assert_clean()


HALF = "half of what is held"
CAPS = [
    {"cap_prefixes": 3},
    {"cap_gpu_bytes": HALF},
    {"cap_prefixes": 5, "namespace_caps": {"default": {"max_prefixes": 2}}},
    {"cap_prefixes": 2, "eviction": "cost_aware"},
]


@pytest.mark.parametrize("document", CAPS, ids=str)
def test_what_is_foreseen_is_what_then_happens(make_rig, document):
    rig, _, ids = filled(make_rig, n=12, pages=6)
    pinned = ids[0]
    rig.command("pin", prefix_ids=[pinned])
    before = {row["prefix.id"] for row in rig.engine.snapshot()}
    document = {key: gpu_bytes(rig) // 2 if value == HALF else value for key, value in document.items()}
    said = ask(rig, "foresee", document=document).outcome
    assert {row["prefix.id"] for row in rig.engine.snapshot()} == before
    rig.engine.reconfigure(document, revision=1)
    gone = before - {row["prefix.id"] for row in rig.engine.snapshot()}
    assert gone
    assert (said["evicted"], set(said["first_evicted"])) == (len(gone), gone)
    assert said["certainty"] == ("estimate" if "eviction" in document else "exact")
    assert pinned not in gone


def test_what_would_go_down_a_tier_is_an_estimate_and_says_why(make_rig):
    rig, _, _ = filled(make_rig, n=12, pages=6, host_bytes=4 << 20)
    half = {"cap_gpu_bytes": gpu_bytes(rig) // 2}
    said = ask(rig, "foresee", document=half).outcome
    assert said["certainty"] == "estimate"
    assert "find no room" in said["why"]
    rig.engine.reconfigure(half, revision=1)
    assert said["leave_gpu"] == rig.states["PARTIAL_OFFLOAD"] > 0


def test_a_cap_that_leases_and_pins_hold_is_foreseen_as_such(make_rig):
    rig, _, ids = filled(make_rig, n=3)
    rig.command("pin", prefix_ids=ids)
    said = ask(rig, "foresee", document={"cap_prefixes": 1}).outcome
    assert (said["evicted"], said["cannot_keep"]) == (
        0, ["cap_prefixes: 2 more prefixes, but they are leased, pinned or busy"],
    )  # fmt: skip


def test_a_document_that_would_be_refused_is_refused_when_tried(make_rig):
    rig, _, _ = filled(make_rig, n=1)
    done = ask(rig, "foresee", document={"codec": "zip"})
    assert (done.status, done.outcome["reason"]) == ("failed", "1 config")
    with pytest.raises(BadCommand, match="needs a document"):
        ask(rig, "foresee", document=3)


def test_the_budget_of_pins_is_a_knob(make_rig):
    rig, _, ids = filled(make_rig, n=6, pages=6)
    rig.engine.reconfigure({"pin_budget_ratio": 0.001}, revision=1)
    assert rig.engine.observed()["pin_budget_ratio"] == 0.001
    assert rig.command("pin", prefix_ids=ids).status == "refused"
    rig.engine.reconfigure({}, revision=2)
    assert rig.command("pin", prefix_ids=ids[:1]).status == "succeeded"


def test_a_tier_below_can_be_closed_by_its_cap(make_rig):
    rig, _, ids = filled(make_rig, n=2, host_bytes=4 << 20)
    rig.command("offload", prefix_ids=ids[:1], tier="host")
    rig.engine.reconfigure({"cap_host_bytes": 0}, revision=1)
    assert rig.engine.stats()["tiers"]["host"]["live_bytes"] == 0
    assert rig.command("offload", prefix_ids=ids[1:], tier="host").outcome["reason"] == "1 no_room_below"


def test_a_request_compares_equal_whatever_may_cancel_it():
    one = CommandRequest(id="a", kind="evict")
    assert one == dataclasses.replace(one, cancelled=lambda: True)
