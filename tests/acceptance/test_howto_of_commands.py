"""docs/howto/commands.md: every command in it does what the page says, on a running deck."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_support import Up, wait_for
from typer.testing import CliRunner

from controlplane.api.client import ControlPlaneClient
from controlplane.cli.exits import exit_code_of
from controlplane.cli.main import app
from controlplane.errors import ControlPlaneError

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "commands.md"
BLOCKS = re.findall(r"```\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
LINES = [line for block in BLOCKS for line in block.strip().splitlines()]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with Up(tmp_path_factory.mktemp("deck") / "var", "--no-dashboard") as running:
        wait_for(lambda: len(prefixes(running)) > 30, "prefixes")
        for name in [row["name"] for row in answer(running, "policy", "list")["policies"]]:
            running.kvdeck("policy", "pause", name)  # the page is about what people do
        yield running


def answer(up: Up, *arguments: str) -> Any:
    done = up.kvdeck(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def prefixes(up: Up, *more: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = answer(up, "prefixes", "--limit", "200", *more)["rows"]
    return rows


def run(up: Up, line: str) -> tuple[int, str]:
    """A line of the page, in this process: there are many, and each of its own would load everything again."""
    words = shlex.split(line)
    assert words[0] == "kvdeck"
    variables = {"KVDECK_URL": up.url, "KVDECK_DATA_DIR": str(up.data_dir), "KVDECK_TOKEN": ""}
    done = CliRunner().invoke(app, words[1:], env=variables)
    if done.exception is None or isinstance(done.exception, SystemExit):
        return done.exit_code, done.output
    assert isinstance(done.exception, ControlPlaneError), f"{line}: {done.exception!r}"
    return int(exit_code_of(done.exception)), done.output + str(done.exception)


# The workload goes on beside the page, so the engine may refuse what moved on since it was chosen.
MEANWHILE = (
    "version_moved_on",
    "out_of_memory",
    "unknown_prefix",
    "leased",
    "is selected",
    "nothing_to_code",
    "state_is",
    "busy",
)


def test_every_command_of_the_page_runs(up: Up) -> None:
    known = {"PREFIX": prefixes(up)[0]["prefix_id"], "COMMAND": ""}
    assert len(LINES) > 25
    for line in LINES:
        for name, value in known.items():
            line = line.replace(f"${name}", value)
        code, said = run(up, line)
        assert code == 0 or any(word in said for word in MEANWHILE), f"{line}\n{said}"
        with ControlPlaneClient(up.url, (up.data_dir / "operator.token").read_text().strip()) as client:
            known["COMMAND"] = next((row["id"][:13] for row in client.commands(limit=1)), "")


def test_a_dry_run_changes_nothing_and_the_engine_answers(up: Up) -> None:
    before = len(answer(up, "desired", "history"))
    tried = answer(up, "cap", "--prefixes", "10", "--dry-run")
    assert tried["diff"] == {"cap_prefixes": [None, 10]}
    (engine,) = tried["engines"]
    assert engine["answer"]["status"] == "succeeded"
    assert engine["answer"]["outcome"]["evicted"] > 0
    assert engine["estimate"]["evicted"] > 0
    assert len(answer(up, "desired", "history")) == before


def test_labels_stay_with_a_prefix_that_is_evicted(up: Up) -> None:
    up.kvdeck("mode", "bypass", "--engine", "local")  # nobody shall bring it back meanwhile
    leaf = next(row for row in answer(up, "prefixes", "--order", "recent")["rows"] if row["state"] == "FULL")
    prefix_id = leaf["prefix_id"]
    assert answer(up, "label", prefix_id, "keep=me") == {prefix_id: {"keep": "me"}}
    assert [row["prefix_id"] for row in prefixes(up, "--label", "keep=me")] == [prefix_id]
    up.kvdeck("evict", prefix_id, "--descendants", "--yes")
    gone = wait_for(
        lambda: [row for row in prefixes(up, "--state", "EVICTED", "--label", "keep") if row["labels"]], "its eviction"
    )
    assert gone[0]["labels"] == {"keep": "me"}
    up.kvdeck("mode", "auto", "--engine", "local")


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        (["prefixes", "--engine", "nobody"], 5, "There is no engine 'nobody'"),
        (["prefixes", "--namespace", "nothing"], 5, "There is no namespace 'nothing'"),
        (["evict"], 2, "Which prefixes?"),
        (["evict", "abc", "--namespace", "default"], 2, "Ids and a selection were given"),
        (["evict", "--held-in", "tape"], 2, "tier must be one of gpu, host, disk"),
        (["compact", "--group", "nobody"], 5, "No engine is in group 'nobody'"),
        (["compact", "--group", "a", "--fleet"], 2, "exclude each other"),
        (["command", "zzz"], 5, "No command begins with 'zzz'"),
        (["label", "ab" * 16, "nonsense"], 2, "is no label"),
        (["engine-forget", "local"], 1, "spoke"),
        (["desired", "rollback", "999999"], 5, "There is no revision 999999"),
        (["desired", "diff", "999999"], 5, "There is no revision 999999"),
        (["drain", "--then", "explode", "--yes"], 2, "one of keep, offload, evict"),
        (["drain", "--then", "explode"], 2, "one of keep, offload, evict"),
    ],
)
def test_what_cannot_be_done_is_said(up: Up, arguments: list[str], exit_code: int, said: str) -> None:
    done = up.kvdeck(*arguments)
    assert said in done.stderr, done.stderr
    assert done.returncode == exit_code
    assert "Traceback" not in done.stderr


def test_a_question_that_is_not_answered_changes_nothing(up: Up) -> None:
    before = len(answer(up, "commands", "--limit", "1000"))
    done = up.kvdeck("evict", "--least-useful", "5")
    assert "Evict?" in done.stderr
    assert done.returncode != 0
    assert len(answer(up, "commands", "--limit", "1000")) == before
