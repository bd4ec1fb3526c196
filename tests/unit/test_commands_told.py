"""Every `kvdeck ...` that a page, a hint or an error names is there, with the options it is named with."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer

from controlplane.cli.main import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md")]
CODE = [path for room in ("engine", "controlplane", "dashboard", "docs", "docker") for path in (ROOT / room).rglob("*")]
SOURCES = sorted({*PAGES, *(path for path in CODE if path.suffix in (".py", ".md", ".yaml", ".yml", ".json"))})
TOP = typer.main.get_command(app)


def told(text: str) -> Iterator[str]:
    """Command lines in code spans, and lines of code blocks."""
    yield from re.findall(r"`(?:\.venv/bin/)?(kvdeck [a-z][^`\n]*)`", text)
    for block in re.findall(r"```(?:sh|bash)?\n(.*?)```", text, re.S):
        yield from re.findall(r"^(?:\$ )?(?:\.venv/bin/)?(kvdeck [a-z].*)$", block.replace("\\\n", " "), re.M)


def wrong_with(line: str) -> str:
    """What is not there of what a line names; empty if all of it is."""
    line = re.sub(r"\s#.*$", "", line.split(" | ")[0].split(" && ")[0])
    line = re.sub(r"\{[^}]*\}", "X", line)  # what a hint fills in
    words = [word.strip("[]") for word in shlex.split(line.replace("...", ""))[1:]]
    verb: click.Command = TOP
    while words and hasattr(verb, "commands") and not words[0].startswith("-"):
        name = words.pop(0)
        if name not in verb.commands:
            return f"no verb {name!r}"
        verb = verb.commands[name]
    known = {option for each in verb.params for option in (*each.opts, *each.secondary_opts)} | {"--help", "-h"}
    named = {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    return f"no option {', '.join(sorted(named - known))}" if named - known else ""


def test_every_command_line_told_anywhere_is_one() -> None:
    lines = {(path.relative_to(ROOT), line) for path in SOURCES for line in told(path.read_text(encoding="utf-8"))}
    assert len(lines) > 250
    assert {where: wrong for where in sorted(lines) if (wrong := wrong_with(where[1]))} == {}


@pytest.mark.parametrize("line", ["kvdeck statsu", "kvdeck evict --idel 1h", "kvdeck policy sett x", "kvdeck top -q"])
def test_a_command_line_that_is_none_is_found_out(line: str) -> None:
    assert wrong_with(line)
