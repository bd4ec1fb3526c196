"""What needs a GPU says so in a sentence where there is none, and fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_without_gpu(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "GPU"} | {"CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False
    )  # fmt: skip


def test_the_gpu_script_refuses_a_machine_without_one_in_one_sentence():
    results = ROOT / "benchmarks" / "results"
    before = sorted(results.glob("*")) if results.exists() else []
    done = run_without_gpu("bash", "benchmarks/gpu.sh")
    assert (done.returncode, done.stdout) == (3, "")
    assert "torch sees no CUDA device; run this on a machine with an NVIDIA GPU" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert (sorted(results.glob("*")) if results.exists() else []) == before


def test_the_gpu_script_is_a_script_that_bash_can_read():
    assert subprocess.run(["bash", "-n", str(ROOT / "benchmarks" / "gpu.sh")], check=False).returncode == 0


def test_the_tests_marked_gpu_fail_without_a_gpu_instead_of_being_skipped():
    done = run_without_gpu(
        sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "tests/gpu/test_gpu_graphs.py"
    )
    assert done.returncode == 4
    assert "need a CUDA device and torch sees none here" in done.stderr
    assert "skipped" not in done.stdout
