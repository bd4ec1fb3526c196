"""Desired state: limits with their reasons, the overlay of fleet and engine, holds on the mode."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from controlplane.errors import BadRequest
from controlplane.steering.desired import diff, mode_is_held, overlay, without_expired_mode
from controlplane.steering.limits import DEFAULT_MODE_HOLD, MODES, check_changes

NOW = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
SOON = (NOW + dt.timedelta(minutes=5)).isoformat()
PAST = (NOW - dt.timedelta(minutes=5)).isoformat()


def check(**changes: Any) -> dict[str, Any]:
    return check_changes(changes, page_tokens=64, now=NOW)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "nothing to change"),
        ({"cap_prefixs": 5}, "cap_prefixs is no knob"),
        ({"cap_prefixes": 0}, "1 to 100000000 prefixes, got 0: to stop reuse"),
        ({"cap_prefixes": True}, "whole number"),
        ({"cap_prefixes": 1.5}, "whole number"),
        ({"cap_gpu_bytes": 1000}, "1 MiB"),
        ({"cap_host_bytes": -1}, "switches the tier off"),
        ({"cap_disk_bytes": 1 << 60}, "cap_disk_bytes must be"),
        ({"mode": "slow"}, "one of normal, no_disk"),
        ({"codec": "../x"}, "codec's short name"),
        ({"checkpoint_every_tokens": 100}, "multiple of the page of 64 tokens, got 100"),
        ({"checkpoint_budget_ratio": 1.0}, "share between 0 and 1"),
        ({"checkpoint_budget_ratio": True}, "share between 0 and 1"),
        ({"pin_budget_ratio": 1.5}, "share above 0 and at most 1"),
        ({"pin_budget_ratio": True}, "share above 0 and at most 1"),
        ({"eviction": "fifo"}, "one of lru, cost_aware"),
        ({"admission_rule": "first_pages:0"}, "first_pages:N with N from 1"),
        ({"admission_rule": ["all"]}, "must be all, second_touch"),
        ({"namespace_caps": {}}, "or be null for none"),
        ({"namespace_caps": [1]}, "must map namespaces"),
        ({"namespace_caps": {"": {"max_prefixes": 1}}}, "1 to 128 printable"),
        ({"namespace_caps": {"a": {}}}, "of namespace 'a' must set some of guaranteed_bytes"),
        ({"namespace_caps": {"a": {"colour": 1}}}, "must set some of"),
        ({"namespace_caps": {"a": {"max_bytes": 5}}}, "max_bytes must be 1048576 to"),
        ({"namespace_caps": {"a": {"max_bytes": "1G"}}}, "whole number of bytes"),
        ({"namespace_caps": {"a": {"guaranteed_bytes": 3 << 20, "max_bytes": 2 << 20}}}, "more than its max_bytes"),
        ({"namespace_caps": {str(i): {"max_prefixes": 1} for i in range(257)}}, "at most 256 namespaces"),
        ({"mode_expires_at": SOON}, "needs the mode"),
        ({"mode": "bypass", "mode_expires_at": "tomorrow"}, "RFC 3339"),
        ({"mode": "bypass", "mode_expires_at": "2026-01-01T12:05:00"}, "time zone"),
        ({"mode": "bypass", "mode_expires_at": PAST}, "next 7 days"),
        ({"mode": "bypass", "mode_expires_at": "2027-01-01T00:00:00+00:00"}, "next 7 days"),
    ],
)
def test_a_change_outside_its_limits_says_which_and_why(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRequest, match="Nothing was changed") as refused:
        check(**changes)
    assert said in str(refused.value)


def test_every_problem_is_named_at_once() -> None:
    with pytest.raises(BadRequest) as refused:
        check(cap_prefixes=0, mode="slow")
    assert "cap_prefixes" in str(refused.value)
    assert "mode" in str(refused.value)


def test_caps_by_namespace_and_rules_are_knobs() -> None:
    caps = {"tenant-a": {"guaranteed_bytes": 1 << 20, "max_bytes": 1 << 30}, "b": {"max_prefixes": 5}}
    wanted = {"namespace_caps": caps, "admission_rule": "first_pages:8", "eviction": "cost_aware"}
    assert check(**wanted) == wanted
    assert check(admission_rule="second_touch", checkpoint_budget_ratio=0.4)["checkpoint_budget_ratio"] == 0.4


def test_a_null_removes_any_knob() -> None:
    assert check(cap_prefixes=None, codec=None) == {"cap_prefixes": None, "codec": None}


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "normal"])
def test_a_persons_degraded_mode_always_gets_an_end(mode: str) -> None:
    assert check(mode=mode)["mode_expires_at"] == (NOW + DEFAULT_MODE_HOLD).isoformat()


def test_a_policys_mode_has_no_end() -> None:
    changes = check_changes({"mode": "no_disk"}, page_tokens=64, now=NOW, hold_mode=False)
    assert changes == {"mode": "no_disk", "mode_expires_at": None}


def test_normal_needs_no_end() -> None:
    assert check(mode="normal")["mode_expires_at"] is None


def test_the_engines_own_document_lies_over_the_fleets() -> None:
    fleet = {"cap_prefixes": 10, "codec": "int8"}
    assert overlay(fleet, {"cap_prefixes": 5}, NOW) == {"cap_prefixes": 5, "codec": "int8"}


def test_a_persons_hold_on_the_fleet_outranks_a_policys_mode_on_an_engine() -> None:
    fleet = {"mode": "bypass", "mode_expires_at": SOON}
    assert overlay(fleet, {"mode": "no_disk"}, NOW) == fleet


def test_a_hold_on_the_engine_outranks_one_on_the_fleet() -> None:
    own = {"mode": "normal", "mode_expires_at": SOON}
    assert overlay({"mode": "bypass", "mode_expires_at": SOON}, own, NOW) == own


def test_an_engines_mode_never_takes_the_end_of_the_fleets() -> None:
    fleet = {"mode": "bypass", "mode_expires_at": PAST}
    assert overlay(fleet, {"mode": "no_disk"}, NOW) == {"mode": "no_disk"}


def test_a_hold_that_has_passed_counts_as_not_set() -> None:
    document = {"mode": "bypass", "mode_expires_at": PAST, "cap_prefixes": 3}
    assert without_expired_mode(document, NOW) == {"cap_prefixes": 3}
    assert not mode_is_held(document, NOW)


def test_a_mode_without_an_end_is_not_held_by_a_person() -> None:
    assert not mode_is_held({"mode": "no_disk"}, NOW)
    assert mode_is_held({"mode": "normal", "mode_expires_at": SOON}, NOW)


def test_diff_names_only_what_differs() -> None:
    assert diff({"a": 1, "b": 2}, {"b": 3, "c": 4}) == {"a": [1, None], "b": [2, 3], "c": [None, 4]}
