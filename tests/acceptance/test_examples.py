"""Examples and how-to pages do what they say, run as a reader would run them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def run_example(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "examples/attach_model.py", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)


def test_the_example_reuses_a_conversation_and_says_the_same_as_without_reuse():
    done = run_example()
    assert done.returncode == 0, done.stderr
    reused = [int(n.replace(",", "")) for n in re.findall(r"tokens, ([\d,]+) reused", done.stdout)]
    assert reused[0] == 0
    assert reused[1:] == sorted(reused[1:])
    assert reused[1] > 1500
    assert "the same tokens: True" in done.stdout
    assert "engine.check(): nothing wrong" in done.stdout


def test_the_example_says_in_a_sentence_what_a_folder_without_a_model_is():
    done = run_example("--model", "/nowhere/at/all")
    assert done.returncode == 2
    assert "/nowhere/at/all" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_how_to_of_attaching_a_model_runs_as_it_is_written():
    page = (ROOT / "docs" / "howto" / "attach-your-model.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", page, re.S):
        lines = code.splitlines()
        indent = len(lines[0]) - len(lines[0].lstrip())
        exec(compile("\n".join(line[indent:] for line in lines), "attach-your-model.md", "exec"), names)
    assert names["again"].explanation.outcome == "hit"
    assert names["logits"].shape == (512,)


def test_the_how_to_of_paged_kernels_runs_as_it_is_written():
    page = (ROOT / "docs" / "howto" / "paged-kernels.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    names: dict[str, Any] = {}
    exec(compile(code, "paged-kernels.md", "exec"), names)
    assert names["table"].length == 4
    assert names["keys"].shape == (256, 16)
