"""Replay and the engine host as processes: what signals do to them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

KVDECK = (sys.executable, "-m", "controlplane.cli.main")
ROOT = Path(__file__).parents[2]
LINE = {"input_length": 1000, "output_length": 10}


def start(*arguments):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KVDECK_")} | {"PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen((*KVDECK, *map(str, arguments)), env=environment, text=True, **pipes)


def wait_for(condition, process):
    """Until it holds, as long as the process lives; pytest's own time limit is the bound."""
    while not condition():
        if process.poll() is not None:
            pytest.fail(f"the process ended with {process.returncode}: {process.stderr.read()}")
        time.sleep(0.05)


def test_ctrl_c_ends_a_replay_with_the_report_so_far(tmp_path):
    trace, folder = tmp_path / "trace.jsonl", tmp_path / "engine"
    lines = [LINE | {"timestamp": at * 3_600_000, "hash_ids": [at, 1000 + at]} for at in range(5)]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    process = start("replay", trace, "--speed", 1, "--data-dir", folder, "--json")
    wait_for((folder / "lock").exists, process)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate()
    assert process.returncode == 130, stderr
    body = json.loads(stdout)
    assert body["interrupted"] is True
    assert body["requests"] <= 1
    assert body["engine"]["violations"] == []


@pytest.mark.parametrize("workload", ["generated", "none"])
def test_an_engine_host_stops_cleanly_when_asked_and_lets_go_of_its_folder(tmp_path, workload):
    arguments = ("engine", "--data-dir", tmp_path, "--rate", 50, "--workload", workload)
    for _ in range(2):  # the second start finds the folder free
        process = start(*arguments)
        first = process.stderr.readline()
        assert "serves small-deepseek-v4" in first
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate()
        assert process.returncode == 0, stderr
        assert "has stopped" in stderr


def test_a_second_engine_host_on_a_folder_is_refused_in_a_sentence(tmp_path):
    first = start("engine", "--data-dir", tmp_path, "--workload", "none")
    try:
        assert "serves" in first.stderr.readline()
        second = start("engine", "--data-dir", tmp_path, "--workload", "none")
        _, stderr = second.communicate()
        assert second.returncode == 2
        assert "error:" in stderr
        assert "Traceback" not in stderr
    finally:
        first.terminate()
        first.communicate()
