"""Replay of a small trace through the real engine: hits in every tier, no wrong byte, broken lines named."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import typer
from cli_inside import run_main
from typer.testing import CliRunner

from controlplane.cli.replay import replay
from controlplane.workload.driver import DriverConfig
from controlplane.workload.replay import ReplayConfig, run_replay
from controlplane.workload.traces import Trace
from engine.model.presets import preset_names

app = typer.Typer()
app.command()(replay)

SMALL = [name for name in preset_names() if name.startswith("small")]
SHARED_TRACES = Path(os.environ.get("KVDECK_TRACES", Path(__file__).parents[3] / "shared" / "traces"))


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """160 requests of 20 sessions that grow, in 16-token blocks; sessions share a system prompt in fours."""
    rng = np.random.default_rng(5)
    history = {s: list(range(s % 5 * 100, s % 5 * 100 + 20)) for s in range(20)}
    fresh, lines = 1000, []
    for at in range(160):
        session = int(rng.integers(20))
        count = int(rng.integers(3, 15))
        history[session] += range(fresh, fresh + count)
        fresh += count
        ids = history[session]
        cut = int(rng.integers(0, 16))
        lines.append(
            {
                "timestamp": at * 50,
                "input_length": len(ids) * 16 - cut,
                "output_length": int(rng.integers(0, 40)),
                "hash_ids": ids,
                "session_id": f"s{session}",
            }
        )
    path = tmp_path_factory.mktemp("trace") / "small.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("name", SMALL)
def test_every_model_replays_with_hits_and_without_a_wrong_byte(trace, name):
    result = run_replay(ReplayConfig(trace=trace, spec=name), DriverConfig(inflight=4))
    assert result.report.requests == result.report.committed == 160
    assert result.report.usable_tokens > 0
    assert result.report.verified_bytes > 0
    assert result.report.wrong_bytes == 0
    assert result.engine["violations"] == []
    assert not result.failed


@pytest.mark.parametrize("codec", ["none", "lossless", "int8"])
def test_small_tiers_are_all_used_under_pressure_and_bytes_stay_right(trace, codec):
    config = ReplayConfig(trace=trace, spec="small-gpt-oss", gpu_mib=2, host_mib=4, disk_mib=32, codec=codec)
    result = run_replay(config, DriverConfig(restore_deadline_s=5.0))
    assert result.report.wrong_bytes == 0
    assert result.engine["violations"] == []
    assert result.report.hit_tokens_by_tier["gpu"] > 0
    assert result.report.hit_tokens_by_tier["host"] + result.report.hit_tokens_by_tier["disk"] > 0


def test_books_alone_find_what_bytes_find(trace):
    shared = {"trace": trace, "host_mib": 0, "disk_mib": 0}
    bytes_kept = run_replay(ReplayConfig(**shared), DriverConfig())
    books_only = run_replay(ReplayConfig(**shared, materialise=False), DriverConfig())
    assert books_only.report.usable_tokens == bytes_kept.report.usable_tokens
    assert books_only.report.verified_bytes == 0


def test_the_command_prints_a_report_as_json(trace):
    result = run(trace, "--limit", 40, "--json")
    assert result.exit_code == 0
    body = json.loads(result.stdout)
    assert body["requests"] == 40
    assert body["wrong_bytes"] == 0
    assert body["verified_bytes"] > 0
    assert body["error"] is None
    assert set(body["hit_ratio"]) == {"lcp", "usable", "net_of_replay", "usable_of_lcp"}


def test_the_command_prints_a_table(trace):
    result = run(trace, "--limit", 40)
    assert result.exit_code == 0
    for text in ("longest common prefix", "usable", "net of replay", "verified", "wrong"):
        assert text in result.stdout


def test_a_broken_line_ends_the_replay_with_the_report_of_what_came_before(trace, tmp_path):
    lines = trace.read_text().splitlines()
    lines[30] = '{"timestamp": 1500, "input_length"'
    broken = tmp_path / "broken.jsonl"
    broken.write_text("\n".join(lines))
    result = run(broken, "--json")
    assert result.exit_code == 1
    body = json.loads(result.stdout)
    assert body["requests"] == 30
    assert body["error"]["line"] == 31
    assert "line 31: not JSON" in result.stderr


def test_a_trace_that_is_not_there_is_one_sentence(tmp_path, monkeypatch, capsys):
    code, said = run_main(monkeypatch, capsys, "replay", tmp_path / "none.jsonl")
    assert (code, "cannot be opened" in said) == (1, True)


def test_an_unknown_preset_is_one_sentence(trace, monkeypatch, capsys):
    code, said = run_main(monkeypatch, capsys, "replay", trace, "--spec", "gpt-7")
    assert (code, "small-gpt-oss" in said) == (2, True)


def test_a_second_replay_of_the_same_folder_starts_with_its_prefixes(trace, tmp_path):
    arguments = (trace, "--limit", 60, "--data-dir", tmp_path, "--gpu-mib", 4, "--host-mib", 0, "--json")
    first, second = (json.loads(run(*arguments).stdout) for _ in range(2))
    assert second["wrong_bytes"] == 0
    assert second["tokens"]["usable"] > first["tokens"]["usable"]


def test_the_published_conversation_trace_replays_right():
    path = SHARED_TRACES / "mooncake_conversation.jsonl"
    if not path.exists():
        pytest.skip(f"the published traces are not here ({path}); set KVDECK_TRACES to their folder")
    assert Trace(path).block_tokens == 512
    result = run_replay(ReplayConfig(trace=path, limit=150), DriverConfig(inflight=16))
    assert result.report.requests == 150
    assert result.report.wrong_bytes == 0
    assert result.engine["violations"] == []
