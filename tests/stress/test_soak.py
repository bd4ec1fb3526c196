"""A short soak in the suite; `make stress` runs the long one, which also watches memory."""

from __future__ import annotations

import pytest
from soak import PLAN, Soak

from engine.integrations.synthetic import use_one_thread


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", [1])
def test_traffic_commands_caps_restarts_and_faults_at_once_leave_nothing_wrong_and_nothing_over(
    tmp_path, patched, seed
):
    use_one_thread()
    report = Soak(tmp_path, seed=seed).run(3000, pause_every=500, restart_every=3)
    assert report.wrong == []
    assert report.violations == []
    assert report.requests == 3000
    assert report.hits > 1000
    assert report.restarts == 2
    assert report.adopted > 0
    assert len(report.fired) > len(PLAN) // 4


@pytest.fixture
def patched(monkeypatch):
    from engine_support import poison_freed_slots

    poison_freed_slots(monkeypatch)
