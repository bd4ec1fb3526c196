"""The dashboard's rules without a screen: what needs attention, how desired state reads, how outcomes read."""

import datetime as dt
from dataclasses import replace

from controlplane.store.queries import AlertView, CommandView, DamagedView, EngineView, PrefixView
from dashboard.attention import needs_attention
from dashboard.components.follow import outcome_text, progress_ratio
from dashboard.data import ControlPlaneHealth, EngineNow
from dashboard.desired import changes_of, diff_lines, how_far, knob_text

NOW = dt.datetime(2026, 1, 2, 3, 0, tzinfo=dt.UTC)
UP = ControlPlaneHealth(state="up", detail="", checked_at=NOW)
ENGINE = EngineView(
    id="gpu-a",
    boot_id="b",
    model="m",
    fingerprint="f",
    page_tokens=64,
    labels={},
    registered_at=NOW,
    last_seen_at=NOW,
    last_seen_seconds=0.0,
    health="live",
    observed_revision=3,
    desired_revision=3,
    sync="in_sync",
    observed={"mode": "normal"},
    stats={},
    snapshot_wanted=False,
    open_gaps=0,
)


def attention(engine: EngineView = ENGINE, **more):
    known = {"health": UP, "alerts": [], "damaged": [], "commands": [], "revised_at": NOW - dt.timedelta(hours=1)}
    return needs_attention(engines=[EngineNow(view=engine, requests_lately=5)], now=NOW, **{**known, **more})


def test_a_well_deck_needs_nothing():
    assert attention() == []


def test_idle_is_no_fault_and_not_the_same_as_stale():
    assert EngineNow(view=ENGINE, requests_lately=0).health == "idle"
    assert EngineNow(view=replace(ENGINE, health="stale"), requests_lately=0).health == "stale"


def test_wrong_bytes_come_before_everything_else():
    engine = replace(ENGINE, stats={"wrong_bytes": 4096}, health="unreachable", open_gaps=2)
    items = attention(engine)
    assert items[0].what == "Engine gpu-a served 4.0 KiB of wrong bytes"
    assert [item.rank for item in items] == sorted(item.rank for item in items)


def test_an_engine_that_refuses_says_which_value_and_where_to_act():
    engine = replace(ENGINE, sync="refused", observed={"mode": "normal", "error": "cap_gpu_bytes too small"})
    item = attention(engine)[0]
    assert "cap_gpu_bytes too small" in item.what
    assert (item.page, item.since) == ("caps", NOW - dt.timedelta(hours=1))


def test_a_revision_just_made_is_given_time_before_it_counts_as_behind():
    engine = replace(ENGINE, sync="behind", desired_revision=4)
    assert attention(engine, revised_at=NOW - dt.timedelta(seconds=5)) == []
    assert "runs revision 3, 4 is desired" in attention(engine)[0].what


def test_an_acknowledged_alert_sinks_but_stays():
    alert = AlertView(
        id=1,
        rule="recovery_failure_rate",
        engine_id="gpu-a",
        state="firing",
        summary="24%",
        value=0.24,
        threshold=0.2,
        since=NOW,
        fired_at=NOW,
        resolved_at=None,
        acknowledged_by=None,
    )
    assert attention(alerts=[alert])[0].rank == 1
    taken = attention(alerts=[replace(alert, acknowledged_by="someone")])[0]
    assert taken.rank == 3
    assert "acknowledged by someone" in taken.what
    assert attention(alerts=[replace(alert, state="resolved")]) == []


def test_damage_names_its_reasons_once():
    prefix = PrefixView(
        engine_id="gpu-a",
        prefix_id="a" * 32,
        parent_id=None,
        namespace="n",
        state="QUARANTINED",
        life=1,
        version=2,
        tokens=64,
        pages=1,
        gpu_bytes=0,
        host_bytes=0,
        disk_bytes=1,
        objects={},
        pinned=False,
        tokens_served=0,
        requests_served=0,
        created_at=NOW,
        changed_at=NOW,
        served_at=None,
    )
    row = DamagedView(prefix=prefix, reason="checksum_mismatch", cause="corruption", at=NOW, trace_id="t")
    assert attention(damaged=[row, row])[0].what == "2 damaged prefixes in quarantine (checksum mismatch)"


def test_only_commands_that_ended_badly_and_lately_are_named():
    command = CommandView(
        id="c",
        engine_id="gpu-a",
        kind="warm",
        arguments={},
        status="failed",
        progress={},
        outcome={"reason": "disk gone"},
        actor="a",
        reason="r",
        created_at=NOW,
        expires_at=NOW,
        delivered_at=None,
        finished_at=NOW - dt.timedelta(minutes=5),
        traceparent=None,
    )
    assert "disk gone" in attention(commands=[command])[0].what
    assert attention(commands=[replace(command, status="succeeded")]) == []
    assert attention(commands=[replace(command, finished_at=NOW - dt.timedelta(hours=3))]) == []


def test_a_dead_control_plane_is_first_and_says_how_to_start_it():
    down = replace(UP, state="unreachable")
    assert attention(health=down)[0].what == "The control plane is unreachable"
    assert "kvdeck serve" in attention(health=down)[0].action


def test_knobs_read_with_units_and_unset_is_the_engines_default():
    assert knob_text("cap_gpu_bytes", 16 << 30) == "16.0 GiB"
    assert knob_text("cap_prefixes", 4000) == "4,000"
    assert knob_text("cap_disk_bytes", None) == "engine's default"
    assert knob_text("mode_expires_at", "2026-01-02T04:00:00+00:00") == "2026-01-02 04:00:00"


def test_only_what_differs_is_a_change_and_none_takes_a_knob_back():
    before = {"cap_prefixes": 10, "mode": "normal"}
    changes = changes_of(before, {"cap_prefixes": None, "mode": "normal", "cap_gpu_bytes": 1 << 30})
    assert changes == {"cap_prefixes": None, "cap_gpu_bytes": 1 << 30}
    assert diff_lines(before, changes) == [
        ("Prefixes", "10", "engine's default"),
        ("GPU bytes", "engine's default", "1.0 GiB"),
    ]


def test_an_applied_revision_may_still_be_refused_in_part():
    behind = replace(ENGINE, id="b", observed_revision=2)
    silent = replace(ENGINE, id="c", observed_revision=2, health="unreachable")
    refused = replace(ENGINE, id="d", observed={"error": "no"})
    steps = how_far([ENGINE, behind, silent, refused], 3, None)
    assert [step.state for step in steps] == ["applied", "waiting", "silent", "refused"]
    assert [step.engine for step in how_far([ENGINE, behind], 3, "b")] == ["b"]


def test_outcomes_read_as_sentences():
    outcome = {"evicted": 12, "bytes": 3 << 30, "refused": [{"prefix_id": "a", "reason": "leased"}]}
    assert outcome_text("evict", outcome) == "evicted 12, 3.0 GiB, 1 prefix refused (leased)"
    assert outcome_text("warm", {"warmed": 2, "bytes": 0, "failed": 1}) == "warmed 2, 1 failed"
    assert outcome_text("scrub", {"objects": 1200, "damaged": 1}) == "objects 1,200, damaged 1"
    assert outcome_text("pin", {}) == "no details of this pin"


def test_progress_is_unknown_rather_than_zero_when_an_engine_says_nothing():
    assert progress_ratio({}) is None
    assert progress_ratio({"done": 1, "total": 4}) == 0.25
    assert progress_ratio({"done": 9, "total": 4}) == 1.0
