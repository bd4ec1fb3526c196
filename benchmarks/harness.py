"""What every benchmark shares: percentiles, interleaved runs in processes of their own, and the table."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


class RunFailed(Exception):
    """A measured process did not print a result; the message ends with what it said instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One line of the table: a command that prints one JSON object as its last line."""

    name: str
    command: tuple[str, ...]


def percentile_us(seconds: Sequence[float], quantile: float) -> float:
    """In microseconds; the same nearest-rank rule as the peers' drivers. 0 for no values."""
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(len(ordered) * quantile))] * 1e6 if ordered else 0.0


def run_once(contender: Contender, timeout_s: float = 900) -> dict[str, Any]:
    """Run a contender to its end and read its result. Raises `RunFailed`."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        contender.command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise RunFailed(f"{contender.name} ended with {done.returncode}: {done.stderr.strip()[-800:]}")
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def run_interleaved(contenders: Sequence[Contender], rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Every contender once a round, in turn: what slows the machine for a while slows all of them."""
    results: dict[str, list[dict[str, Any]]] = {c.name: [] for c in contenders}
    for number in range(rounds):
        for contender in contenders:
            print(f"round {number + 1}/{rounds}: {contender.name}", file=sys.stderr, flush=True)
            results[contender.name].append(run_once(contender))
    return results


def median_of(results: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """The median over rounds, None where a contender does not report `key`."""
    values = [r[key] for r in results if r.get(key) is not None]
    return float(median(values)) if values else None


def ratio_of(ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """The median over rounds of ours / theirs, each pair from the same round."""
    pairs = [(a[key], b[key]) for a, b in zip(ours, theirs, strict=True)]
    return float(median(a / b for a, b in pairs)) if pairs else None


def print_table(title: str, columns: Sequence[tuple[str, Callable[[Any], str]]], rows: Sequence[Sequence[Any]]) -> None:
    """A plain table: the first column to the left, the others to the right; None is a dash."""
    text = [[name for name, _ in columns]]
    text += [["-" if v is None else show(v) for (_, show), v in zip(columns, row, strict=True)] for row in rows]
    widths = [max(len(row[i]) for row in text) for i in range(len(columns))]
    print(title)
    for row in text:
        cells = [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        print("  ".join(cells).rstrip())


def told(lines: list[list[object]]) -> list[list[object]]:
    """The same rows of (what, target, measured), said at once: a long run that is stopped has not been for nothing."""
    for what, _, measured in lines:
        print(f"{what}: {measured}", file=sys.stderr, flush=True)
    return lines


def machine() -> str:
    """The machine in a few words, for the table's title."""
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
