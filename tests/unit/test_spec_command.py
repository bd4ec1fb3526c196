"""`kvdeck spec`: presets as an operator reads them, and as a script does."""

from __future__ import annotations

import json

import pytest
import typer
from cli_inside import run_main
from typer.testing import CliRunner

from controlplane.cli.spec import spec
from engine.model.objects import layouts_of
from engine.model.presets import preset, preset_names

app = typer.Typer()
app.command()(spec)


def run(*arguments):
    return CliRunner().invoke(app, arguments)


def test_without_a_name_every_preset_is_listed_in_full():
    result = run()
    assert result.exit_code == 0
    for name in preset_names():
        assert name in result.stdout


def test_the_list_is_json_on_request():
    rows = json.loads(run("--json").stdout)
    assert [row["name"] for row in rows] == list(preset_names())
    assert rows[0]["fingerprint"] == preset(preset_names()[0]).fingerprint


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_is_described_by_its_object_kinds_and_their_bytes(name):
    row = json.loads(run(name, "--json").stdout)
    layouts = layouts_of(preset(name))
    assert [k["kind"] for k in row["object_kinds"]] == [*layouts.span_kinds, *layouts.boundary_kinds]
    assert sum(group["layers"] for group in row["layer_groups"]) == row["layers"]
    spans = sum(k["bytes"] for k in row["object_kinds"] if k["bytes_of"] == "token")
    assert spans == pytest.approx(row["span_bytes_per_token"])


def test_the_table_shows_parts_with_widths_replay_and_fingerprint():
    text = run("small-deepseek-v4").stdout
    for piece in ("bfloat16[16]", "csa_indexer", "swa_window", "75 tokens", preset("small-deepseek-v4").fingerprint):
        assert piece in text


def test_an_unknown_name_is_refused_with_the_known_ones(monkeypatch, capsys):
    code, said = run_main(monkeypatch, capsys, "spec", "gpt-7")
    assert (code, "small-gpt-oss" in said) == (2, True)
