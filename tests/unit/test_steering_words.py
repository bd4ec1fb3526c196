"""What policies are set to, saw and did, as sentences with units."""

from dataclasses import asdict

import pytest

from controlplane.steering import words
from controlplane.steering.alerts.defaults import DEFAULT_RULES
from controlplane.steering.parameters import knobs_of
from controlplane.steering.policies.kinds import KINDS

GIB = 1 << 30


def said(kind: str, name: str, value: object) -> str:
    return words.parameter_text(name, knobs_of(KINDS[kind])[name], value)


@pytest.mark.parametrize(
    ("kind", "name", "value", "text"),
    [
        ("warmup", "max_bytes_per_hour", 17_179_869_184, "16 GiB"),
        ("scrub", "max_bytes", 256 << 20, "256 MiB"),
        ("scrub", "max_bytes", 1_000_000_000, "953.7 MiB (1,000,000,000 bytes)"),
        ("warmup", "labels", [], "none"),
        ("warmup", "labels", ("tier=gold", "vip"), "tier=gold, vip"),
        ("warmup", "pinned_first", True, "yes"),
        ("warmup", "on_engine_start", False, "no"),
        ("warmup", "most_prefixes", 5000, "5,000"),
        ("degrade", "minimum_samples", 20, "20 recoveries"),
        ("degrade", "minimum_samples", 1, "1 recovery"),
        ("degrade", "step_up_below", 0.05, "5%"),
        ("degrade", "longest_hold_seconds", 5400, "1 h 30 min"),
        ("degrade", "window_seconds", 61, "1 min 1 s"),
        ("degrade", "quiet_hold_seconds", 0, "0 s"),
        ("degrade", "lowest_mode", "bypass", "bypass"),
        ("compact", "fragmentation_above", 0.4, "40%"),
    ],
)
def test_a_parameter_is_said_in_the_unit_of_its_knob(kind, name, value, text):
    assert said(kind, name, value) == text


def test_every_kinds_defaults_are_said_without_a_raw_value():
    for kind, rule in KINDS.items():
        text = words.parameters_text(rule, asdict(rule()))
        for raw in ("True", "False", "[", "{", "None", "_seconds", str(1 << 30), str(16 << 30)):
            assert raw not in text, f"{kind}: {text}"


def test_what_a_knob_allows_has_its_unit_too():
    knobs = {name: knob for rule in KINDS.values() for name, knob in knobs_of(rule).items()}
    assert words.allowed_text(knobs["max_bytes"]) == "1 B to 1 PiB"
    assert words.allowed_text(knobs["window_seconds"]) == "1 s to 1 d"
    assert words.allowed_text(knobs["step_up_below"]) == "0% to 100%"
    assert words.allowed_text(knobs["pinned_first"]) == "true or false"


def test_a_field_says_in_which_unit_a_bare_number_is_typed():
    labels = {name: words.field_label(name, knob) for rule in KINDS.values() for name, knob in knobs_of(rule).items()}
    assert labels["window_seconds"] == "window (seconds)"
    assert labels["step_up_below"] == "step up below (%)"
    assert labels["minimum_samples"] == "minimum samples (recoveries)"
    assert labels["most_prefixes"] == "most prefixes"
    assert labels["max_bytes"] == "max bytes"


def test_what_was_seen_is_said_by_the_names_of_its_values():
    seen = {
        "mode": "normal",
        "failure_rate": 0.2387,
        "bytes_in_last_hour": 3 * GIB,
        "since_last_step_seconds": 660.0,
        "samples": 31_000,
        "idle_seconds": None,
        "waits": False,
        "samples_since": "2026-01-02T03:04:05.678901+00:00",
        "fragmentation": 0.4,
    }
    assert words.values_text(seen) == (
        "mode normal, failure rate 23.9%, bytes in last hour 3.0 GiB, since last step 11 min, samples 31,000, "
        "idle none, waits no, samples since 2026-01-02 03:04:05 UTC, fragmentation 40%"
    )


def test_what_was_proposed_done_and_changed_is_said_without_json():
    mode = {"propose": "SetMode", "engine_id": "gpu-a", "mode": "no_disk", "reason": "bad"}
    ids = [f"{number:032x}" for number in range(6)]
    warm = {"propose": "IssueCommand", "kind": "warm", "arguments": {"prefix_ids": ids, "max_bytes": GIB}}
    assert words.proposals_text([mode]) == "mode no_disk"
    assert words.proposals_text([warm]).startswith("warm: prefix ids 6: 00000000…, ")
    assert words.proposals_text([warm]).endswith("max bytes 1.0 GiB")
    assert words.proposals_text([]) == "nothing"
    assert words.deeds_text({"revisions": [3]}) == "revision 3"
    assert words.deeds_text({"commands": ["0c7d4a52-5a1c-4a53"]}) == "command 0c7d4a52…"
    assert words.deeds_text({"deleted_rows": {"metric_points": 1200}}) == "1,200 rows of metric points deleted"
    assert words.deeds_text({}) == "nothing"
    assert words.changes_text({"revisions": {"3": {"status": "applied"}}}) == "revision 3 applied"
    changed = {"commands": {"0c7d": {"kind": "warm", "status": "succeeded", "bytes": 2 * GIB}}}
    assert words.changes_text(changed) == "warm succeeded (bytes 2.0 GiB)"


def test_when_a_policy_runs_is_said_exactly():
    assert words.when_text(30, None, "UTC") == "every 30 s"
    assert words.when_text(90_000, None, "UTC") == "every 1 d 1 h"
    assert words.when_text(None, "30 6 * * mon-fri", "Europe/Berlin") == "30 6 * * mon-fri (Europe/Berlin)"
    assert words.when_text(None, None, "UTC") == "on events"


@pytest.mark.parametrize(
    ("rule", "value", "text"),
    [
        ("recovery_failure_rate", 0.2412, "Recoveries fail: 24.1% of the recoveries failed or were late (limit 20%)"),
        ("engine_silent", 7330.0, "Engine is silent: 2.0 h since its last word (limit 15 s)"),
        ("history_gaps_open", 12_345, "History has gaps: 12,345 gaps that no snapshot has closed (limit 0)"),
        ("hit_rate_drop", 0.18, "The hit rate fell: 18% of all tokens below its own past (limit 15%)"),
        ("fragmentation_high", 0.625, "Memory is fragmented: 62.5% of the bytes of used slabs are free (limit 50%)"),
    ],
)
def test_an_alert_says_how_much_in_its_unit_and_above_what_it_is_one(rule, value, text):
    assert next(one for one in DEFAULT_RULES if one.name == rule).summary(value) == text
