"""`kvdeck policy show`: a value stands as `--set` takes it, and with its unit where that says more."""

from __future__ import annotations

import pytest

from controlplane.cli.policy import value_told
from controlplane.steering.parameters import knobs_of
from controlplane.steering.policies.degrade import DegradeRule
from controlplane.steering.policies.warmup import WarmupRule


@pytest.mark.parametrize(
    ("rule", "name", "value", "told"),
    [
        (WarmupRule, "max_bytes", 17179869184, "17179869184 (16 GiB)"),
        (WarmupRule, "most_prefixes", 64, "64"),
        (WarmupRule, "labels", ["tier=gold"], '["tier=gold"]'),
        (WarmupRule, "pinned_first", True, "true"),
        (DegradeRule, "step_down_above", 0.2, "0.2 (20%)"),
        (DegradeRule, "longest_hold_seconds", 3600, "3600 (1 h)"),
        (DegradeRule, "of_a_later_release", None, "-"),
    ],
)
def test_a_value_can_be_typed_and_read(rule, name, value, told):
    assert value_told(name, knobs_of(rule).get(name), value) == told
