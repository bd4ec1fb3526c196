"""The command line against a running deck, and without one: what it prints, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_support import Up, free_port, kvdeck

READS = (["status"], ["prefixes"], ["cap"], ["policy", "list"], ["alert", "list"], ["token", "list"])


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with Up(tmp_path_factory.mktemp("deck") / "var", "--no-engine", "--no-dashboard") as running:
        yield running


def test_help_names_every_verb() -> None:
    said = kvdeck("--help").stdout
    for verb in ("up", "serve", "dashboard", "migrate", "status", "prefixes", "explain", "evict", "warm", "pin"):
        assert f" {verb} " in said
    for verb in ("unpin", "compact", "scrub", "cap", "mode", "policy", "alert", "token", "id", "engine", "replay"):
        assert f" {verb} " in said


def test_the_command_line_does_not_load_torch() -> None:
    code = "import sys, controlplane.cli.main; print({'torch', 'streamlit', 'pandas'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("read", READS, ids=" ".join)
def test_every_read_speaks_json_and_prose(up: Up, read: list[str]) -> None:
    as_json, as_prose = up.kvdeck(*read, "--json"), up.kvdeck(*read)
    assert (as_json.returncode, as_prose.returncode) == (0, 0), as_json.stderr + as_prose.stderr
    json.loads(as_json.stdout)
    assert as_prose.stdout


def test_a_change_of_a_cap_is_a_revision_that_can_be_rolled_back(up: Up) -> None:
    first = json.loads(up.kvdeck("cap", "--prefixes", "100", "--gpu", "2GiB", "--json").stdout)
    assert first["document"] == {"cap_prefixes": 100, "cap_gpu_bytes": 2 << 30}
    second = json.loads(up.kvdeck("cap", "--prefixes", "50", "--gpu", "default", "--json").stdout)
    assert second["document"] == {"cap_prefixes": 50}
    back = up.kvdeck("cap", "--rollback", str(first["revision"]))
    assert "cap_prefixes: 50 -> 100" in back.stdout


def test_a_namespace_gets_caps_of_its_own_and_loses_them_again(up: Up) -> None:
    wanted = ("--guaranteed", "64MiB", "--max", "1GiB", "--prefixes", "500")
    one = json.loads(up.kvdeck("cap", "--namespace", "tenant-a", *wanted, "--json").stdout)
    caps = {"guaranteed_bytes": 64 << 20, "max_bytes": 1 << 30, "max_prefixes": 500}
    assert one["document"]["namespace_caps"] == {"tenant-a": caps}
    two = json.loads(up.kvdeck("cap", "--namespace", "b", "--max", "1G", "--eviction", "cost_aware", "--json").stdout)
    assert two["document"]["namespace_caps"] == {"tenant-a": caps, "b": {"max_bytes": 1 << 30}}
    assert two["document"]["eviction"] == "cost_aware"
    three = json.loads(up.kvdeck("cap", "--namespace", "tenant-a", "--no-cap", "--json").stdout)
    assert three["document"]["namespace_caps"] == {"b": {"max_bytes": 1 << 30}}
    last = json.loads(up.kvdeck("cap", "--namespace", "b", "--no-cap", "--eviction", "default", "--json").stdout)
    assert not {"namespace_caps", "eviction"} & last["document"].keys()
    assert up.kvdeck("cap", "--max", "1G").returncode == 2
    assert up.kvdeck("cap", "--namespace", "b").returncode == 2


def test_a_rule_of_admission_is_set_and_taken_back(up: Up) -> None:
    done = json.loads(up.kvdeck("cap", "--admission", "first_pages:8", "--checkpoints", "0.2", "--json").stdout)
    assert (done["document"]["admission_rule"], done["document"]["checkpoint_budget_ratio"]) == ("first_pages:8", 0.2)
    assert "must be all" in up.kvdeck("cap", "--admission", "some").stderr
    up.kvdeck("cap", "--admission", "default", "--checkpoints", "default")


def test_a_mode_is_held_and_given_back(up: Up) -> None:
    held = json.loads(up.kvdeck("mode", "no_disk", "--for", "20m", "--json").stdout)
    assert held["document"]["mode"] == "no_disk"
    assert held["document"]["mode_expires_at"]
    given = json.loads(up.kvdeck("mode", "auto", "--json").stdout)
    assert "mode" not in given["document"]


def test_policies_are_paused_resumed_and_run(up: Up) -> None:
    assert "paused" in up.kvdeck("policy", "pause", "degrade").stdout
    assert "on" in up.kvdeck("policy", "resume", "degrade").stdout
    run = json.loads(up.kvdeck("policy", "run", "retention", "--dry-run", "--json").stdout)
    assert run[0]["dry_run"]


@pytest.mark.parametrize(
    ("arguments", "variables", "exit_code", "said"),
    [
        (["status", "--url", "http://127.0.0.1:1"], {}, 3, "kvdeck up"),
        (["status"], {"KVDECK_TOKEN": "kvd_wrong"}, 4, "not known here"),
        (["explain", "abc"], {}, 5, "No engine has registered"),
        (["evict", "abc", "--engine", "nobody"], {}, 5, "There is no engine 'nobody'"),
        (["explain", "ab" * 16, "--engine", "nobody"], {}, 5, "nobody"),
        (["policy", "pause", "nothing"], {}, 5, "nothing"),
        (["alert", "ack", "12345"], {}, 5, "12345"),
        (["token", "revoke", "nothing"], {}, 5, "nothing"),
        (["cap", "--gpu", "much"], {}, 2, "64MiB"),
        (["cap", "--prefixes", "0"], {}, 2, "bypass"),
        (["mode", "fast"], {}, 2, "no_disk"),
        (["mode", "bypass", "--for", "30d"], {}, 2, "7 days"),
        (["frobnicate"], {}, 2, "No such command"),
        (["status", "--frobnicate"], {}, 2, "No such option"),
    ],
)
def test_errors_are_a_sentence_and_an_exit_code(
    up: Up, arguments: list[str], variables: dict[str, str], exit_code: int, said: str
) -> None:
    done = up.kvdeck(*arguments, **variables)
    assert done.returncode == exit_code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_viewer_may_look_and_not_touch(up: Up) -> None:
    secret = up.kvdeck("token", "create", "vera", "--role", "viewer").stdout.strip()
    assert up.kvdeck("status", KVDECK_TOKEN=secret).returncode == 0
    refused = up.kvdeck("mode", "bypass", KVDECK_TOKEN=secret)
    assert refused.returncode == 4
    assert "vera is viewer" in refused.stderr


def test_a_revoked_token_has_ended(up: Up) -> None:
    made = json.loads(up.kvdeck("token", "create", "short", "--json").stdout)
    (row,) = [t for t in json.loads(up.kvdeck("token", "list", "--json").stdout) if t["name"] == "short"]
    assert up.kvdeck("token", "revoke", row["id"]).returncode == 0
    assert up.kvdeck("status", KVDECK_TOKEN=made["token"]).returncode == 4


def test_the_token_file_is_private_and_stays_on_this_machine(up: Up) -> None:
    assert (up.data_dir / "operator.token").stat().st_mode & 0o777 == 0o600
    away = up.kvdeck("status", "--url", f"http://127.0.0.1.nip.invalid:{up.api_port}")
    assert away.returncode == 3


def test_serve_refuses_an_old_or_missing_schema(tmp_path: Path) -> None:
    done = kvdeck("serve", "--data-dir", str(tmp_path), "--api-port", str(free_port()))
    assert done.returncode == 1
    assert "kvdeck migrate" in done.stderr


def test_serve_off_loopback_without_a_token_does_not_start(tmp_path: Path) -> None:
    assert kvdeck("migrate", "--data-dir", str(tmp_path)).returncode == 0
    done = kvdeck("serve", "--host", "0.0.0.0", "--data-dir", str(tmp_path), "--api-port", str(free_port()))
    assert done.returncode == 1
    assert "token create" in done.stderr


def test_a_bad_setting_names_itself(tmp_path: Path) -> None:
    done = kvdeck("migrate", "--data-dir", str(tmp_path), KVDECK_DATABASE_URL="mysql://x")
    assert done.returncode == 2
    assert "KVDECK_DATABASE_URL" in done.stderr


def test_an_id_depends_on_tokens_namespace_and_page_ends() -> None:
    one = kvdeck("id", "-", stdin="[1, 2, 3]").stdout.strip()
    assert len(one) == 32
    assert kvdeck("id", "-", stdin="[1, 2, 3]").stdout.strip() == one
    assert kvdeck("id", "-", "--namespace", "b", stdin="[1, 2, 3]").stdout.strip() != one
    pages = json.loads(kvdeck("id", "-", "--every-page", "--json", stdin=json.dumps(list(range(1000)))).stdout)
    assert pages[-1]["tokens"] == 1000
    short = kvdeck("id", "-", stdin=json.dumps(list(range(pages[0]["tokens"])))).stdout.strip()
    assert short == pages[0]["prefix_id"]


def test_an_id_of_no_tokens_is_refused() -> None:
    done = kvdeck("id", "-", stdin="words")
    assert done.returncode == 2
    assert "JSON list" in done.stderr
