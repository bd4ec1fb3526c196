"""Settings come from KVDECK_* alone, and a bad one names itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.errors import SettingsError
from controlplane.settings import Settings


def test_defaults_keep_to_this_machine(tmp_path):
    settings = Settings.from_environment({"KVDECK_DATA_DIR": str(tmp_path)})
    assert (settings.host, settings.api_port, settings.dashboard_port) == ("127.0.0.1", 8410, 8411)
    assert settings.database_url == f"sqlite:///{tmp_path}/kvdeck.sqlite3"
    assert settings.is_loopback
    assert settings.api_url == "http://127.0.0.1:8410"


def test_every_field_can_be_set():
    environ = {
        "KVDECK_DATABASE_URL": "postgresql://u:p@db/kvdeck",
        "KVDECK_HOST": "0.0.0.0",
        "KVDECK_API_PORT": "9000",
        "KVDECK_TRACE_URL": "https://traces.example/t/{trace_id}",
        "KVDECK_ENGINE_STALE_SECONDS": "5",
        "XDG_DATA_HOME": "/data",
    }
    settings = Settings.from_environment(environ)
    assert settings.database_url == "postgresql://u:p@db/kvdeck"
    assert settings.data_dir == Path("/data/kvdeck")
    assert settings.engine_stale_seconds == 5
    assert not settings.is_loopback
    assert settings.api_url == "http://127.0.0.1:9000"


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("KVDECK_API_PORT", "70000", "1 to 65535"),
        ("KVDECK_API_PORT", "٣", "1 to 65535"),
        ("KVDECK_DATABASE_URL", "mysql://h/d", "sqlite:///FILE or postgresql://"),
        ("KVDECK_DATABASE_URL", "sqlite://", "sqlite:///FILE"),
        ("KVDECK_DATABASE_URL", "what", "sqlite:///FILE"),
        ("KVDECK_HOST", " ", "not empty"),
        ("KVDECK_KEEP_HISTORY_DAYS", "0", "from 1"),
        ("KVDECK_TRACE_URL", "https://traces.example", "{trace_id}"),
        ("KVDECK_ENGINE_UNREACHABLE_SECONDS", "5", "more than KVDECK_ENGINE_STALE_SECONDS"),
        ("KVDECK_DASHBOARD_PORT", "8410", "other than KVDECK_API_PORT"),
    ],
)
def test_a_bad_value_names_the_variable_the_value_and_what_is_allowed(variable, value, allowed):
    with pytest.raises(SettingsError) as caught:
        Settings.from_environment({variable: value})
    assert variable in str(caught.value)
    assert repr(value) in str(caught.value)
    assert allowed in str(caught.value)


def test_a_password_is_not_shown_in_the_refusal():
    with pytest.raises(SettingsError) as caught:
        Settings.from_environment({"KVDECK_DATABASE_URL": "mysql://u:hunter2@h/d"})
    assert "hunter2" not in str(caught.value)
