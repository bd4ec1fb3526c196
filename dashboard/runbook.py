"""Sections of the documents that come with the program, found by the links findings and alerts carry."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import dashboard

ROOT = Path(dashboard.__file__).resolve().parents[1]
_HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*$")


@cache
def section(link: str) -> str | None:
    """The Markdown of `docs/FILE.md#anchor`, its heading included; None where there is no such file or section.

    An anchor is a heading's words in lower case joined by "-" or "_", as code hosts make them.
    """
    name, _, anchor = link.partition("#")
    path = (ROOT / name).resolve()
    if not name.endswith(".md") or ROOT / "docs" not in path.parents or not path.is_file():
        return None
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        heading = _HEADING.match(line)
        if heading and anchor and _slug(heading.group(2)) == _slug(anchor):
            return "\n".join(lines[number : _end(lines, number + 1, len(heading.group(1)))])
    return None


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _end(lines: list[str], start: int, level: int) -> int:
    for number in range(start, len(lines)):
        heading = _HEADING.match(lines[number])
        if heading and len(heading.group(1)) <= level:
            return number
    return len(lines)
