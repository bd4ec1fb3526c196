"""The dashboard's rules without a screen: what needs attention, how desired state reads, how outcomes read."""

import datetime as dt
from dataclasses import replace

import pytest

from controlplane.insight.doctor import RULES
from controlplane.insight.doctor_rule import Finding
from controlplane.steering.alerts.defaults import DEFAULT_RULES
from controlplane.store.queries import AlertView, EngineView
from dashboard import runbook
from dashboard.attention import PAGE_OF, SAME_AS, needs_attention
from dashboard.components.follow import outcome_text, progress_ratio
from dashboard.desired import (
    LABELS,
    Whose,
    changes_of,
    diff_lines,
    form_text,
    how_far,
    knob_text,
    namespace_rows,
    read_knob,
    read_namespaces,
    word_to_type,
)
from dashboard.readings import ControlPlaneHealth, EngineNow

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


def finding(rule: str, severity: str = "warning", engine: str | None = "gpu-a", **more) -> Finding:
    known = {"summary": f"{rule} is so", "evidence": {}, "since": None, "advice": "`kvdeck status`."}
    return Finding(rule=rule, severity=severity, engine_id=engine, **{**known, **more})


ALERT = AlertView(
    id=1,
    rule="recovery_failure_rate",
    engine_id="gpu-a",
    state="firing",
    severity="critical",
    summary="24% failed",
    runbook="docs/howto/runbook.md#recovery_failure_rate",
    value=0.24,
    threshold=0.2,
    since=NOW - dt.timedelta(minutes=5),
    fired_at=NOW,
    resolved_at=None,
    acknowledged_by=None,
    acknowledged_at=None,
    acknowledged_reason=None,
    silence_id=None,
    notified_at=None,
)


def attention(*findings: Finding, alerts=(), health=UP):
    return needs_attention(health=health, findings=findings, alerts=alerts)


def test_a_well_deck_needs_nothing():
    assert attention() == []


def test_idle_is_no_fault_and_not_the_same_as_stale():
    assert EngineNow(view=ENGINE, requests_lately=0).health == "idle"
    assert EngineNow(view=replace(ENGINE, health="stale"), requests_lately=0).health == "stale"


def test_severe_comes_before_warning_and_warning_before_notice():
    items = attention(finding("policy_paused", "notice"), finding("disk_slow"), finding("wrong_bytes", "severe"))
    assert [item.rule for item in items] == ["wrong_bytes", "disk_slow", "policy_paused"]


def test_a_finding_says_what_helps_and_where():
    item = attention(finding("caps_too_small", summary="9 points to gain"))[0]
    assert (item.what, item.action, item.page) == ("9 points to gain", "`kvdeck status`.", "caps")


def test_an_alert_and_the_finding_of_the_same_trouble_are_one_item_with_the_best_of_both():
    items = attention(finding("restores_failing", "severe", summary="24% of 120 restores failed"), alerts=[ALERT])
    assert len(items) == 1
    assert items[0].what == "24% of 120 restores failed"
    assert items[0].since == ALERT.since
    assert items[0].action == "`kvdeck status`."
    assert items[0].runbook.endswith("#recovery_failure_rate")


def test_an_alert_of_another_engine_stays_apart():
    items = attention(finding("restores_failing", engine="gpu-b"), alerts=[ALERT])
    assert {item.engines for item in items} == {("gpu-a",), ("gpu-b",)}


def test_an_acknowledged_alert_sinks_but_stays():
    taken = replace(ALERT, acknowledged_by="someone")
    items = attention(finding("policy_paused", "notice"), finding("restores_failing", "severe"), alerts=[taken])
    assert [item.rule for item in items] == ["policy_paused", "restores_failing"]
    assert "acknowledged by someone" in items[1].what
    assert attention(alerts=[replace(ALERT, state="resolved")]) == []


def test_the_trouble_of_a_fleet_is_one_line_that_says_on_how_many():
    items = attention(*[finding("engine_silent", "severe", engine=f"gpu-{number}") for number in range(40)])
    assert len(items) == 1
    assert items[0].what.startswith("40 engines, among them gpu-0")
    assert len(items[0].engines) == 40


def test_every_rule_of_the_doctor_has_a_page_where_to_act():
    assert {rule.name for rule in RULES} <= set(PAGE_OF)


def test_every_alert_said_to_be_the_doctors_is_a_rule_on_both_sides():
    assert set(SAME_AS) <= {rule.name for rule in DEFAULT_RULES}
    assert set(SAME_AS.values()) <= {rule.name for rule in RULES}


def test_every_default_alert_has_its_section_in_the_runbook():
    for rule in DEFAULT_RULES:
        assert (runbook.section(rule.link) or "").startswith("#"), rule.name


def test_a_link_out_of_the_documents_or_to_nothing_has_no_section():
    assert runbook.section("docs/howto/runbook.md#there_is_no_such") is None
    assert runbook.section("docs/../pyproject.toml#project") is None
    assert runbook.section("docs/howto/none.md#x") is None


def test_a_dead_control_plane_is_first_and_says_how_to_start_it():
    down = replace(UP, state="unreachable")
    assert attention(health=down)[0].what == "The control plane is unreachable"
    assert "kvdeck serve" in attention(health=down)[0].action


def test_knobs_read_with_units_and_unset_is_the_engines_default():
    assert knob_text("cap_gpu_bytes", 16 << 30) == "16.0 GiB"
    assert knob_text("cap_prefixes", 4000) == "4,000"
    assert knob_text("cap_disk_bytes", None) == "engine's default"
    assert knob_text("pin_budget_ratio", 0.3) == form_text("pin_budget_ratio", 0.3) == "30%"
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
    steps = how_far([ENGINE, behind, silent, refused], 3, Whose())
    assert [step.state for step in steps] == ["applied", "waiting", "silent", "refused"]
    assert [step.engine for step in how_far([ENGINE, behind], 3, Whose(engine="b"))] == ["b"]


def test_a_revision_of_a_group_is_for_its_engines():
    one, other = replace(ENGINE, group="canary"), replace(ENGINE, id="b", group="")
    assert [step.engine for step in how_far([one, other], 3, Whose(group="canary"))] == [one.id]


def test_what_was_typed_becomes_a_value_and_what_was_not_touched_stays_exact():
    exact = (16 << 30) + 5
    assert read_knob("cap_gpu_bytes", form_text("cap_gpu_bytes", exact), exact) == exact
    assert read_knob("cap_prefixes", " 5,000 ", None) == 5000
    assert read_knob("pin_budget_ratio", "10%", None) == read_knob("pin_budget_ratio", "0.1", 0.2) == 0.1
    assert read_knob("admission_rule", "first_pages:4", None) == "first_pages:4"
    assert read_knob("codec", "", "int8") is None
    for name, text in (("cap_prefixes", "many"), ("cap_host_bytes", "12 apples"), ("checkpoint_budget_ratio", "half")):
        with pytest.raises(ValueError, match=LABELS[name]):
            read_knob(name, text, None)


def test_caps_by_namespace_are_read_as_rows():
    caps = {"tenant-a": {"max_bytes": (3 << 30) + 7, "max_prefixes": 1200}}
    rows = namespace_rows(caps)
    assert rows == [{"Namespace": "tenant-a", "Guaranteed": "", "At most": "3.0 GiB", "Prefixes at most": "1,200"}]
    assert read_namespaces(rows, caps) == caps
    assert read_namespaces([*rows, {"Namespace": "b", "Guaranteed": "1 GiB"}, {}], caps)["b"] == {
        "guaranteed_bytes": 1 << 30
    }
    assert read_namespaces([], caps) is None
    for wrong in ([*rows, *rows], [{"Namespace": "a"}], [{"At most": "1 GiB"}], [{"Namespace": "a", "At most": "x"}]):
        with pytest.raises(ValueError, match="Namespaces"):
            read_namespaces(wrong, None)


def test_dangerous_changes_need_a_typed_word():
    assert word_to_type({"mode": "bypass"}, 0) == "bypass"
    assert word_to_type({"mode": "no_disk"}, 3) is None
    assert word_to_type({"cap_prefixes": 1}, 100) == "evict"


def test_outcomes_read_as_sentences():
    outcome = {"evicted": 12, "bytes": 3 << 30, "refused": [{"prefix_id": "a", "reason": "leased"}]}
    assert outcome_text("evict", outcome) == "evicted 12, 3.0 GiB, 1 prefix refused (leased)"
    assert outcome_text("warm", {"warmed": 2, "bytes": 0, "failed": 1}) == "warmed 2, 1 failed"
    told = {"inspected": 1, "state": "FULL", "version": 3, "leases": 1, "life": 10**18, "objects": []}
    assert outcome_text("inspect", told) == "FULL, version 3, 1 lease"
    assert outcome_text("scrub", {"objects": 1200, "damaged": 1}) == "objects 1,200, damaged 1"
    assert outcome_text("pin", {}) == "no details of this pin"


def test_progress_is_unknown_rather_than_zero_when_an_engine_says_nothing():
    assert progress_ratio({}) is None
    assert progress_ratio({"done": 1, "total": 4}) == 0.25
    assert progress_ratio({"done": 9, "total": 4}) == 1.0
