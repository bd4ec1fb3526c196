"""Replay without a trace: the built-in workload."""

from __future__ import annotations

import json

import typer
from typer.testing import CliRunner

from controlplane.cli.replay import replay

app = typer.Typer()
app.command()(replay)


def test_without_a_trace_the_built_in_workload_runs_in_its_namespaces():
    result = CliRunner().invoke(app, ["--limit", "120", "--json"])
    assert result.exit_code == 0
    body = json.loads(result.stdout)
    assert body["requests"] == 120
    assert body["hit_ratio"]["usable"] > 0.1
    assert body["wrong_bytes"] == 0
