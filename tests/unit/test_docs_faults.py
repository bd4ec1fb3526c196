"""The page of faults promises nothing that is not shown: its tests, reasons, metrics and alerts exist."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from controlplane.steering.alerts.defaults import DEFAULT_RULE_NAMES
from engine.consistency.state import State
from engine.memory.faults import POSSIBLE, At, Fault, What
from engine.schedule.plan import GAP_REASONS
from engine.schedule.publish import REFUSALS
from engine.schedule.validation import REASONS

ROOT = Path(__file__).parents[2]
OF_COMMANDS = {"no_room_below"}  # an offload's


@pytest.fixture(scope="module")
def faults() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_faults", ROOT / "docs" / "faults.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_each_test_that_is_named_exists(faults: ModuleType) -> None:
    for row in faults.PROMISES:
        assert row.tests, row.fault
        for named in row.tests:
            path, test = named.split("::")
            tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
            assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, named


def test_each_state_reason_metric_and_alert_that_is_named_exists(faults: ModuleType) -> None:
    told = (ROOT / "docs" / "reference" / "telemetry.md").read_text(encoding="utf-8")
    reasons = REASONS.keys() | GAP_REASONS.keys() | REFUSALS.keys() | OF_COMMANDS
    for row in faults.PROMISES:
        assert not row.state or row.state in list(State), row.fault
        assert not row.reason or row.reason in reasons, row.reason
        assert not row.metric or f"| `{row.metric}` |" in told, row.metric
        assert not row.alert or row.alert in DEFAULT_RULE_NAMES, row.alert


def test_every_kind_of_fault_that_can_be_injected_is_promised_something(faults: ModuleType) -> None:
    named = [injected.split("@") for row in faults.PROMISES for injected in row.injected]
    for what, at in named:
        Fault(what=What(what), at=At(at))
    assert {what for what, _ in named} == {str(what) for what in What}
    places = {at for what, at in named} | {"host_read"}
    assert places == {str(at) for at in At}
    assert POSSIBLE.keys() == set(What)
