"""`kvdeck up`: how it starts, how it ends, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import pytest
from cli_support import Up, free_port, kvdeck, runs, wait_for

ALONE = ("--no-engine", "--no-dashboard")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_everything_cleanly(tmp_path: Path, number: int) -> None:
    with Up(tmp_path / "var", *ALONE) as up:
        children = up.children()
        assert up.stop(number) == 0
        assert "Stopped. The history is kept" in up.said
    assert not any(runs(pid) for pid in children)
    assert not (tmp_path / "var" / "running.json").exists()


def test_a_second_start_keeps_the_history_and_the_tokens(tmp_path: Path) -> None:
    with Up(tmp_path / "var", *ALONE) as up:
        up.kvdeck("cap", "--prefixes", "77", "--reason", "remember me")
        secret = (tmp_path / "var" / "operator.token").read_text()
    with Up(tmp_path / "var", *ALONE) as again:
        assert "remember me" in again.kvdeck("cap", "--json").stdout
        assert (tmp_path / "var" / "operator.token").read_text() == secret


def test_two_on_one_data_folder_are_refused(tmp_path: Path) -> None:
    with Up(tmp_path / "var", *ALONE):
        second = kvdeck("up", "--data-dir", str(tmp_path / "var"), *ALONE)
    assert second.returncode == 1
    assert "Another `kvdeck up` runs on" in second.stderr


@pytest.mark.parametrize("flag", ["--api-port", "--dashboard-port"])
def test_a_port_in_use_is_named_with_its_flag(tmp_path: Path, flag: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ports = {"--api-port": str(free_port()), "--dashboard-port": str(free_port())} | {flag: port}
        options = [word for pair in ports.items() for word in pair]
        done = kvdeck("up", "--data-dir", str(tmp_path), "--no-engine", *options)
    assert done.returncode == 1
    assert port in done.stderr
    assert flag in done.stderr


def test_a_child_that_dies_ends_the_whole_with_its_log(tmp_path: Path) -> None:
    with Up(tmp_path / "var", *ALONE) as up:
        (child,) = up.children()
        os.kill(child, signal.SIGKILL)
        assert up.process.wait(60) == 1
        assert "control plane ended by itself" in up.said
        assert "serve.log" in up.said


def test_what_a_killed_one_left_behind_is_named(tmp_path: Path) -> None:
    with Up(tmp_path / "var", *ALONE) as up:
        (child,) = up.children()
        up.process.kill()
        up.process.wait()
        try:
            ports = ("--api-port", str(up.api_port), "--dashboard-port", str(up.dashboard_port))
            done = kvdeck("up", "--data-dir", str(tmp_path / "var"), *ports, *ALONE)
        finally:
            os.kill(child, signal.SIGTERM)
            wait_for(lambda: not runs(child), "the child that was left behind")
    assert done.returncode == 1
    assert f"kill {child}" in done.stderr


def test_a_dead_start_says_which_part_and_shows_its_log(tmp_path: Path) -> None:
    (tmp_path / "var").mkdir()
    variables = {"KVDECK_INGEST_MAX_BYTES": "many"}
    done = kvdeck("up", "--data-dir", str(tmp_path / "var"), *ALONE, **variables)
    assert done.returncode == 2
    assert "KVDECK_INGEST_MAX_BYTES" in done.stderr


def test_the_whole_deck_runs_and_obeys(tmp_path: Path) -> None:
    with Up(tmp_path / "var", "--rate", "30") as up:
        (engine,) = json.loads(up.kvdeck("status", "--json").stdout)["engines"]
        assert engine["health"] == "live"

        def first_prefix() -> str | None:
            rows = json.loads(up.kvdeck("prefixes", "--limit", "1", "--json").stdout)["rows"]
            return rows[0]["prefix_id"] if rows else None

        prefix = wait_for(first_prefix, "prefixes of the workload")
        preview = json.loads(up.kvdeck("evict", prefix, "--dry-run", "--descendants", "--json").stdout)
        assert preview["prefixes"] >= 1
        pinned = json.loads(up.kvdeck("pin", prefix, "--for", "10m", "--json").stdout)
        assert pinned["outcome"]["pinned"] == 1
        assert json.loads(up.kvdeck("explain", prefix, "--json").stdout)["now"]["pinned"]
        assert up.kvdeck("unpin", prefix).returncode == 0
        gone = json.loads(up.kvdeck("evict", prefix, "--yes", "--descendants", "--json").stdout)
        assert gone["outcome"]["evicted"] >= 1
        compacted = up.kvdeck("compact")
        assert "compact succeeded" in compacted.stdout, compacted.stderr
        assert up.kvdeck("mode", "no_disk", "--for", "10m").returncode == 0
        wait_for(lambda: _observed(up)["mode"] == "no_disk", "the mode")
        assert up.stop() == 0
    assert "killed" not in up.said


def _observed(up: Up) -> dict[str, object]:
    (engine,) = json.loads(up.kvdeck("status", "--json").stdout)["engines"]
    observed: dict[str, object] = engine["observed"]
    return observed


def test_the_other_verbs_find_the_deck_of_their_folder_wherever_it_listens(tmp_path: Path) -> None:
    with Up(tmp_path / "var", *ALONE) as up:
        found = kvdeck("status", "--data-dir", str(up.data_dir), "--json")  # no address given
        assert found.returncode == 0, found.stderr
        link = kvdeck("token", "link", "--data-dir", str(up.data_dir))
        assert f":{up.dashboard_port}/?token=" in link.stdout
        assert kvdeck("cap", "--data-dir", str(up.data_dir), "--prefixes", "5000").returncode == 0
        assert kvdeck("cap", "--data-dir", str(up.data_dir), "--prefixes", "default").returncode == 0
        (newest, *_) = json.loads(kvdeck("cap", "--data-dir", str(up.data_dir), "--json").stdout)
        assert newest["document"].get("cap_prefixes") is None
        odd = kvdeck("prefixes", "--data-dir", str(up.data_dir), "--state", "BOGUS")
        assert (odd.returncode, "PARTIAL_OFFLOAD" in odd.stderr) == (2, True)
    assert not (tmp_path / "var" / "deck.json").exists()
