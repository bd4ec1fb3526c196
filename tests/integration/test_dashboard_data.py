"""What the dashboard reads from a seeded store, and that it cannot write to it."""

import datetime as dt
import inspect

import pytest
from sqlalchemy import text
from test_dashboard_seed import seed
from test_dashboard_seed_series import GONE, LIVE, STALE, prefix_id

from controlplane.errors import ControlPlaneError
from dashboard import control, data
from dashboard.charts import hits, recovery

ENGINE_LIMITS = {"KVDECK_ENGINE_STALE_SECONDS": "600", "KVDECK_ENGINE_UNREACHABLE_SECONDS": "3600"}
# Streamlit's caches outside a running app say so, once a call.
pytestmark = pytest.mark.filterwarnings("ignore:.*ScriptRunContext.*")


@pytest.fixture
def seeded(tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path / 'kvdeck.sqlite3'}"
    seed(url, dt.datetime.now(dt.UTC))
    for name, value in {**ENGINE_LIMITS, "KVDECK_DATABASE_URL": url, "KVDECK_API_PORT": "9"}.items():
        monkeypatch.setenv(name, value)
    control.settings.cache_clear()
    data.store.clear()
    data.clear()
    yield
    data.store().dispose()
    data.store.clear()
    data.clear()
    control.settings.cache_clear()


def test_health_tells_live_stale_and_unreachable_apart(seeded):
    assert {engine.view.id: engine.health for engine in data.engines("viewer")} == {
        LIVE: "live",
        STALE: "stale",
        GONE: "unreachable",
    }


def test_frames_of_a_range_hold_its_minutes_and_its_namespace_only(seeded):
    shown = data.charts("viewer", LIVE, "tenant-a", 15)
    assert set(shown.requests["namespace"]) == {"tenant-a"}
    assert shown.requests["minute"].nunique() in (15, 16)
    assert set(shown.hits["kind"]) == {
        "compressed_kv",
        "uncompressed_tail",
        "swa_window",
        "indexer_state",
        "disk_prefix",
    }
    assert {"desired", "policy", "alert", "quarantine"} & set(shown.marks["kind"])


def test_the_numbers_of_charts_and_overview_agree(seeded):
    shown, seen = data.charts("viewer", None, None, 60), data.overview("viewer", None, 60)
    assert shown.requests["usable_tokens"].sum() == seen.usable_tokens
    assert recovery.failure_rate(shown.recoveries) == pytest.approx(seen.recovery_failures.ratio)
    lost = seen.lcp_tokens - seen.usable_tokens
    assert hits.gap_by_reason(shown.requests)["tokens"].sum() == lost


def test_the_threshold_is_that_of_the_policy_that_runs(seeded):
    assert data.degrade_threshold("viewer") == 0.2


def test_one_prefix_has_its_life(seeded):
    detail = data.prefix("viewer", LIVE, prefix_id(7))
    assert [row.state_to for row in detail.versions][:2] == ["QUARANTINED", "FULL_RESTORE"]
    assert detail.failures


def test_the_dashboards_store_refuses_to_write(seeded):
    with pytest.raises(ControlPlaneError, match="readonly"), data.store().write() as session:
        session.execute(text("DELETE FROM audit"))


def test_a_control_plane_that_does_not_answer_is_unreachable_and_keeps_people_signed_in(seeded):
    assert data.control_plane().state == "unreachable"
    assert data.token_still_holds("kvd_x", "viewer")


def test_every_cached_read_has_the_role_in_its_key():
    for name in ("engines", "charts", "overview", "namespaces", "prefixes", "prefix", "damaged", "validations"):
        assert next(iter(inspect.signature(getattr(data, name)).parameters)) == "role", name
    for name in ("revisions", "effective", "commands", "command", "policies", "alerts", "audit"):
        assert next(iter(inspect.signature(getattr(data, name)).parameters)) == "role", name
