"""What only reads and steers starts without torch: it takes seconds to load and hundreds of megabytes to hold."""

import subprocess
import sys

import pytest

import engine


@pytest.mark.parametrize(
    "module",
    ["controlplane.api.app", "controlplane.steering.scheduler", "controlplane.cli.main", "dashboard.data"],
)
def test_the_control_plane_the_command_line_and_the_dashboard_do_not_load_torch(module: str) -> None:
    asked = f"import sys, {module}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


def test_every_name_of_the_engine_is_found_where_it_is_said_to_be() -> None:
    assert {name: getattr(engine, name) for name in engine.__all__}
    assert set(engine.__all__) == set(engine._HOMES)


def test_a_name_the_engine_does_not_have_is_said() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Absent'"):
        engine.Absent  # noqa: B018
