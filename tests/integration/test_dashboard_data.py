"""What the dashboard reads from a seeded store, and that it cannot write to it."""

import datetime as dt
import inspect

import pytest
from dashboard_seed import seed
from dashboard_seed_series import GONE, LIVE, STALE, prefix_id
from sqlalchemy import text

from controlplane.errors import ControlPlaneError
from controlplane.store.queries_families import families
from dashboard import control, data
from dashboard.charts import recovery
from dashboard.charts.losses import FOUND_NOT_USABLE
from dashboard.session import Filters

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
    data.store.cache_clear()
    data.clear()
    yield
    data.store().dispose()
    data.store.cache_clear()
    data.clear()
    control.settings.cache_clear()


def test_health_tells_live_stale_and_unreachable_apart(seeded):
    assert {engine.view.id: engine.health for engine in data.engines("viewer")} == {
        LIVE: "live",
        STALE: "stale",
        GONE: "unreachable",
    }


def test_frames_of_a_range_hold_its_minutes_and_its_namespace_only(seeded):
    shown, all_of_it = (data.charts("viewer", LIVE, name, 15) for name in ("tenant-a", None))
    ratio = shown.requests["prompt_tokens"].sum() / all_of_it.requests["prompt_tokens"].sum()
    assert 0.6 < ratio < 0.8
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
    shown, seen = data.charts("viewer", None, None, 60), data.overview("viewer", None, None, 60)
    assert shown.requests["usable_tokens"].sum() == seen.usable_tokens
    assert recovery.failure_rate(shown.recoveries) == pytest.approx(seen.recovery_failures.ratio)
    assert shown.losses["tokens"].sum() == seen.prompt_tokens - seen.usable_tokens
    why = data.why_miss("viewer", None, None, 60)
    assert sum(row.tokens for row in why.rows) == shown.losses["tokens"].sum()
    found = shown.losses[shown.losses["cause"].isin(FOUND_NOT_USABLE)]
    assert found["tokens"].sum() >= seen.lcp_tokens - seen.usable_tokens > 0


def test_the_numbers_of_a_namespace_are_its_own_and_those_that_are_not_say_so(seeded):
    whole = data.overview("viewer", None, None, 60)
    parts = [data.overview("viewer", None, name, 60) for name in data.namespaces("viewer")]
    assert len(parts) > 1
    for name in ("requests", "prompt_tokens", "usable_tokens"):
        assert sum(getattr(part, name) for part in parts) == getattr(whole, name) > 0
    held = [sum(part.holdings.bytes_by_tier.values()) for part in parts]
    assert 0 < max(held) < sum(whole.holdings.bytes_by_tier.values())
    assert not whole.of_all_namespaces
    assert all("recovery_failures" in part.of_all_namespaces for part in parts)
    assert {part.recovery_failures for part in parts} == {whole.recovery_failures}


def test_charts_of_unchanged_data_have_one_version_and_changed_data_another(seeded):
    first = data.charts("viewer", LIVE, None, 60)
    data.charts.clear()
    again, other = data.charts("viewer", LIVE, None, 60), data.charts("viewer", LIVE, "tenant-a", 60)
    assert first.as_of < again.as_of
    assert first.version == again.version != other.version


@pytest.mark.parametrize(("minutes", "step"), [(15, 1), (60, 1), (360, 5), (1440, 15)])
def test_a_long_range_has_wider_slots_and_the_same_sums(seeded, minutes, step):
    shown = data.charts("viewer", None, None, minutes)
    assert shown.step_minutes == step
    assert {at.minute % step for at in shown.requests["minute"]} == {0}
    assert shown.requests["requests"].sum() == data.overview("viewer", None, None, minutes).requests


def test_a_group_is_read_as_its_engines(seeded):
    chat = data.scope("viewer", Filters(group="chat"))
    assert chat == (LIVE, STALE)
    assert [engine.view.id for engine in data.engines_in("viewer", Filters(group="batch"))] == [GONE]
    assert data.overview("viewer", chat, None, 60).requests == data.overview("viewer", LIVE, None, 60).requests > 0
    assert data.overview("viewer", (GONE,), None, 60).requests == 0


def test_what_needs_attention_is_what_the_doctor_finds(seeded):
    found = {(one.rule, one.engine_id) for one in data.findings("viewer", Filters())}
    assert {("engine_silent", STALE), ("engine_silent", GONE), ("breaker_open", STALE)} <= found
    assert all(one.engine_id in (GONE, None) for one in data.findings("viewer", Filters(group="batch")))


def test_families_and_the_rest_are_all_there_is(seeded):
    whole = data.prefixes("viewer", None, None, (), "", "bytes", 1000)
    with data.store().read() as session:
        few = families(session, most=5)
    assert len(few.shown) >= 5
    assert sum(rest.prefixes for rest in few.rest) + len(few.shown) == whole.total
    held = sum(row.gpu_bytes + row.host_bytes + row.disk_bytes for row in whole.rows)
    assert sum(node.held_bytes for node in few.shown) + sum(rest.held_bytes for rest in few.rest) == held
    ids = {(node.engine_id, node.prefix_id) for node in few.shown}
    assert all(node.parent_id is None or (node.engine_id, node.parent_id) in ids for node in few.shown)


def test_a_search_with_an_equals_sign_is_for_a_label(seeded):
    found = data.prefixes("viewer", None, None, (), "app=support-bot", "bytes", 50)
    assert {row.prefix_id for row in found.rows} == {prefix_id(number) for number in (1, 3, 5)}
    assert data.prefixes("viewer", None, None, (), "app=other", "bytes", 50).total == 0


def test_prefixes_that_hold_bytes_in_a_tier_are_counted_before_the_page_is_cut(seeded):
    found = data.prefixes("viewer", None, None, (), "", "bytes", 1, "disk")
    assert found.total > 1
    assert found.rows[0].disk_bytes > 0


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


def test_every_read_for_a_page_has_the_role_in_its_key():
    of_nobody = {"store", "unreadable", "control_plane", "clear", "token_still_holds"}
    reads = {name: value for name, value in vars(data).items() if callable(value) and not isinstance(value, type)}
    mine = {name: value for name, value in reads.items() if getattr(value, "__module__", "").startswith(data.__name__)}
    assert len(mine) > 15
    for name, read in mine.items():
        if name not in of_nobody:
            assert next(iter(inspect.signature(read).parameters)) == "role", name
