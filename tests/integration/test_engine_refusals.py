"""What an engine does not take, and the sentence it says so with."""

from __future__ import annotations

import pytest
from engine_support import fork, prompt

from engine.commands.ticket import BadCommand, CommandRequest
from engine.errors import ConfigError, StateMismatch
from engine.memory.arena import Arena
from engine.telemetry.context import parse_traceparent
from engine.telemetry.ring import NO_SPAN, Ring, SpanContext


@pytest.mark.parametrize(
    ("kind", "arguments", "says"),
    [
        ("explode", {}, "command 'explode' is unknown; known: evict, "),
        ("evict", {}, "evict needs prefix_ids, a list of prefix ids; got None"),
        ("warm", {"prefix_ids": "a" * 32}, "warm needs prefix_ids, a list of prefix ids"),
        ("pin", {"prefix_ids": [], "ttl_s": -1}, "ttl_s is -1.0; it must be above 0 and below"),
        ("compress", {"prefix_ids": [], "codec": "zip"}, "codec 'zip' is unknown; known: "),
        ("offload", {"prefix_ids": [], "tier": "moon"}, "tier 'moon' is nowhere to offload to; host or disk"),
        ("scrub", {"bytes_per_s": -1}, "bytes_per_s is -1.0; it must be above 0"),
    ],
)
def test_a_command_that_cannot_be_one_is_told_what_is_wrong_and_does_nothing(make_rig, kind, arguments, says):
    rig = make_rig()
    rig.commit(prompt(4 * rig.page))
    before = rig.engine.snapshot()
    with pytest.raises(BadCommand, match="^" + says):
        rig.command(kind, **arguments)
    assert [row["version"] for row in rig.engine.snapshot()] == [row["version"] for row in before]
    rig.assert_clean()


def test_a_command_that_came_too_late_is_not_run(make_rig):
    rig = make_rig()
    rig.commit(prompt(4 * rig.page))
    late = rig.clock.wall_ns() / 1e9 - 1
    request = CommandRequest(id="c", kind="evict", arguments={"prefix_ids": rig.ids}, expires_at_unix_s=late)
    done = rig.engine.execute(request)
    assert (done.status, done.outcome["reason"]) == ("expired", "expired before it was run")
    assert len(rig.ids) == 1


def test_each_prefix_that_a_command_does_not_touch_has_a_reason(make_rig):
    rig = make_rig(host_bytes=1 << 20)
    trunk = prompt(4 * rig.page)
    parent = rig.commit(trunk).prefix_id
    child = rig.commit(fork(trunk, len(trunk), 6 * rig.page, 1)).prefix_id
    nobody = "f" * 32

    def reasons(kind, **arguments):
        found = rig.command(kind, **arguments).outcome
        return [item["reason"] for item in (*found.get("refused", ()), *(found.get("failed") or ()))]

    assert reasons("evict", prefix_ids=[nobody]) == ["unknown_prefix"]
    assert reasons("evict", prefix_ids=[parent]) == ["has_descendants"]
    assert reasons("evict", prefix_ids=[child], expect_versions={child: 99}) == ["version_moved_on"]
    assert reasons("compress", prefix_ids=[nobody]) == ["unknown_prefix"]
    assert reasons("offload", prefix_ids=[nobody]) == ["unknown_prefix"]
    assert reasons("restore", prefix_ids=[nobody]) == ["unknown_prefix"]
    assert reasons("unpin", prefix_ids=[nobody]) == ["unknown_prefix"]
    for prefix_id in (child, parent):
        rig.command("offload", prefix_ids=[prefix_id], tier="host")
    with rig.ledger.lock:
        rig.node(child).record.busy = True
    assert reasons("restore", prefix_ids=[child]) == ["busy"]
    with rig.ledger.lock:
        rig.node(child).record.busy = False
    assert reasons("warm", prefix_ids=[parent, child], max_bytes=1) == ["byte_budget_spent"]
    assert [r["state.to"] for r in rig.engine.snapshot() if r["prefix.id"] == child] == ["PARTIAL_OFFLOAD"]
    rig.assert_clean()


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"cap": 1}, "desired state has unknown keys: cap; known: "),
        ({"mode": "fast"}, "mode is 'fast'; known: normal, "),
        ({"codec": "zip"}, "codec is 'zip'; known: lossless, "),
        ({"checkpoint_every_tokens": -1}, "checkpoint_every_tokens is -1; it must be a whole number, 0 for none"),
        ({"cap_prefixes": 0}, "cap_prefixes is 0; it must be a whole number of at least 1"),
        ({"mode_expires_at": "soon"}, "mode_expires_at is 'soon'; it must be an RFC 3339 time"),
        ({"mode_expires_at": "2027-01-01T00:00:00"}, "mode_expires_at is .*; it needs a time zone"),
    ],
)
def test_a_desired_state_with_one_wrong_value_changes_nothing(make_rig, wanted, says):
    rig = make_rig()
    before = rig.engine.observed()
    with pytest.raises(ConfigError, match="^" + says):
        rig.engine.reconfigure({"checkpoint_budget_ratio": 0.2, **wanted}, revision=3)
    assert rig.engine.observed() == before


def test_a_mode_that_a_person_set_ends_at_its_time(make_rig):
    rig = make_rig()
    rig.commit(prompt(4 * rig.page))
    rig.engine.reconfigure({"mode": "bypass", "mode_expires_at": "2027-01-15T08:01:00Z"}, revision=1)
    assert rig.look(prompt(4 * rig.page)).usable == 0
    rig.clock.advance(59)
    rig.engine.tick()
    assert rig.engine.observed()["mode"] == "bypass"
    rig.clock.advance(1)
    rig.engine.tick()
    assert rig.engine.observed()["mode"] == "normal"
    assert rig.look(prompt(4 * rig.page)).usable == 4 * rig.page


def test_a_state_that_is_none_is_named(make_rig):
    rig = make_rig()
    with pytest.raises(StateMismatch, match=r"the state is a dict; pass an engine\.NewState"):
        rig.engine.commit(prompt(64), {})


def test_a_device_that_cannot_be_had_is_a_configuration_error():
    with pytest.raises(ConfigError, match=r"gpu: 4,096 bytes on 'nowhere' cannot be had: "):
        Arena("gpu", 4096, 4096, {"a": 512}, device="nowhere")


@pytest.mark.parametrize(
    "text", [None, "", "00-1-2-3", "00-" + "g" * 32 + "-" + "1" * 16 + "-01", "00-" + "1" * 32 + "-" + "1" * 16]
)
def test_a_trace_context_that_is_none_is_no_parent(text):
    assert parse_traceparent(text) == NO_SPAN


def test_a_trace_context_is_taken_as_it_is():
    assert parse_traceparent(f"00-{'a' * 32}-{'b' * 16}-01") == SpanContext(
        int("a" * 32, 16), int("b" * 16, 16), continued=True, remote=True
    )


class _Check:
    failed = False


def test_a_full_ring_drops_passed_checks_before_requests_and_counts_both():
    ring = Ring(2, enabled=True)
    for _ in range(3):
        ring.check_batch(NO_SPAN, "p", 64, "plan", (_Check(), _Check()), (0, 1, 2))
    assert (len(ring.checks), ring.tally.dropped_checks) == (2, 2)
    for _ in range(5):
        ring.request("kvcache.acquire", SpanContext(1, 1), NO_SPAN, 0, 1, ())
    assert (len(ring.checks), len(ring.requests)) == (0, 4)
    assert (ring.tally.dropped_checks, ring.tally.dropped_requests) == (6, 1)


def test_a_ring_that_is_off_records_nothing():
    ring = Ring(2, enabled=False)
    ring.check_batch(NO_SPAN, "p", 64, "plan", (_Check(),), (0, 1))
    ring.request("kvcache.acquire", SpanContext(1, 1), NO_SPAN, 0, 1, ())
    assert (len(ring.checks), len(ring.requests), ring.tally.recorded) == (0, 0, 0)
