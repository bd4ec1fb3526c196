"""What the dashboard keeps of its reads: one look for all who ask the same, and not a word while it is being set up."""

import subprocess
import sys

import pytest

from dashboard.caching import RangeCache, kept

# Streamlit's caches outside a running app say so, once a call.
pytestmark = pytest.mark.filterwarnings("ignore:.*ScriptRunContext.*")


def test_importing_all_of_the_dashboard_says_nothing():
    done = subprocess.run(
        [sys.executable, "-c", "import dashboard.app"], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout + done.stderr == ""


def test_who_asks_the_same_shares_one_read_until_it_is_forgotten():
    asked = []

    @kept(60)
    def read(role: str) -> int:
        asked.append(role)
        return len(asked)

    assert [read("viewer"), read("viewer"), read("admin"), read("viewer")] == [1, 1, 2, 1]
    read.clear()
    assert read("viewer") == 3
    assert read.__wrapped__("viewer") == 4


def test_a_range_is_kept_apart_from_other_ranges():
    asked = []

    @RangeCache
    def read(role: str, minutes: int) -> int:
        asked.append(minutes)
        return minutes

    assert [read("viewer", minutes) for minutes in (15, 1440, 15, 1440)] == [15, 1440, 15, 1440]
    assert asked == [15, 1440]
    read.clear()
    read("viewer", 1440)
    assert asked == [15, 1440, 1440]
