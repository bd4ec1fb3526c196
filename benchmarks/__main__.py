"""All benchmarks, one after another: `python -m benchmarks`, which is what `make bench` runs."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TRACE = "mooncake_conversation.jsonl"


def plan(a: argparse.Namespace) -> list[tuple[str, ...]]:
    """The commands; what needs files that are not here is left out with a sentence."""
    todo: list[tuple[str, ...]] = []
    trace = a.traces / TRACE
    if trace.is_file():
        peers = _given(("--peers", a.peers), ("--peer-python", a.peer_python), ("--vllm-python", a.vllm_python))
        todo.append(("benchmarks.bookkeeping", "--trace", str(trace), *peers))
        todo.append(("benchmarks.curve", "--trace", str(trace)))
    else:
        print(f"bookkeeping is left out: no {trace}; name the folder of the published traces with --traces")
    restore = ("benchmarks.restore", *_given(("--lmcache-python", a.lmcache_python)))
    todo += [("benchmarks.telemetry",), restore, ("benchmarks.memory",), ("benchmarks.growth",)]
    todo += [("benchmarks.generation",), ("benchmarks.controlplane", "--versions", "500000")]
    return todo


def _given(*options: tuple[str, Path | None]) -> tuple[str, ...]:
    return tuple(part for name, path in options if path is not None for part in (name, str(path)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, default=ROOT.parent / "shared" / "traces")
    parser.add_argument("--peers", type=Path, help="folder of the peers' drivers (bench_sglang.py, bench_vllm.py)")
    parser.add_argument("--peer-python", type=Path, help="python of an environment with SGLang")
    parser.add_argument("--vllm-python", type=Path, help="python of an environment with vLLM")
    parser.add_argument("--lmcache-python", type=Path, help="python of an environment with LMCache")
    a = parser.parse_args()
    failed = []
    for command in plan(a):
        started = time.monotonic()
        print(f"\n== {command[0]} ==", flush=True)
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False
        )
        print(f"({time.monotonic() - started:.0f} s)", flush=True)
        if done.returncode:
            failed.append(command[0])
    if failed:
        raise SystemExit(f"did not end well: {', '.join(failed)}")


if __name__ == "__main__":
    main()
